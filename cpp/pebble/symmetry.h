// Symmetries of a graph: renumberings of its nodes that preserve parents, words and inputs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "pebble/task.h"
#include "pebble/watch.h"

namespace redblue {

// A group of at most `most` symmetries of the graph. If the graph has more, the group contains the symmetries that fix
// the first few nodes, with as few fixed nodes as possible.
template <class Bits>
class PebbleSymmetries {
 public:
  PebbleSymmetries(const PebbleBoardBits<Bits>& board, std::size_t most, PebbleWatch& watch)
      : board_(board), n_(board.n), most_(most), watch_(watch) {
    refine();
    // With more fixed nodes, extend() makes a part of the same attempts. So bisection finds the fewest fixed nodes.
    int low = 0, high = n_;
    for (fixed_ = 0; low <= high; fixed_ = (low + high) / 2) {
      extended_.clear();
      tried_ = 0;
      image_.assign(n_, 0);
      if (extend(0, 0)) {
        symmetries_ = extended_;
        high = fixed_ - 1;
      } else {
        low = fixed_ + 1;
      }
    }
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
      if (seen.size() == colours) break;
      colours = seen.size();
    }
    alike_.assign(n_, 0);
    for (int v = 0; v < n_; ++v)
      for (int w = 0; w < n_; ++w)
        if (colour_[w] == colour_[v]) alike_[v] |= bit<Bits>(w);
  }

  // Extends a partial symmetry that maps nodes 0 .. v - 1 to `taken`. Returns false if there are too many symmetries or
  // attempts, or no time is left.
  bool extend(int v, Bits taken) {
    if (v == n_) {
      extended_.push_back(image_);
      return extended_.size() <= most_;
    }
    if (++tried_ > 200000 || (tried_ % 1024 == 0 && !watch_.goes_on({}))) return false;
    Bits parents = 0;
    each(board_.parents[v], [&](int p) { parents |= bit<Bits>(image_[p]); });
    for (Bits may = (v < fixed_ ? bit<Bits>(v) : alike_[v]) & ~taken; may; may &= may - 1) {
      const int w = least(may);
      if (board_.parents[w] != parents) continue;
      image_[v] = std::uint8_t(w);
      if (!extend(v + 1, taken | bit<Bits>(w))) return false;
    }
    return true;
  }

  const PebbleBoardBits<Bits>& board_;
  int n_, fixed_ = 0;
  std::size_t most_;
  PebbleWatch& watch_;
  std::int64_t tried_ = 0;
  std::vector<int> colour_;
  std::vector<Bits> alike_;  // per node: the nodes of its colour
  Renumbering image_;
  std::vector<Renumbering> extended_, symmetries_;
};

template <class Bits>
Bits renumbered(Bits set, const Renumbering& numbers) {
  Bits image = 0;
  each(set, [&](int v) { image |= bit<Bits>(numbers[v]); });
  return image;
}

}  // namespace redblue
