// Plays the pebble game in a given order of computations. The order determines the loads; a policy chooses the
// evictions.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <stdexcept>
#include <utility>
#include <vector>

#include "pebble/referee.h"

namespace redblue {

// Chooses the victim: the pebble that is needed last (Belady) or, if `recent`, the least recently used one. Evicting a
// dirty pebble, which slow memory does not hold, costs a store. A dirty pebble is evicted only if its distance exceeds
// `ratio` times the distance of the best clean pebble.
struct PebblePolicy {
  bool recent = false;
  double ratio = 1;
};

struct PebbleMoves {
  std::vector<std::int8_t> kinds;
  std::vector<std::int64_t> nodes, parents;
};

class PebblePlayer {
 public:
  // recomputes: whether a computation may replace a load if all parents are red.
  PebblePlayer(const PebbleBoard& board, PebblePolicy policy, bool recomputes)
      : board_(board), policy_(policy), recomputes_(recomputes && !board.once && !board.partial) {
    const std::size_t n = board.words.size();
    if (board.capacities.size() != 1) throw std::invalid_argument("an order is played on two levels of memory");
    blue_ = board.blue;
    red_.assign(n, 0);
    pinned_.assign(n, 0);
    key_.assign(n, 0);
    use_.assign(n, 0);
    sink_.assign(n, 1);
    for (const std::int64_t parent : board.parents) sink_[parent] = 0;
  }

  // order: every node that has parents or must be computed, once each, parents before children.
  PebbleMoves play(const std::int64_t* order, std::size_t count) {
    find_uses(order, count);
    for (now_ = 0; now_ < std::int64_t(count); ++now_) {
      const std::int64_t v = order[now_];
      if (board_.partial && board_.starts[v] != board_.starts[v + 1]) aggregate(v);
      else compute(v);
      if (sink_[v] && board_.sinks_end_blue && !blue_[v]) store(v);
      if (!wanted(v)) remove(v);
    }
    if (!board_.partial) drop_useless_stores();
    return std::move(moves_);
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  void find_uses(const std::int64_t* order, std::size_t count) {
    const std::int64_t n = board_.nodes();
    use_starts_.assign(n + 1, 0);
    for (std::size_t t = 0; t < count; ++t) {
      if (order[t] < 0 || order[t] >= n) throw std::invalid_argument("an order names nodes of its graph");
      each_parent(order[t], [&](std::int64_t p) { ++use_starts_[p + 1]; });
    }
    for (std::int64_t v = 0; v < n; ++v) use_starts_[v + 1] += use_starts_[v];
    uses_.resize(use_starts_[n]);
    std::vector<std::int64_t> at(use_starts_.begin(), use_starts_.end() - 1);
    use_ = at;
    for (std::size_t t = 0; t < count; ++t)
      each_parent(order[t], [&](std::int64_t p) { uses_[at[p]++] = std::int64_t(t); });
  }

  template <class F>
  void each_parent(std::int64_t v, F f) {
    for (std::int64_t e = board_.starts[v]; e < board_.starts[v + 1]; ++e) f(board_.parents[e]);
  }

  std::int64_t next(std::int64_t v) const { return use_[v] < use_starts_[v + 1] ? uses_[use_[v]] : kNever; }
  // Whether a pebble of the node is still needed.
  bool wanted(std::int64_t v) const { return next(v) != kNever || (sink_[v] && !board_.sinks_end_blue && !blue_[v]); }
  // Whether the value can be recomputed without slow memory: an input that is computed freely.
  bool free_again(std::int64_t v) const { return board_.free[v] && !sink_[v] && !board_.once && !board_.partial; }
  bool clean(std::int64_t v) const { return blue_[v] || free_again(v); }

  void move(PebbleMove kind, std::int64_t v, std::int64_t parent = -1) {
    moves_.kinds.push_back(kind);
    moves_.nodes.push_back(v);
    moves_.parents.push_back(parent);
  }

  void rank(std::int64_t v) {
    key_[v] = policy_.recent ? -now_ : next(v);
    (clean(v) ? clean_ : dirty_).emplace(key_[v], v);
  }

  void put(std::int64_t v) {
    if (!red_[v]) held_ += board_.words[v];
    red_[v] = 1;
    rank(v);
  }

  void remove(std::int64_t v) {
    if (!red_[v]) return;
    move(kDelete, v);
    red_[v] = 0;
    held_ -= board_.words[v];
  }

  void store(std::int64_t v) {
    move(kStore, v);
    blue_[v] = 1;
    rank(v);
  }

  using Heap = std::priority_queue<std::pair<std::int64_t, std::int64_t>>;

  // Returns the best victim of a heap, or -1. Moves pinned nodes to `aside`, from which the caller puts them back.
  std::int64_t top(Heap& heap, bool are_clean, std::vector<std::int64_t>& aside) {
    for (; !heap.empty(); heap.pop()) {
      const auto [key, v] = heap.top();
      if (!red_[v] || key != key_[v] || clean(v) != are_clean) continue;
      if (!pinned_[v]) return v;
      aside.push_back(v);
    }
    return -1;
  }

  double distance(std::int64_t v) const {
    return policy_.recent ? double(now_ + key_[v] + 1) : key_[v] == kNever ? 1e18 : double(key_[v] - now_ + 1);
  }

  bool fits(std::int64_t words) const { return held_ + words <= board_.capacities[0]; }

  // Evicts pebbles until `words` words fit. Returns whether they fit.
  bool make_room(std::int64_t words) {
    while (!fits(words)) {
      std::vector<std::int64_t> aside;
      const std::int64_t c = top(clean_, true, aside), d = top(dirty_, false, aside);
      for (const std::int64_t v : aside) rank_again(v);
      if (c < 0 && d < 0) return false;
      const bool dirty = c < 0 || (d >= 0 && distance(d) > policy_.ratio * distance(c));
      const std::int64_t victim = dirty ? d : c;
      if (dirty) store(victim);
      remove(victim);
    }
    return true;
  }

  void rank_again(std::int64_t v) { (clean(v) ? clean_ : dirty_).emplace(key_[v], v); }

  void need_room(std::int64_t words) {
    if (!make_room(words)) throw std::invalid_argument("too few red pebbles for this order");
  }

  bool parents_red(std::int64_t v) {
    bool all = true;
    each_parent(v, [&](std::int64_t p) { all = all && red_[p]; });
    return all;
  }

  void bring(std::int64_t v) {
    need_room(board_.words[v]);
    const bool computed = board_.starts[v] != board_.starts[v + 1];
    if (!blue_[v] && !board_.free[v]) throw std::invalid_argument("an order has parents first");
    move(!blue_[v] || (recomputes_ && computed && parents_red(v)) ? kCompute : kLoad, v);
    put(v);
  }

  // Ends the current use of a parent.
  void used(std::int64_t p) {
    while (use_[p] < use_starts_[p + 1] && uses_[use_[p]] <= now_) ++use_[p];
    if (wanted(p)) rank(p);
    else remove(p);
  }

  void compute(std::int64_t v) {
    each_parent(v, [&](std::int64_t p) { pinned_[p] = 1; });
    each_parent(v, [&](std::int64_t p) {
      if (!red_[p]) bring(p);
    });
    if (make_room(board_.words[v])) move(kCompute, v);
    else slide(v);
    each_parent(v, [&](std::int64_t p) { pinned_[p] = 0; });
    put(v);
    each_parent(v, [&](std::int64_t p) { used(p); });
  }

  // Slides a parent's pebble to v. Chooses, among the parents that free enough words, the parent whose loss costs
  // least.
  void slide(std::int64_t v) {
    std::int64_t best = -1;
    const auto last = [&](std::int64_t p) { return use_[p] + 1 == use_starts_[p + 1]; };
    const auto loss = [&](std::int64_t p) { return last(p) ? 0 : clean(p) ? 1 : 2; };
    each_parent(v, [&](std::int64_t p) {
      if (fits(board_.words[v] - board_.words[p]) && (best < 0 || loss(p) < loss(best))) best = p;
    });
    if (!board_.sliding || best < 0) throw std::invalid_argument("too few red pebbles for this order");
    if (!last(best) && !clean(best)) store(best);
    move(kCompute, v, best);
    red_[best] = 0;
    held_ -= board_.words[best];
  }

  void aggregate(std::int64_t v) {
    const auto take = [&](std::int64_t p) {
      pinned_[p] = 1;
      if (!red_[p]) bring(p);
      if (!red_[v]) need_room(board_.words[v]);
      move(kCompute, v, p);
      blue_[v] = 0;
      put(v);
      pinned_[p] = 0;
      used(p);
    };
    std::vector<std::int64_t> here, later;
    pinned_[v] = 1;
    each_parent(v, [&](std::int64_t p) { (red_[p] ? here : later).push_back(p); });
    for (const std::int64_t p : here) take(p);
    for (const std::int64_t p : later) take(p);
    pinned_[v] = 0;
  }

  // Drops useless stores, from the end backwards. A store is useful only for a sink or for a node that is loaded later.
  void drop_useless_stores() {
    std::vector<std::uint8_t> want = sink_;
    std::size_t kept = moves_.kinds.size();
    for (std::size_t i = moves_.kinds.size(); i-- > 0;) {
      const std::int64_t v = moves_.nodes[i];
      if (moves_.kinds[i] == kStore && !want[v]) continue;
      if (moves_.kinds[i] == kStore) want[v] = 0;
      if (moves_.kinds[i] == kLoad) want[v] = 1;
      --kept;
      moves_.kinds[kept] = moves_.kinds[i];
      moves_.nodes[kept] = v;
      moves_.parents[kept] = moves_.parents[i];
    }
    moves_.kinds.erase(moves_.kinds.begin(), moves_.kinds.begin() + std::ptrdiff_t(kept));
    moves_.nodes.erase(moves_.nodes.begin(), moves_.nodes.begin() + std::ptrdiff_t(kept));
    moves_.parents.erase(moves_.parents.begin(), moves_.parents.begin() + std::ptrdiff_t(kept));
  }

  const PebbleBoard& board_;
  PebblePolicy policy_;
  bool recomputes_;
  std::int64_t now_ = 0, held_ = 0;
  std::vector<std::uint8_t> blue_, red_, pinned_, sink_;
  std::vector<std::int64_t> key_, use_, use_starts_, uses_;
  Heap clean_, dirty_;
  PebbleMoves moves_;
};

}  // namespace redblue
