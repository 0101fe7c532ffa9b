// The arrays of a call, as the core reads them.
#pragma once
#include <cstdint>

namespace redblue {

enum class Number { kFloat32, kFloat64, kBfloat16, kFloat16, kBool };

// Leading dimensions: eight of the caller and, in unstacked calls, one for the query heads that share a key head.
constexpr int kMaxLead = 9;

// An array (lead..., heads, rows, columns), read in place through its strides, which count elements.
struct Array {
  char* data = nullptr;  // null: not given
  std::int64_t lead[kMaxLead] = {};
  std::int64_t head = 0, row = 0, column = 0;
};

}  // namespace redblue
