// Helpers for distributing a pass: the arena of a thread, and the sum of the words that all tasks moved.
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

// Whether there are so few queries that decode.h, with vectors along the features, is faster. Backward has other blocks
// than forward and decides by all rows of the call; the plan gives forward such small blocks only if the call has no
// more rows.
bool is_few(const Call& call, const Kernels& kernels, std::int64_t rows);

// Offset of a stream's part of an array.
std::int64_t offset_of(const Call& call, const Array& array, std::int64_t stream);

// The pattern's plane of a stream.
std::int64_t plane_of(const Call& call, std::int64_t stream);

// Set the fields of a call that its tasks depend on. The schedules are `flash` forward and `flash_onepass` backward.
void prepare_forward(Call& call, const Kernels& kernels);
std::optional<BlockVisits> visits_of(const Call& call);  // backward, of a pattern
void prepare_backward(Call& call, const Kernels& kernels, const std::optional<BlockVisits>& visits);

// The tasks of a prepared call, in the order in which they start.
std::int64_t pieces_of(const Call& call);
std::vector<ListedTask> blocks_of_rows(const Call& call, std::int64_t pieces);  // forward, and dQ alone: longest first
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

// The passes that write P; backward without the bias's gradient.
Moved spilled_forward(const Call& call, const Isa& isa);
Moved spilled_backward(const Call& call, const Isa& isa);

}  // namespace redblue
