// Symmetries of a graph: renumberings of its nodes that preserve parents, words and inputs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "pebble/task.h"

namespace redblue {

// A group of at most `most` symmetries of the graph. If the graph has more, the group contains the symmetries that fix
// the first few nodes, with as few fixed nodes as possible.
template <class Bits>
class PebbleSymmetries {
 public:
  PebbleSymmetries(const PebbleBoardBits<Bits>& board, std::size_t most) : board_(board), n_(board.n), most_(most) {
    refine();
    for (fixed_ = 0; fixed_ <= n_; ++fixed_) {
      symmetries_.clear();
      tried_ = 0;
      image_.assign(n_, 0);
      if (extend(0, 0)) return;
    }
    symmetries_.clear();
  }

  const std::vector<Renumbering>& list() const { return symmetries_; }

 private:
  // Colour refinement: splits colours by the colours of parents and children until nothing changes. No symmetry
  // exchanges nodes of different colours.
  void refine() {
    colour_.assign(n_, 0);
    for (std::size_t colours = 0;;) {
      std::map<std::vector<std::int64_t>, int> seen;
      std::vector<int> next(n_);
      for (int v = 0; v < n_; ++v) {
        std::vector<std::int64_t> key{colour_[v], board_.task.words[v], board_.task.blue[v]}, around;
        for (const auto* neighbours : {&board_.parents, &board_.children}) {
          around.clear();
          each((*neighbours)[v], [&](int w) { around.push_back(colour_[w]); });
          std::sort(around.begin(), around.end());
          key.push_back(-1);
          key.insert(key.end(), around.begin(), around.end());
        }
        next[v] = seen.emplace(std::move(key), int(seen.size())).first->second;
      }
      colour_ = next;
      if (seen.size() == colours) return;
      colours = seen.size();
    }
  }

  // Extends a partial symmetry that maps nodes 0 .. v - 1 to `taken`. Returns false if there are too many symmetries or
  // attempts.
  bool extend(int v, Bits taken) {
    if (v == n_) {
      symmetries_.push_back(image_);
      return symmetries_.size() <= most_;
    }
    if (++tried_ > 200000) return false;
    Bits parents = 0;
    each(board_.parents[v], [&](int p) { parents |= bit<Bits>(image_[p]); });
    for (int w = 0; w < n_; ++w) {
      if (taken >> w & 1 || colour_[w] != colour_[v] || board_.parents[w] != parents || (v < fixed_ && w != v))
        continue;
      image_[v] = std::uint8_t(w);
      if (!extend(v + 1, taken | bit<Bits>(w))) return false;
    }
    return true;
  }

  const PebbleBoardBits<Bits>& board_;
  int n_, fixed_ = 0;
  std::size_t most_;
  std::int64_t tried_ = 0;
  std::vector<int> colour_;
  Renumbering image_;
  std::vector<Renumbering> symmetries_;
};

template <class Bits>
Bits renumbered(Bits set, const Renumbering& numbers) {
  Bits image = 0;
  each(set, [&](int v) { image |= bit<Bits>(numbers[v]); });
  return image;
}

}  // namespace redblue
