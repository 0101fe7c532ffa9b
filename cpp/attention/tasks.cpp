// The tasks of `flash` forward and of `flash_onepass` backward, and their order.
#include <algorithm>

#include "attention/tasks.h"

namespace redblue {
namespace {

// The work of each block of rows of each plane, as its number of pairs of a row (or a pattern's panel) and a key.
std::vector<std::int64_t> work_of_blocks(const Call& call, std::int64_t blocks) {
  const Pattern& pattern = call.pattern;
  if (!pattern.starts) {
    std::vector<std::int64_t> work(blocks);
    for (std::int64_t block = 0; block < blocks; block++) {
      const std::int64_t row = block * call.rows, stop = std::min(call.stacked(), row + call.rows);
      const std::int64_t low = std::max<std::int64_t>(0, row / call.group + call.first);
      const std::int64_t high = std::min(call.n_k, (stop - 1) / call.group + call.end);
      work[block] = std::max<std::int64_t>(0, high - low) * (stop - row);
    }
    return work;
  }
  std::vector<std::int64_t> work(pattern.planes_count * blocks);
  for (std::int64_t plane = 0; plane < pattern.planes_count; plane++)
    for (std::int64_t panel = 0; panel < pattern.panels; panel++) {
      const std::int64_t* const at = pattern.starts + plane * pattern.panels + panel;
      for (const Run* run = pattern.runs + at[0]; run < pattern.runs + at[1]; run++)
        work[plane * blocks + panel / (call.rows / pattern.panel)] += run->stop - run->start;
    }
  return work;
}

}  // namespace

bool is_few(const Call& call, const Kernels& kernels, std::int64_t rows) {
  return rows <= kernels.few && call.q.column == 1 && call.k.column == 1 && call.v.column == 1;
}

std::int64_t offset_of(const Call& call, const Array& array, std::int64_t stream) {
  std::int64_t offset = stream % call.kv_heads * array.head;
  stream /= call.kv_heads;
  for (int l = call.leads - 1; l >= 0; l--) {
    offset += stream % call.lead_sizes[l] * array.lead[l];
    stream /= call.lead_sizes[l];
  }
  return offset;
}

std::int64_t plane_of(const Call& call, std::int64_t stream) {
  const Array& planes = call.pattern.planes;
  return planes.data ? reinterpret_cast<const std::int64_t*>(planes.data)[offset_of(call, planes, stream)] : 0;
}

void prepare_forward(Call& call, const Kernels& kernels) {
  if (call.pattern.starts) call.rows = ceil_div(call.rows, call.pattern.panel) * call.pattern.panel;  // whole panels
  call.few = is_few(call, kernels, std::min(call.rows, call.stacked()));
}

std::optional<BlockVisits> visits_of(const Call& call) {
  if (!call.pattern.starts) return std::nullopt;
  return std::optional<BlockVisits>(std::in_place, call.pattern, call.n_k, call.cols);
}

void prepare_backward(Call& call, const Kernels& kernels, const std::optional<BlockVisits>& visits) {
  call.few = is_few(call, kernels, call.stacked());
  if (visits) {
    call.visits = &*visits;
    call.order = visits->order;
    return;
  }
  // width: the most keys that a panel attends. They lie in at most width / cols + 2 consecutive blocks.
  const std::int64_t width =
      std::clamp<std::int64_t>(call.end - call.first, 0, call.n_k) + ceil_div(kernels.lanes, call.group);
  const std::int64_t key_blocks = ceil_div(call.n_k, call.cols);
  call.order = {key_blocks, std::min(key_blocks, width / call.cols + 2)};
}

std::int64_t pieces_of(const Call& call) {
  return std::clamp<std::int64_t>(call.pieces, 1, std::max<std::int64_t>(1, call.n_k));
}

// Tasks of equal work that share the keys of one stream stay together (1 % faster than interleaving streams; measured,
// Zen 5).
std::vector<ListedTask> blocks_of_rows(const Call& call, std::int64_t pieces) {
  const std::int64_t rows = call.stacked(), blocks = ceil_div(rows, call.rows), streams = call.streams();
  const std::vector<std::int64_t> by_block = work_of_blocks(call, blocks);
  struct Block {
    std::int64_t stream, block, work;
  };
  std::vector<Block> sorted;
  sorted.reserve(streams * blocks);
  for (std::int64_t stream = 0; stream < streams; stream++) {
    const std::int64_t plane = plane_of(call, stream);
    for (std::int64_t block = 0; block < blocks; block++)
      sorted.push_back({stream, block, by_block[plane * blocks + block]});
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const Block& a, const Block& b) { return a.work > b.work; });
  std::vector<ListedTask> tasks;
  tasks.reserve(sorted.size() * pieces);
  for (const auto& [stream, block, work] : sorted)
    for (std::int64_t piece = 0; piece < pieces; piece++)
      tasks.push_back({stream, block * call.rows, std::min(call.rows, rows - block * call.rows), piece});
  return tasks;
}

// Tasks of as many streams as there are threads are interleaved: with enough streams, no thread waits for another
// thread's update of dQ. The grouping does not change results.
std::vector<ListedTask> blocks_of_keys(const Call& call) {
  const std::int64_t streams = call.streams(), key_blocks = ceil_div(call.n_k, call.cols);
  const std::int64_t wave = std::max<std::int64_t>(1, std::min<std::int64_t>(call.threads, streams));
  std::vector<ListedTask> tasks;
  tasks.reserve(streams * key_blocks);
  for (std::int64_t first = 0; first < streams; first += wave)
    for (std::int64_t place = 0; place < key_blocks; place++)
      for (std::int64_t stream = first; stream < std::min(first + wave, streams); stream++) {
        const std::int64_t key = call.order.at(place) * call.cols;
        tasks.push_back({stream, key, std::min(call.cols, call.n_k - key), 0});
      }
  return tasks;
}

std::vector<ListedTask> list_tasks(const Call& original, const Isa& isa, bool backward) {
  Call call = original;
  const Kernels& kernels = kernels_for(call, isa);
  if (!backward) {
    prepare_forward(call, kernels);
    return blocks_of_rows(call, pieces_of(call));
  }
  const std::optional<BlockVisits> visits = visits_of(call);
  prepare_backward(call, kernels, visits);
  return blocks_of_keys(call);
}

}  // namespace redblue
