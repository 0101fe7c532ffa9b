// Attention on the CPU: the struct of a call, and the two passes. Independent of Python and PyTorch.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "attention/options.h"
#include "vector/isa.h"
#include "base/share_out.h"

namespace redblue {

// Consecutive keys that rows of one panel attend. bits: the index of the first key's word in Pattern::bits (one word
// per key, one bit per row), or -1 if every row attends every key.
struct Run {
  std::int64_t start, stop, bits;
};

// The attending pairs of query and key as lists, by query and by key; see redblue.kernels.cpu.mask_form. Each plane has
// n_q + 1 (by key: n_k + 1) starts. The lists of all planes lie in one array.
struct Edges {
  const std::int64_t *query_starts = nullptr, *key_starts = nullptr;  // null: the mask is not given as pairs
  const std::int32_t *keys = nullptr, *queries = nullptr;
  std::int64_t n_q = 0, n_k = 0;

  struct Lists {
    const std::int64_t* starts;
    const std::int32_t* all;
    const std::int32_t* list(std::int64_t i) const { return all + starts[i]; }
    std::int64_t count(std::int64_t i) const { return starts[i + 1] - starts[i]; }
    std::int64_t longest(std::int64_t first, std::int64_t stop) const {
      std::int64_t most = 0;
      for (std::int64_t i = first; i < stop; i++) most = std::max(most, count(i));
      return most;
    }
  };
  Lists of_queries(std::int64_t plane) const { return {query_starts + plane * (n_q + 1), keys}; }
  Lists of_keys(std::int64_t plane) const { return {key_starts + plane * (n_k + 1), queries}; }
};

// The transpose of lists by query: n_k + 1 starts, and the queries of each key in ascending order.
struct ByKey {
  std::vector<std::int64_t> starts;
  std::vector<std::int32_t> queries;
};
ByKey by_key(const std::int64_t* query_starts, const std::int32_t* keys, std::int64_t n_q, std::int64_t n_k);

// A mask other than a band: runs of keys for each of `panels` panels of `panel` stacked rows; see
// redblue.masks.lowered. A stream is one key/value head of one batch entry; `planes` (lead..., key/value heads) maps
// each stream to its lists.
struct Pattern {
  const std::int64_t* starts = nullptr;  // null: the mask is a band
  const Run* runs = nullptr;
  const std::uint64_t* bits = nullptr;
  Array planes;  // of int64
  std::int64_t panel = 1, panels = 0, planes_count = 1;
  bool scattered = false;  // the runs are short
};

// The order in which backward processes the blocks of keys. Blocks 0, fronts, 2 fronts, ... are the first wavefront,
// blocks 1, fronts + 1, ... the second. If no panel attends more than `fronts` consecutive blocks, the blocks of one
// wavefront share no panel, so threads do not wait for each other.
struct WavefrontOrder {
  std::int64_t blocks = 1, fronts = 1;
  // The block at position `place` of the order.
  std::int64_t at(std::int64_t place) const {
    const std::int64_t size = blocks / fronts, longer = blocks % fronts, head = longer * (size + 1);
    if (place < head) return place / (size + 1) + place % (size + 1) * fronts;
    return longer + (place - head) / size + (place - head) % size * fronts;
  }
  // How many of the blocks low .. high precede `block` in the order.
  std::int64_t before(std::int64_t block, std::int64_t low, std::int64_t high) const {
    if (fronts >= blocks) return block - low;
    std::int64_t count = 0;
    for (std::int64_t front = 0; front <= block % fronts; front++) {
      const std::int64_t stop = front < block % fronts ? high + 1 : block;
      const std::int64_t first = low + ((front - low) % fronts + fronts) % fronts;
      if (first < stop) count += (stop - first - 1) / fronts + 1;
    }
    return count;
  }
};

// A step of backward: one block of keys with one panel of rows that attends some of them. before: how many of the
// panel's blocks come earlier.
struct BlockVisit {
  std::int64_t panel, before;
  bool first, last;  // whether the block is the panel's first or last one
};

// Lists the visits of each block of `cols` keys, for each plane of a pattern.
class BlockVisits {
 public:
  BlockVisits(const Pattern& pattern, std::int64_t n_k, std::int64_t cols);
  WavefrontOrder order;
  struct Range {
    const BlockVisit *first, *stop;
    const BlockVisit* begin() const { return first; }
    const BlockVisit* end() const { return stop; }
  };
  Range of(std::int64_t plane, std::int64_t block) const {
    const std::int64_t* const at = starts_.data() + plane * order.blocks + block;
    return {list_.data() + at[0], list_.data() + at[1]};
  }

 private:
  std::vector<std::int64_t> starts_;
  std::vector<BlockVisit> list_;
};

// Number of key blocks already added to each row block's dQ; it orders the updates, so that results do not depend on
// the number of threads.
class Progress {
 public:
  explicit Progress(std::int64_t blocks) : done_(blocks) {}
  void reach(std::int64_t block, std::int64_t count) { done_[block].store(count, std::memory_order_release); }
  void wait(std::int64_t block, std::int64_t count) const {
    for (int tries = 0; done_[block].load(std::memory_order_acquire) != count; tries = std::min(tries + 1, 64)) {
      if (stopped_.load(std::memory_order_relaxed)) throw Stopped();
      if (tries == 64) std::this_thread::yield();  // the wait is too short for a sleep
    }
  }
  void stop() { stopped_ = true; }  // ends all waits

 private:
  std::vector<std::atomic<std::int64_t>> done_;
  std::atomic<bool> stopped_{false};
};

// Tile sizes of the schedules that write P to memory; see redblue.schedules. out_*: tiles of the output and, in
// backward, of dQ.
struct SpillTiles {
  std::int64_t rows = 0, cols = 1, depth = 1, out_rows = 1, out_cols = 1;  // rows = 0: no P is written
  std::int64_t dk_rows = 1, dk_cols = 1, dv_rows = 1, dv_cols = 1, chunk = 1;
  bool stays = false;  // whether queries stay in cache while P is computed; true for `hybrid`
};

// Paged K and V: key j of a stream is row j % size of page table[j / size]. k_step, v_step: elements from page to page.
struct Pages {
  const std::int64_t* table = nullptr;  // null: the keys lie in one array
  std::int64_t size = 1, k_step = 0, v_step = 0;
  std::int64_t v_in_k = -1;  // the column of K where V begins, if V is a slice of K; else -1
};

// softmax(cap tanh(scale Q K^T / cap) + bias, masked) V for every (lead..., key/value head). The g query heads that
// share a key/value head are stacked: row r is query r / g of head r % g, so that K and V are read once for all g
// heads. "Sums" are numbers of the accumulation type: float64 for float64 arrays, else float32.
struct Call : Options {
  Number number = Number::kFloat32;
  int leads = 0;
  std::int64_t lead_sizes[kMaxLead] = {};
  std::int64_t kv_heads = 1, group = 1, n_q = 0, n_k = 0, d = 1, d_v = 1;
  std::int64_t heads = 1;  // query heads of a batch entry, even if a stream holds only one of them

  Array q, k, v, out;     // forward writes out
  Array lse;              // of sums, (lead..., heads, n_q), contiguous; forward writes, backward reads
  Array dout, dq, dk, dv; // backward reads dout and writes the others
  Array dlse;             // of sums: the gradient of lse, if there is one
  Array delta;            // of sums, shaped like lse: backward writes row sums of dout * out, minus dlse

  std::int64_t first = 0, end = 0;        // the band: query i attends keys i + first .. i + end - 1
  Pattern pattern, by_query;              // if given, only its pairs of the band attend; by_query: with group 1
  Edges edges;                            // if given, only these pairs attend; `pattern` has their planes
  Pages pages;                            // forward: the pages of K and V, if they are paged
  Array dbias;                            // of sums; the stride is 0 along dimensions that are summed over

  // The plan: stacked queries and keys per tile. In forward the queries stay in cache, in backward the keys.
  std::int64_t rows = 64, cols = 64;
  std::int64_t dq_cols = 0;      // backward: keys per window of the separate pass for dQ; 0: no such pass
  std::int64_t pieces = 1;       // forward: parts of the keys (split-KV), if there are too few rows for all cores
  int threads = 1;
  bool few = false;              // few rows: both passes compute scores by decode.h, and so round alike
  SpillTiles spilled;            // the tiles of a schedule that writes P; rows = 0 for others

  std::int64_t streams() const {
    std::int64_t count = kv_heads;
    for (int i = 0; i < leads; i++) count *= lead_sizes[i];
    return count;
  }
  std::int64_t stacked() const { return n_q * group; }

  // Set by backward: dQ of each stream as panels of sums, and the progress that orders their updates.
  void* dq_panels = nullptr;
  Progress* progress = nullptr;
  const BlockVisits* visits = nullptr;  // null for a band
  WavefrontOrder order;
};

// The memory for P (or dS) of one chunk of a stream's rows, and the map of its attended slices. See spilled.h.
struct Spill {
  const SpillTiles& tiles;
  std::int64_t stream = 0, row = 0, rows = 0;  // the chunk
  bool last = true;                            // whether it is the stream's last chunk
  std::int64_t lanes = 1, depth = 1;           // rows of a panel; rows or keys of a slice
  std::int64_t keys = 0, slices = 0, blocks = 0;  // keys of a panel; its slices; its blocks of `cols` keys
  void* p = nullptr;                 // P, then dS: [panel][key][lane]
  void* slopes = nullptr;            // derivatives of the softcap, as sums in the same layout
  void* tops = nullptr;              // forward: maxima, as sums [panel][block of keys][lane]
  std::uint8_t* live = nullptr;      // [slice of rows][slice of keys]: whether any pair attends
  std::uint8_t* begun = nullptr;     // [slice of keys]: whether any pair of earlier chunks attends
  void *dk = nullptr, *dv = nullptr; // sums over the chunks so far; null: the arrays hold them

  // Whether any of these rows attends any of these keys, both rounded outwards to whole slices.
  bool meets(std::int64_t first, std::int64_t count, std::int64_t key, std::int64_t many) const {
    for (std::int64_t r = (first - row) / depth; r * depth < first - row + count; r++)
      for (std::int64_t k = key / depth; k * depth < key + many; k++)
        if (live[r * slices + k]) return true;
    return false;
  }
  bool has_begun(std::int64_t key, std::int64_t many) const {
    for (std::int64_t k = key / depth; k * depth < key + many; k++)
      if (begun[k]) return true;
    return false;
  }
};

// Words that a pass moved between its tiles and the arrays.
struct Moved {
  std::int64_t reads = 0, writes = 0;
};

// A task of a pass: `count` stacked rows (forward) or keys (backward) of a stream, beginning with `start`. Forward may
// split the keys into pieces.
struct ListedTask {
  std::int64_t stream, start, count, piece;
};

// The tasks of `flash` forward or of `flash_onepass` backward, in the order in which threads take them.
std::vector<ListedTask> list_tasks(const Call& call, const Isa& isa, bool backward);

// Throw std::bad_alloc if memory runs out, std::invalid_argument for a call that no kernel takes.
Moved forward(const Call& call, const Isa& isa);
Moved backward(const Call& call, const Isa& isa);

}  // namespace redblue
