// Which tasks a pass consists of, and who does them.
#include "kernels.h"

#include <algorithm>
#include <memory>

#include "pool.h"
#include "room.h"

namespace redblue {
namespace {

const Kernels& kernels_for(const Call& call, const Isa& isa) { return isa.kernels[static_cast<int>(call.number)]; }

Room& own_room() {
  static thread_local Room room;
  room.clear();
  return room;
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

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Moved forward(const Call& call, const Isa& isa) {
  const Kernels& kernels = kernels_for(call, isa);
  const std::int64_t rows = call.stacked(), blocks = ceil_div(rows, call.rows), streams = call.streams();
  Tally tally;
  // Late rows first: under a causal mask they take longest.
  share_out(blocks * streams, call.threads, [&](std::int64_t task) {
    const std::int64_t row = (blocks - 1 - task / streams) * call.rows;
    tally.add(kernels.forward(call, task % streams, row, std::min(call.rows, rows - row), own_room()));
  });
  return tally.sum();
}

Moved backward(const Call& given, const Isa& isa) {
  Call call = given;
  const Kernels& kernels = kernels_for(call, isa);
  const std::int64_t rows = call.stacked(), streams = call.streams(), lanes = kernels.lanes;
  const std::int64_t blocks = ceil_div(rows, lanes), key_blocks = ceil_div(call.n_k, call.cols);
  Tally tally;
  share_out(blocks * streams, call.threads, [&](std::int64_t task) {
    const std::int64_t row = task / streams * lanes;
    tally.add(kernels.deltas(call, task % streams, row, std::min(lanes, rows - row), own_room()));
  });
  const std::size_t sum_bytes = call.number == Number::kFloat64 ? 8 : 4;
  const std::unique_ptr<char[]> panels(new char[streams * blocks * lanes * call.d * sum_bytes + 64]);
  Progress progress(blocks * streams);
  call.dq_panels = panels.get() + (64 - reinterpret_cast<std::uintptr_t>(panels.get()) % 64);
  call.progress = &progress;
  // As many streams at a time as there are threads: then no thread waits for another's share of dQ, if there are enough
  // streams. Which ones are taken together changes no sum.
  const std::int64_t wave = std::max<std::int64_t>(1, std::min<std::int64_t>(call.threads, streams));
  share_out(streams * key_blocks, call.threads, [&](std::int64_t task) {
    const std::int64_t first = task / (wave * key_blocks) * wave, width = std::min(wave, streams - first);
    const std::int64_t within = task - first * key_blocks, key = within / width * call.cols;
    try {
      tally.add(kernels.backward(call, first + within % width, key, std::min(call.cols, call.n_k - key), own_room()));
    } catch (...) {
      progress.stop();
      throw;
    }
  });
  return tally.sum();
}

}  // namespace redblue
