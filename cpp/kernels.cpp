// Which tasks a pass consists of, and who does them.
#include "kernels.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

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

// The same call with the query heads of a key head as one more leading dimension: a stream is then one query head.
Call unstacked(const Call& given) {
  Call call = given;
  Array* const by_query[] = {&call.q,    &call.out, &call.lse,   &call.dout, &call.dq,
                             &call.dlse, &call.delta, &call.bias, &call.dbias};
  for (Array* array : by_query) {
    array->lead[call.leads] = array->head;
    array->head *= call.group;
  }
  call.lead_sizes[call.leads++] = call.group;
  call.group = 1;
  return call;
}

// Where the bias's gradient of a stream begins.
std::int64_t dbias_offset(const Call& call, std::int64_t stream) {
  std::int64_t offset = stream % call.kv_heads * call.dbias.head;
  stream /= call.kv_heads;
  for (int l = call.leads - 1; l >= 0; l--) {
    offset += stream % call.lead_sizes[l] * call.dbias.lead[l];
    stream /= call.lead_sizes[l];
  }
  return offset;
}

void bias_gradient(const Call& given, const Kernels& kernels) {
  const Call call = unstacked(given);
  std::map<std::int64_t, std::vector<std::int64_t>> sharing;  // streams by where their gradients add up
  for (std::int64_t stream = 0; stream < call.streams(); stream++)
    sharing[dbias_offset(call, stream)].push_back(stream);
  std::vector<const std::vector<std::int64_t>*> slices;
  for (const auto& [offset, streams] : sharing) slices.push_back(&streams);
  constexpr std::int64_t kKeys = 192;
  const std::int64_t rows = call.dbias.row ? kernels.lanes : std::max<std::int64_t>(1, call.n_q);
  const std::int64_t keys = call.dbias.column ? kKeys : std::max<std::int64_t>(1, call.n_k);
  const std::int64_t row_pieces = call.dbias.row ? ceil_div(call.n_q, rows) : 1;
  const std::int64_t key_pieces = call.dbias.column ? ceil_div(call.n_k, keys) : 1;
  share_out(row_pieces * key_pieces * std::int64_t(slices.size()), call.threads, [&](std::int64_t task) {
    const auto& streams = *slices[task / (row_pieces * key_pieces)];
    const std::int64_t row = task / key_pieces % row_pieces * rows, key = task % key_pieces * keys;
    const Piece piece{row, std::min(rows, call.n_q - row), key, std::min(keys, call.n_k - key)};
    kernels.bias_gradient(call, streams.data(), streams.size(), piece, own_room());
  });
}

}  // namespace

Moved forward(const Call& call, const Isa& isa) {
  const Kernels& kernels = kernels_for(call, isa);
  const std::int64_t rows = call.stacked(), blocks = ceil_div(rows, call.rows), streams = call.streams();
  Tally tally;
  const std::int64_t pieces = std::clamp<std::int64_t>(call.pieces, 1, std::max<std::int64_t>(1, call.n_k));
  const std::int64_t width = call.d_v + 2, keys = ceil_div(call.n_k, pieces);
  const std::size_t sum_bytes = call.number == Number::kFloat64 ? 8 : 4, piece_bytes = streams * rows * width * sum_bytes;
  const std::unique_ptr<char[]> partials(pieces > 1 ? new char[pieces * piece_bytes] : nullptr);
  // Late rows first: under a causal mask they take longest.
  share_out(pieces * blocks * streams, call.threads, [&](std::int64_t task) {
    const std::int64_t piece = task % pieces, row = (blocks - 1 - task / pieces / streams) * call.rows;
    const Piece part{row, std::min(call.rows, rows - row), piece * keys, keys};
    void* const partial = partials ? partials.get() + piece * piece_bytes : nullptr;
    tally.add(kernels.forward(call, task / pieces % streams, part, partial, own_room()));
  });
  if (partials)
    share_out(blocks * streams, call.threads, [&](std::int64_t task) {
      const std::int64_t row = task / streams * call.rows, count = std::min(call.rows, rows - row);
      tally.add(kernels.merge(call, task % streams, row, count, partials.get(), pieces, own_room()));
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
  if (call.dbias.data) bias_gradient(call, kernels);
  return tally.sum();
}

}  // namespace redblue
