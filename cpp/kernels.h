// Attention on the CPU: what a call consists of, and the passes over it. Knows neither Python nor torch.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "isa.h"
#include "pool.h"

namespace redblue {

enum class Number { kFloat32, kFloat64, kBfloat16, kFloat16, kBool };

constexpr int kMostLead = 9;  // eight of the caller's and, in unstacked calls, the query heads that share a key head

// An array (lead..., heads, rows, columns), read in place through its strides, which count elements.
struct Array {
  char* data = nullptr;  // null: not given
  std::int64_t lead[kMostLead] = {};
  std::int64_t head = 0, row = 0, column = 0;
};

// How many blocks of keys each block of rows has behind it: whoever adds to its dQ next waits here for its turn.
class Progress {
 public:
  explicit Progress(std::int64_t blocks) : done_(blocks) {}
  void reach(std::int64_t block, std::int64_t count) { done_[block].store(count, std::memory_order_release); }
  void wait(std::int64_t block, std::int64_t count) const {
    for (int tries = 0; done_[block].load(std::memory_order_acquire) != count; tries = std::min(tries + 1, 64)) {
      if (stopped_.load(std::memory_order_relaxed)) throw Stopped();
      if (tries == 64) std::this_thread::yield();  // one block of rows of the other thread away: not worth a sleep
    }
  }
  void stop() { stopped_ = true; }  // nobody waits for ever

 private:
  std::vector<std::atomic<std::int64_t>> done_;
  std::atomic<bool> stopped_{false};
};

// softmax(cap tanh(scale Q K^T / cap) + bias, masked) V for every (lead..., key/value head). The g query heads that share
// a key/value head are stacked: row r is query r / g of its g heads' r % g-th, so that K and V are read once for all.
// "Sums" are float64 for float64 arrays, else float32.
struct Call {
  Number number = Number::kFloat32;
  int leads = 0;
  std::int64_t lead_sizes[kMostLead] = {};
  std::int64_t kv_heads = 1, group = 1, n_q = 0, n_k = 0, d = 1, d_v = 1;

  Array q, k, v, out;     // forward writes out
  Array lse;              // of sums, (lead..., heads, n_q), contiguous; forward writes, backward reads
  Array dout, dq, dk, dv; // backward reads dout and writes the others
  Array dlse;             // of sums, the gradient of lse, if there is one
  Array delta;            // of sums, as lse: backward writes row sums of dout * out, less dlse

  double scale = 1, softcap = 0;          // softcap 0: none
  std::int64_t first = 0, end = 0;        // query i attends keys i + first .. i + end - 1
  Array bias;                             // strides 0 where it is broadcast
  Number bias_number = Number::kFloat32;  // kBool: true means attend
  Array dbias;                            // of sums; strides 0 where the gradient is summed
  Array sinks;                            // of sums, one per head
  double dropout = 0;                     // the share of probabilities that become 0; the others grow by 1 / (1 - it)
  std::uint64_t seed = 0;                 // which ones: a function of seed, position of row and key, and nothing else

  // The plan: queries (stacked) and keys of a tile; forward the queries stay, backward the keys.
  std::int64_t rows = 64, cols = 64;
  std::int64_t pieces = 1;       // forward: that the keys are cut into, where there are too few rows for all cores
  int threads = 1;

  std::int64_t streams() const {
    std::int64_t count = kv_heads;
    for (int i = 0; i < leads; i++) count *= lead_sizes[i];
    return count;
  }
  std::int64_t stacked() const { return n_q * group; }

  // Backward's own: per stream, panels of dQ in sums, and how many blocks of keys each block of rows has behind it.
  void* dq_panels = nullptr;
  Progress* progress = nullptr;
};

// Words that a pass moved between its tiles and the arrays; see redblue.count.
struct Moved {
  std::int64_t reads = 0, writes = 0;
};

// Throw std::bad_alloc where memory ends, std::invalid_argument for a call that no kernel takes.
Moved forward(const Call& call, const Isa& isa);
Moved backward(const Call& call, const Isa& isa);

}  // namespace redblue
