// The passes of the schedules that write P: allocates the memory of P, runs the phases and distributes their blocks.
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <vector>

#include "attention/tasks.h"

namespace redblue {
namespace {

// Streams are processed together up to this many bytes of P, so that threads wait less often.
constexpr std::int64_t kTogether = 32 << 20;

std::int64_t up(std::int64_t count, std::int64_t multiple) { return ceil_div(count, multiple) * multiple; }

// The padded number of keys of a panel of P. Without padding, panels whose addresses differ by a power of two would
// share few sets of the cache.
std::int64_t padded(std::int64_t keys, std::int64_t bytes_of_key, std::int64_t slice) {
  constexpr std::int64_t kApart = 2048;  // half of one way of an L1 cache
  return keys * bytes_of_key % kApart ? keys : keys + slice;
}

// One allocation, divided into pieces that begin at cache lines.
class Pieces {
 public:
  std::size_t add(std::int64_t bytes) {
    const std::size_t at = size_;
    size_ += up(bytes, 64);
    return at;
  }
  void allocate(std::int64_t times) { memory_.reset(new char[size_ * times + 64]); }
  char* at(std::int64_t time, std::size_t piece) const {
    char* const first = memory_.get() + (64 - reinterpret_cast<std::uintptr_t>(memory_.get()) % 64);
    return first + time * size_ + piece;
  }

 private:
  std::size_t size_ = 0;
  std::unique_ptr<char[]> memory_;
};

// Rounds the tile edges of a call so that every slice and every block consists of whole panels.
SpillTiles fitted(const Call& call, const Kernels& kernels, std::int64_t vector, std::int64_t& lanes) {
  SpillTiles t = call.spilled;
  const std::int64_t rows = std::max<std::int64_t>(1, call.stacked()), keys = std::max<std::int64_t>(1, call.n_k);
  for (std::int64_t* edge : {&t.rows, &t.cols, &t.depth, &t.out_rows, &t.out_cols, &t.dk_rows, &t.dk_cols, &t.dv_rows,
                             &t.dv_cols, &t.chunk})
    if (*edge < 1) throw std::invalid_argument("tile edges must be at least 1");
  // The bits of a listed mask are stored for whole panels.
  const bool whole_blocks = t.out_rows % kernels.lanes == 0 || t.out_rows >= rows;
  const bool whole = call.pattern.starts || (t.depth % kernels.lanes == 0 && whole_blocks);
  lanes = whole ? kernels.lanes : vector;
  t.depth = up(t.depth, lanes);
  t.rows = up(std::min(t.rows, rows), t.depth);
  t.cols = up(std::min(t.cols, keys), t.depth);
  t.out_rows = up(std::min(t.out_rows, rows), lanes);
  t.chunk = up(std::min(t.chunk, rows), t.rows);
  return t;
}

class Spilling {
 public:
  Spilling(const Call& call, const Isa& isa, bool forward) : call_(call), kernels_(kernels_for(call, isa)) {
    const std::size_t sum = bytes_of_sum(call), packed = kernels_.packed_bytes;
    tiles_ = fitted(call, kernels_, isa.vector_bytes / sum, lanes_);
    const std::int64_t rows = call.stacked(), chunk = std::min(tiles_.chunk, up(rows, lanes_));
    chunks_ = std::max<std::int64_t>(1, ceil_div(rows, tiles_.chunk));
    keys_ = padded(up(call.n_k, 2), lanes_ * packed, tiles_.depth);
    slices_ = ceil_div(call.n_k, tiles_.depth), blocks_ = ceil_div(call.n_k, tiles_.cols);
    const std::int64_t area = chunk * keys_;
    p_ = pieces_.add(area * packed);
    live_ = pieces_.add(ceil_div(chunk, tiles_.depth) * slices_);
    if (forward) tops_ = pieces_.add(chunk * blocks_ * sum);
    begins_ = !forward;
    if (begins_) begun_ = pieces_.add(slices_);
    has_slopes_ = !forward && call.softcap;
    if (has_slopes_) slopes_ = pieces_.add(area * sum);
    const bool exact = call.number == Number::kFloat32 || call.number == Number::kFloat64;
    keeps_ = !forward && chunks_ > 1 && !exact;
    if (keeps_) dk_ = pieces_.add(call.n_k * call.d * sum), dv_ = pieces_.add(call.n_k * call.d_v * sum);
    const std::int64_t streams = std::max<std::int64_t>(1, call.streams());
    at_once_ = std::clamp<std::int64_t>(kTogether / std::max<std::int64_t>(1, area * packed), 1, streams);
    pieces_.allocate(at_once_);
  }

  // Calls each(row, rows) for every chunk of rows, for at_once_ streams at a time.
  template <class Each>
  void each_chunk(Each each) {
    const std::int64_t rows = call_.stacked(), streams = call_.streams();
    for (std::int64_t first = 0; first < streams; first += at_once_) {
      spills_.clear();
      for (std::int64_t i = 0; i < std::min(at_once_, streams - first); i++) {
        spills_.push_back(make(first + i, i));
        if (spills_.back().begun) std::fill_n(spills_.back().begun, slices_, 0);
      }
      for (std::int64_t c = 0; c < chunks_; c++) {
        for (Spill& spill : spills_) {
          spill.row = c * tiles_.chunk;
          spill.rows = std::min(tiles_.chunk, rows - spill.row);
          spill.last = c + 1 == chunks_;
        }
        each(spills_.front().row, spills_.front().rows);
        for (Spill& spill : spills_) remember(spill);
      }
    }
  }
  // Runs one phase on `count` rows or keys of the chunk, from `first` on, in blocks of `edge`.
  void phase(Phase phase, std::int64_t first, std::int64_t count, std::int64_t edge) {
    const std::int64_t blocks = ceil_div(count, edge), streams = spills_.size();
    share_out(blocks * streams, call_.threads, [&](std::int64_t task) {
      const std::int64_t at = task / streams * edge;
      tally_.add(
          kernels_.spilled(call_, spills_[task % streams], phase, first + at, std::min(edge, count - at), own_arena()));
    });
  }
  const SpillTiles& tiles() const { return tiles_; }
  Moved moved() const { return tally_.sum(); }

 private:
  Spill make(std::int64_t stream, std::int64_t place) const {
    Spill spill{tiles_};
    const auto at = [&](std::size_t piece) { return pieces_.at(place, piece); };
    spill.stream = stream, spill.lanes = lanes_, spill.depth = tiles_.depth;
    spill.keys = keys_, spill.slices = slices_, spill.blocks = blocks_;
    spill.p = at(p_), spill.live = reinterpret_cast<std::uint8_t*>(at(live_)), spill.tops = at(tops_);
    if (begins_) spill.begun = reinterpret_cast<std::uint8_t*>(at(begun_));
    if (has_slopes_) spill.slopes = at(slopes_);
    if (keeps_) spill.dk = at(dk_), spill.dv = at(dv_);
    return spill;
  }
  void remember(Spill& spill) const {
    if (!spill.begun || spill.last) return;
    for (std::int64_t r = 0; r < ceil_div(spill.rows, spill.depth); r++)
      for (std::int64_t k = 0; k < slices_; k++) spill.begun[k] |= spill.live[r * slices_ + k];
  }

  const Call& call_;
  const Kernels& kernels_;
  SpillTiles tiles_;
  std::int64_t lanes_ = 1, chunks_ = 1, keys_ = 0, slices_ = 0, blocks_ = 0, at_once_ = 1;
  Pieces pieces_;
  std::size_t p_ = 0, live_ = 0, tops_ = 0, begun_ = 0, slopes_ = 0, dk_ = 0, dv_ = 0;
  bool begins_ = false, has_slopes_ = false, keeps_ = false;
  std::vector<Spill> spills_;
  Tally tally_;
};

}  // namespace

Moved spilled_forward(const Call& call, const Isa& isa) {
  Spilling spilling(call, isa, true);
  const SpillTiles& t = spilling.tiles();
  spilling.each_chunk([&](std::int64_t row, std::int64_t rows) {
    spilling.phase(Phase::kScores, row, rows, t.rows);
    spilling.phase(Phase::kOutputs, row, rows, t.out_rows);
  });
  return spilling.moved();
}

Moved spilled_backward(const Call& call, const Isa& isa) {
  Spilling spilling(call, isa, false);
  const SpillTiles& t = spilling.tiles();
  spilling.each_chunk([&](std::int64_t row, std::int64_t rows) {
    spilling.phase(Phase::kDeltas, row, rows, t.rows);
    spilling.phase(Phase::kWeights, row, rows, t.rows);
    if (t.stays) {
      spilling.phase(Phase::kBoth, 0, call.n_k, t.cols);
    } else {
      spilling.phase(Phase::kValues, 0, call.n_k, t.dv_rows);
      spilling.phase(Phase::kProducts, row, rows, t.rows);
    }
    spilling.phase(Phase::kQueries, row, rows, t.out_rows);
    spilling.phase(Phase::kKeys, 0, call.n_k, t.dk_rows);
  });
  return spilling.moved();
}

}  // namespace redblue
