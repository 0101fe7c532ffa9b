// Divides each pass into tasks and runs them on the pool.
#include "attention/call.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "attention/tasks.h"
#include "base/share_out.h"

namespace redblue {
namespace {

// Returns the call with the query heads of a key head as another leading dimension, so that a stream is one query head.
Call unstacked(const Call& stacked) {
  Call call = stacked;
  call.pattern = stacked.by_query;
  const auto unstack = [&](Array& array) {
    array.lead[call.leads] = array.head;
    array.head *= call.group;
  };
  for (Array* array : {&call.q, &call.out, &call.lse, &call.dout, &call.dq, &call.dlse, &call.delta, &call.dbias,
                       &call.pattern.planes})
    unstack(*array);
  call.each([&](const char*, auto& option) {
    if constexpr (std::is_same_v<decltype(option), Array&>) unstack(option);
  });
  call.lead_sizes[call.leads++] = call.group;
  call.group = 1;
  return call;
}

void bias_gradient(const Call& stacked, const Kernels& kernels) {
  const Call call = unstacked(stacked);
  std::map<std::int64_t, std::vector<std::int64_t>> sharing;  // from offset in dbias to the streams that share it
  for (std::int64_t stream = 0; stream < call.streams(); stream++)
    sharing[offset_of(call, call.dbias, stream)].push_back(stream);
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
    kernels.bias_gradient(call, streams.data(), streams.size(), piece, own_arena());
  });
}

// Distributes lists (of the keys of each query, or the queries of each key) over the threads, in parts with about
// equally many pairs. The parts depend only on the lists.
template <class Work>
void share_lists(const Call& call, std::int64_t count, bool by_key, Work work) {
  constexpr std::int64_t kParts = 128, kOwn = 8;  // kOwn: the fixed cost of a list, in pairs
  struct Part {
    std::int64_t stream, first, stop;
  };
  std::vector<Part> parts;
  for (std::int64_t stream = 0; stream < call.streams(); stream++) {
    const std::int64_t plane = plane_of(call, stream);
    const Edges::Lists lists = by_key ? call.edges.of_keys(plane) : call.edges.of_queries(plane);
    const std::int64_t most = (lists.starts[count] - lists.starts[0] + kOwn * count) / kParts + 1;
    for (std::int64_t first = 0, cost = 0, i = 0; i < count; i++) {
      cost += lists.count(i) + kOwn;
      if (cost < most && i + 1 < count) continue;
      parts.push_back({stream, first, i + 1});
      first = i + 1, cost = 0;
    }
  }
  share_out(parts.size(), call.threads, [&](std::int64_t task) {
    work(parts[task].stream, parts[task].first, parts[task].stop);
  });
}

Moved gather_forward(const Call& call, const Kernels& kernels) {
  Tally tally;
  share_lists(call, call.n_q, false, [&](std::int64_t stream, std::int64_t first, std::int64_t stop) {
    tally.add(kernels.gather_forward(call, stream, first, stop, own_arena()));
  });
  return tally.sum();
}

Moved gather_backward(const Call& call, const Kernels& kernels) {
  Tally tally;
  share_lists(call, call.n_q, false, [&](std::int64_t stream, std::int64_t first, std::int64_t stop) {
    tally.add(kernels.gather_queries(call, stream, first, stop, own_arena()));
  });
  share_lists(call, call.n_k, true, [&](std::int64_t stream, std::int64_t first, std::int64_t stop) {
    tally.add(kernels.gather_keys(call, stream, first, stop, own_arena()));
  });
  return tally.sum();
}

// Backward by the schedule `flash`: a pass for deltas and dQ, then a pass for dK and dV.
Moved two_passes(Call call, const Kernels& kernels) {
  if (call.pattern.starts) call.rows = ceil_div(call.rows, call.pattern.panel) * call.pattern.panel;  // whole panels
  const std::int64_t streams = call.streams(), key_blocks = ceil_div(call.n_k, call.cols);
  Tally tally;
  const std::vector<ListedTask> tasks = blocks_of_rows(call, 1);
  share_out(std::int64_t(tasks.size()), call.threads, [&](std::int64_t number) {
    const auto& [stream, row, count, piece] = tasks[number];
    tally.add(kernels.queries(call, stream, row, count, own_arena()));
  });
  std::optional<BlockVisits> visits;
  if (call.pattern.starts) call.visits = &visits.emplace(call.pattern, call.n_k, call.cols);
  share_out(streams * key_blocks, call.threads, [&](std::int64_t task) {
    const std::int64_t key = task / streams * call.cols;
    tally.add(kernels.backward(call, task % streams, key, std::min(call.cols, call.n_k - key), own_arena()));
  });
  return tally.sum();
}

}  // namespace

ByKey by_key(const std::int64_t* query_starts, const std::int32_t* keys, std::int64_t n_q, std::int64_t n_k) {
  ByKey result{std::vector<std::int64_t>(n_k + 1), std::vector<std::int32_t>(query_starts[n_q])};
  for (std::int64_t x = 0; x < query_starts[n_q]; x++) result.starts[keys[x] + 1]++;
  for (std::int64_t j = 0; j < n_k; j++) result.starts[j + 1] += result.starts[j];
  std::vector<std::int64_t> place = result.starts;
  for (std::int64_t i = 0; i < n_q; i++)
    for (std::int64_t x = query_starts[i]; x < query_starts[i + 1]; x++)
      result.queries[place[keys[x]]++] = std::int32_t(i);
  return result;
}

BlockVisits::BlockVisits(const Pattern& pattern, std::int64_t n_k, std::int64_t cols) {
  order.blocks = ceil_div(n_k, cols);
  starts_.resize(pattern.planes_count * order.blocks + 1);
  // Calls use(plane, panel) for each panel, with the blocks that it attends, in ascending order, in `met`.
  std::vector<std::int64_t> met;
  const auto each = [&](auto use) {
    for (std::int64_t plane = 0; plane < pattern.planes_count; plane++)
      for (std::int64_t panel = 0; panel < pattern.panels; panel++) {
        const std::int64_t* const at = pattern.starts + plane * pattern.panels + panel;
        met.clear();
        for (const Run* run = pattern.runs + at[0]; run < pattern.runs + at[1]; run++)
          for (std::int64_t block = std::max(met.empty() ? 0 : met.back() + 1, run->start / cols);
               block * cols < run->stop; block++)
            met.push_back(block);
        use(plane, panel);
      }
  };
  each([&](std::int64_t plane, std::int64_t) {
    order.fronts = std::max(order.fronts, std::int64_t(met.size()));
    for (std::int64_t block : met) starts_[plane * order.blocks + block + 1]++;
  });
  for (std::size_t i = 1; i < starts_.size(); i++) starts_[i] += starts_[i - 1];
  list_.resize(starts_.back());
  std::vector<std::int64_t> place = starts_;
  each([&](std::int64_t plane, std::int64_t panel) {
    std::stable_sort(met.begin(), met.end(), [&](auto a, auto b) { return a % order.fronts < b % order.fronts; });
    const std::int64_t last = std::int64_t(met.size()) - 1;
    for (std::int64_t i = 0; i <= last; i++)
      list_[place[plane * order.blocks + met[i]]++] = {panel, i, i == 0, i == last};
  });
}

Moved forward(const Call& original, const Isa& isa) {
  Call call = original;
  const Kernels& kernels = kernels_for(call, isa);
  if (call.edges.query_starts) return gather_forward(call, kernels);
  if (call.spilled.rows) return spilled_forward(call, isa);
  prepare_forward(call, kernels);
  const std::int64_t rows = call.stacked(), blocks = ceil_div(rows, call.rows), streams = call.streams();
  Tally tally;
  const std::int64_t pieces = pieces_of(call);
  const std::int64_t width = call.d_v + 2, keys = ceil_div(call.n_k, pieces);
  const std::size_t sum_bytes = bytes_of_sum(call), piece_bytes = streams * rows * width * sum_bytes;
  const std::unique_ptr<char[]> partials(pieces > 1 ? new char[pieces * piece_bytes] : nullptr);
  const std::vector<ListedTask> tasks = blocks_of_rows(call, pieces);
  share_out(std::int64_t(tasks.size()), call.threads, [&](std::int64_t number) {
    const auto& [stream, row, count, piece] = tasks[number];
    const Piece part{row, count, piece * keys, keys};
    void* const partial = partials ? partials.get() + piece * piece_bytes : nullptr;
    tally.add(kernels.forward(call, stream, part, partial, own_arena()));
  });
  std::vector<Partial> parts;
  for (std::int64_t piece = 0; partials && piece < pieces; piece++)
    parts.push_back({partials.get() + piece * piece_bytes, rows, 0});
  if (partials)
    share_out(blocks * streams, call.threads, [&](std::int64_t task) {
      const std::int64_t row = task / streams * call.rows, count = std::min(call.rows, rows - row);
      tally.add(kernels.merge(call, task % streams, row, count, parts.data(), pieces, own_arena()));
    });
  return tally.sum();
}

Moved backward(const Call& original, const Isa& isa) {
  Call call = original;
  const Kernels& kernels = kernels_for(call, isa);
  if (call.edges.query_starts) return gather_backward(call, kernels);
  if (call.spilled.rows || call.dq_cols) {
    call.few = !call.spilled.rows && is_few(call, kernels, call.stacked());
    const Moved moved = call.dq_cols ? two_passes(call, kernels) : spilled_backward(call, isa);
    if (call.dbias.data) bias_gradient(call, kernels);
    return moved;
  }
  const std::int64_t rows = call.stacked(), streams = call.streams(), lanes = kernels.lanes;
  const std::int64_t blocks = ceil_div(rows, lanes);
  const std::optional<BlockVisits> visits = visits_of(call);
  prepare_backward(call, kernels, visits);
  Tally tally;
  share_out(blocks * streams, call.threads, [&](std::int64_t task) {
    const std::int64_t row = task / streams * lanes;
    tally.add(kernels.deltas(call, task % streams, row, std::min(lanes, rows - row), own_arena()));
  });
  const std::size_t sum_bytes = bytes_of_sum(call);
  const std::unique_ptr<char[]> panels(new char[streams * blocks * lanes * call.d * sum_bytes + 64]);
  Progress progress(blocks * streams);
  call.dq_panels = panels.get() + (64 - reinterpret_cast<std::uintptr_t>(panels.get()) % 64);
  call.progress = &progress;
  const std::vector<ListedTask> tasks = blocks_of_keys(call);
  share_out(std::int64_t(tasks.size()), call.threads, [&](std::int64_t number) {
    const auto& [stream, key, count, piece] = tasks[number];
    try {
      tally.add(kernels.backward(call, stream, key, count, own_arena()));
    } catch (...) {
      progress.stop();
      throw;
    }
  });
  if (call.dbias.data) bias_gradient(call, kernels);
  return tally.sum();
}

}  // namespace redblue
