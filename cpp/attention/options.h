// The options of a call that change scores and probabilities, and the arrays that they may be.
#pragma once
#include <cstdint>

namespace redblue {

enum class Number { kFloat32, kFloat64, kBfloat16, kFloat16, kBool };

constexpr int kMaxLead = 9;  // eight of the caller's and, in unstacked calls, the query heads that share a key head

// An array (lead..., heads, rows, columns), read in place through its strides, which count elements.
struct Array {
  char* data = nullptr;  // null: not given
  std::int64_t lead[kMaxLead] = {};
  std::int64_t head = 0, row = 0, column = 0;
};

// A new option is a field and its line in `each` here, and its arithmetic in scores.h.
struct Options {
  double scale = 1;
  double softcap = 0;                     // 0: none
  Array bias;                             // strides 0 where it is broadcast
  Number bias_number = Number::kFloat32;  // kBool: true means attend
  Array sinks;                            // of sums, one per head
  Array alibi;                            // of sums, a slope per query head; rows and columns share it
  double dropout = 0;                     // the share of probabilities that become 0; the others grow by 1 / (1 - it)
  std::uint64_t seed = 0;                 // the choice depends on the seed and the positions of row and key only

  // Calls visit(name, field) for each option.
  template <class Visit>
  void each(Visit&& visit) {
    visit("scale", scale);
    visit("softcap", softcap);
    visit("bias", bias);
    visit("bias_number", bias_number);
    visit("sinks", sinks);
    visit("alibi", alibi);
    visit("dropout", dropout);
    visit("seed", seed);
  }
};

}  // namespace redblue
