// The referee of the pebble game: plays moves one by one and stops at the first illegal move. The rules are in
// docs/lab/pebble.md.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace redblue {

enum PebbleMove : std::int8_t { kLoad, kStore, kCompute, kDelete };

enum class Broken : int {
  kNone,
  kKind,        // no such kind of move
  kNode,        // no such node
  kLevel,       // no such level
  kNothing,     // no pebble to load, store or delete
  kCapacity,    // more words than the level holds
  kInput,       // an input is computed
  kParents,     // a parent is not red
  kTwice,       // a second computation of a node, or marking of an edge, where only one is allowed
  kNoParent,    // the named node is not a parent
  kSliding,     // a slide where sliding is not allowed
  kIncomplete,  // partial: the parent is not fully aggregated
  kNotLoaded,   // partial: only slow memory holds the node's aggregate
  kDark,        // partial: a dark red pebble is deleted while it is needed
};

// The graph in compressed rows, and the rules of redblue.pebble.rules.
struct PebbleBoard {
  std::vector<std::int64_t> starts, parents, words;
  std::vector<std::int64_t> capacities;   // of each level except slow memory, nearest first
  std::vector<std::uint8_t> blue, free;   // per node: starts in slow memory; is computed from nothing
  bool once = false, partial = false, sliding = false;
  bool sinks_end_blue = true;             // every sink must be in slow memory at the end of the game

  std::int64_t nodes() const { return std::int64_t(words.size()); }

  void check() const {
    const std::size_t n = words.size(), levels = capacities.size();
    if (starts.size() != n + 1 || blue.size() != n || free.size() != n || levels < 1 || levels > 6)
      throw std::invalid_argument("a board's arrays have one entry per node, and 1 to 6 levels have a capacity");
  }
};

class PebbleReferee {
 public:
  explicit PebbleReferee(PebbleBoard board) : board_(std::move(board)), slow_(int(board_.capacities.size())) {
    const std::size_t n = board_.words.size(), edges = board_.parents.size();
    held_.assign(slow_, 0);
    peak_ = held_;
    loaded_ = stored_ = held_;
    have_.resize(n);
    for (std::size_t v = 0; v < n; ++v) have_[v] = board_.blue[v] ? std::uint8_t(1 << slow_) : 0;
    computed_.assign(n, 0);
    if (!board_.partial && !board_.sliding) return;
    sorted_.resize(edges);
    std::iota(sorted_.begin(), sorted_.end(), std::int64_t(0));
    for (std::size_t v = 0; v < n; ++v)
      std::sort(sorted_.begin() + board_.starts[v], sorted_.begin() + board_.starts[v + 1],
                [&](std::int64_t a, std::int64_t b) { return board_.parents[a] < board_.parents[b]; });
    marked_.assign(edges, 0);
    marked_in_.assign(n, 0);
    unmarked_out_.assign(n, 0);
    for (const std::int64_t parent : board_.parents) ++unmarked_out_[parent];
    sink_.resize(n);
    for (std::size_t v = 0; v < n; ++v) sink_[v] = unmarked_out_[v] == 0;
    dark_.assign(n, 0);
  }

  // Plays `count` more moves; returns `count`, or the index of the first illegal move.
  std::size_t play(const std::int8_t* kinds, const std::int64_t* nodes, const std::int64_t* parents,
                   const std::int8_t* levels, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      broken_ = one(kinds[i], nodes[i], parents[i], levels[i]);
      if (broken_ != Broken::kNone) return i;
    }
    return count;
  }

  Broken broken() const { return broken_; }
  const std::vector<std::uint8_t>& have() const { return have_; }          // bit l: a pebble of level l
  const std::vector<std::int64_t>& marked_in() const { return marked_in_; }  // partial: marked edges into each node
  const std::vector<std::int64_t>& held() const { return held_; }          // words per level now; peak: the maximum
  const std::vector<std::int64_t>& peak() const { return peak_; }
  const std::vector<std::int64_t>& loaded() const { return loaded_; }      // words per boundary of levels
  const std::vector<std::int64_t>& stored() const { return stored_; }
  std::int64_t computes() const { return computes_; }

 private:
  bool has(std::int64_t node, int level) const { return have_[node] >> level & 1; }

  // Puts a pebble of the node on a level; returns false if the level has no room.
  bool put(std::int64_t node, int level) {
    if (has(node, level)) return true;
    if (level < slow_) {
      if (held_[level] + board_.words[node] > board_.capacities[level]) return false;
      held_[level] += board_.words[node];
      peak_[level] = std::max(peak_[level], held_[level]);
    }
    have_[node] |= std::uint8_t(1 << level);
    return true;
  }

  void take(std::int64_t node, int level) {
    have_[node] &= std::uint8_t(~(1 << level));
    if (level < slow_) held_[level] -= board_.words[node];
  }

  Broken one(std::int8_t kind, std::int64_t node, std::int64_t parent, std::int8_t level) {
    if (kind < kLoad || kind > kDelete) return Broken::kKind;
    if (node < 0 || node >= board_.nodes()) return Broken::kNode;
    if (level < 0 || level >= slow_) return Broken::kLevel;
    switch (kind) {
      case kLoad:
        if (!has(node, level + 1)) return Broken::kNothing;
        if (!put(node, level)) return Broken::kCapacity;
        loaded_[level] += board_.words[node];
        return Broken::kNone;
      case kStore:
        if (!has(node, level)) return Broken::kNothing;
        if (!put(node, level + 1)) return Broken::kCapacity;
        stored_[level] += board_.words[node];
        if (board_.partial) dark_[node] = 0;
        return Broken::kNone;
      case kDelete:
        if (!has(node, level)) return Broken::kNothing;
        if (board_.partial && dark_[node]) {
          const bool kept = board_.sinks_end_blue && sink_[node];
          if (unmarked_out_[node] || marked_in_[node] < in_degree(node) || kept) return Broken::kDark;
          dark_[node] = 0;
        }
        take(node, level);
        return Broken::kNone;
      default:
        if (level) return Broken::kLevel;
        return board_.partial && parent >= 0 ? aggregate(node, parent) : compute(node, parent);
    }
  }

  std::int64_t in_degree(std::int64_t node) const { return board_.starts[node + 1] - board_.starts[node]; }

  // The index of the edge from parent to node; -1 if there is none.
  std::int64_t edge(std::int64_t node, std::int64_t parent) const {
    const auto first = sorted_.begin() + board_.starts[node], last = sorted_.begin() + board_.starts[node + 1];
    const auto at = std::lower_bound(first, last, parent,
                                     [&](std::int64_t e, std::int64_t p) { return board_.parents[e] < p; });
    return at != last && board_.parents[*at] == parent ? *at : -1;
  }

  Broken compute(std::int64_t node, std::int64_t slides) {
    if (in_degree(node) == 0 && !board_.free[node]) return Broken::kInput;
    if (board_.partial && in_degree(node)) return Broken::kNoParent;
    if (slides >= 0 && !board_.sliding) return Broken::kSliding;
    for (std::int64_t e = board_.starts[node]; e < board_.starts[node + 1]; ++e)
      if (!has(board_.parents[e], 0)) return Broken::kParents;
    if ((board_.once || board_.partial) && computed_[node]) return Broken::kTwice;
    if (slides >= 0) {
      if (edge(node, slides) < 0) return Broken::kNoParent;
      take(slides, 0);
    }
    if (!put(node, 0)) {
      if (slides >= 0) put(slides, 0);
      return Broken::kCapacity;
    }
    if (board_.partial) dark_[node] = 1;
    computed_[node] = 1;
    ++computes_;
    return Broken::kNone;
  }

  Broken aggregate(std::int64_t node, std::int64_t parent) {
    const std::int64_t at = edge(node, parent);
    if (at < 0) return Broken::kNoParent;
    if (marked_[at]) return Broken::kTwice;
    if (marked_in_[parent] < in_degree(parent)) return Broken::kIncomplete;
    if (!has(parent, 0)) return Broken::kParents;
    if (have_[node] && !has(node, 0)) return Broken::kNotLoaded;
    if (!put(node, 0)) return Broken::kCapacity;
    if (has(node, slow_)) take(node, slow_);  // the copy in slow memory is out of date
    dark_[node] = 1;
    marked_[at] = 1;
    ++marked_in_[node];
    --unmarked_out_[parent];
    ++computes_;
    return Broken::kNone;
  }

  PebbleBoard board_;
  int slow_;  // the level of slow memory
  Broken broken_ = Broken::kNone;
  std::int64_t computes_ = 0;
  std::vector<std::uint8_t> have_, computed_, sink_, dark_, marked_;
  std::vector<std::int64_t> held_, peak_, loaded_, stored_, sorted_, marked_in_, unmarked_out_;
};

}  // namespace redblue
