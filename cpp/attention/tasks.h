// Helpers for distributing a pass: the arena of a thread, and the sum of the words that all tasks moved.
#pragma once
#include <atomic>

#include "attention/call.h"
#include "base/arena.h"

namespace redblue {

inline const Kernels& kernels_for(const Call& call, const Isa& isa) {
  return isa.kernels[static_cast<int>(call.number)];
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

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
