// Helpers for distributing a pass: its tasks, the arena of a thread, and the sum of the words that all tasks moved.
#pragma once
#include <atomic>
#include <optional>
#include <vector>

#include "attention/call.h"
#include "base/arena.h"

namespace redblue {

inline const Kernels& kernels_for(const Call& call, const Isa& isa) {
  return isa.kernels[static_cast<int>(call.number)];
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Whether `rows` rows are so few that decode.h, with vectors along the features, is faster. Forward asks for the rows
// of a block, backward for all rows of the call; both get the same answer, because the plan has such small blocks only
// for calls with so few rows.
bool is_few(const Call& call, const Kernels& kernels, std::int64_t rows);

// The offset of a stream's part of an array.
std::int64_t offset_of(const Call& call, const Array& array, std::int64_t stream);

// The plane of the pattern that a stream uses.
std::int64_t plane_of(const Call& call, std::int64_t stream);

// Set the fields of a call on which its tasks depend, for `flash` forward and `flash_onepass` backward.
void prepare_forward(Call& call, const Kernels& kernels);
std::optional<BlockVisits> visits_of(const Call& call);  // backward; none for a band
void prepare_backward(Call& call, const Kernels& kernels, const std::optional<BlockVisits>& visits);

// The tasks of a prepared call, in the order in which they start.
std::int64_t pieces_of(const Call& call);
std::vector<ListedTask> blocks_of_rows(const Call& call, std::int64_t pieces);  // forward and dQ; longest first
std::vector<ListedTask> blocks_of_keys(const Call& call);  // backward

inline std::size_t bytes_of_sum(const Call& call) { return call.number == Number::kFloat64 ? 8 : 4; }

inline Arena& own_arena() {
  static thread_local Arena arena;
  arena.clear();
  return arena;
}

class Tally {
 public:
  void add(const Moved& moved) {
    reads_ += moved.reads;
    writes_ += moved.writes;
  }
  Moved sum() const { return {reads_, writes_}; }

 private:
  std::atomic<std::int64_t> reads_{0}, writes_{0};
};

// The passes that write P. Backward leaves out the gradient of the bias.
Moved spilled_forward(const Call& call, const Isa& isa);
Moved spilled_backward(const Call& call, const Isa& isa);

}  // namespace redblue
