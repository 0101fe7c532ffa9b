// The rules of the red-blue game for the search, with or without recomputation. They reduce the number of states
// without excluding any optimal cost.
//
// One step computes one node. Pebbles are evicted only to make room for the node and stored only when they are evicted;
// parents are loaded just before. Every game can be reordered this way at no cost. Between steps a state is settled:
// free moves that are never wrong are made at once.
#pragma once
#include <algorithm>
#include <array>
#include <utility>

#include "pebble/eviction.h"
#include "pebble/symmetry.h"

namespace redblue {

template <class Bits>
struct RedBlueState {
  Bits red = 0, blue = 0;
  bool operator==(const RedBlueState& other) const { return red == other.red && blue == other.blue; }
  bool operator<(const RedBlueState& other) const {
    return red != other.red ? red < other.red : blue < other.blue;
  }
  std::uint64_t hash() const { return mixed(mixed(0, red), blue); }
};

template <class Bits>
class RedBlueRules {
 public:
  using State = RedBlueState<Bits>;

  // Stores `stored`, evicts `evicted`, loads the missing parents of `node` and computes `node`. If slides >= 0, the
  // pebble slides from that parent.
  struct Step {
    int node, slides;
    Bits evicted, stored;
  };

  explicit RedBlueRules(const PebbleTask& task)
      : board_(task), n_(board_.n), once_(task.once), eager_(task.once || task.costs.compute == 0) {}

  const PebbleBoardBits<Bits>& board() const { return board_; }

  State first() const { return {0, board_.blue}; }

  bool finished(const State& s) const { return !(lacking(s)); }

  // Plays the step; returns its cost.
  template <class Record>
  std::int64_t play(State& s, const Step& step, Record&& record) const {
    const Bits one = bit<Bits>(step.node), loaded = board_.parents[step.node] & ~s.red;
    each(step.stored, [&](int v) { record(kStore, v); });
    each(step.evicted, [&](int v) { record(kDelete, v); });
    each(loaded, [&](int v) { record(kLoad, v); });
    record(kCompute, step.node, step.slides);
    s.red = (s.red & ~step.evicted) | loaded | one;
    if (step.slides >= 0) s.red &= ~bit<Bits>(step.slides);
    s.blue |= step.stored;
    return board_.task.costs.store * board_.words(step.stored) + board_.task.costs.load * board_.words(loaded) +
           board_.task.costs.compute + settle(s, record);
  }

  // Makes all free moves that are never wrong; returns the cost of storing sinks.
  template <class Record>
  std::int64_t settle(State& s, Record&& record) const {
    std::int64_t cost = 0;
    for (;;) {
      if (board_.task.sinks_end_blue) {
        const Bits done = s.red & board_.sinks & ~s.blue;
        each(done, [&](int v) { record(kStore, v); });
        s.blue |= done;
        cost += board_.task.costs.store * board_.words(done);
      }
      const Bits computed = once_ ? computed_in(s) : 0, live = once_ ? live_once(s, computed) : live_again(s);
      each(s.red & ~live, [&](int v) { record(kDelete, v); });
      s.red &= live;
      s.blue &= live | board_.sinks;
      const int next = eager_ ? free_compute(s, live, computed) : -1;
      if (next < 0) return cost;
      record(kCompute, next);
      s.red |= bit<Bits>(next);
      cost += board_.task.costs.compute;
    }
  }

  // Calls visit(step) for every useful step that may lead to a game that costs at most `slack` more than the estimate
  // of this state, until goes_on() returns false.
  template <class GoesOn, class Visit>
  void expand(const State& s, std::int64_t slack, GoesOn&& goes_on, Visit&& visit) const {
    const Bits computed = once_ ? computed_in(s) : 0;
    const Bits wanted = (once_ ? board_.all & ~computed : live_again(s)) & ~s.red & ~board_.blue;
    const std::int64_t rest = once_ ? 0 : estimate(s);
    each(wanted, [&](int v) {
      const Bits parents = board_.parents[v], together = s.red | parents;
      if (parents & ~(s.red | s.blue)) return;
      const std::int64_t excess = board_.words(together) + board_.task.words[v] - board_.task.red();
      const PebbleOffer<Bits> offer = this->offer(s, v, slack, excess, rest);
      auto plain = [&](Bits evicted, Bits stored) { visit(Step{v, -1, evicted, stored}); };
      PebbleEviction(board_, offer, goes_on, plain).evict(excess);
      if (!board_.task.sliding || excess <= 0) return;
      each(parents, [&](int p) {
        const Bits one = bit<Bits>(p);
        const bool dirty = !(s.blue & one), dead = once_ && !(board_.children[p] & ~computed & ~bit<Bits>(v));
        auto slid = [&](Bits evicted, Bits stored) {
          if (!dirty || dead || !once_) visit(Step{v, p, evicted, stored});
          if (dirty && !dead) visit(Step{v, p, evicted, stored | one});
        };
        const std::int64_t before = board_.words(together) - board_.task.red();
        const std::int64_t after = before + board_.task.words[v] - board_.task.words[p];
        PebbleEviction(board_, offer, goes_on, slid).evict(std::max(before, after));
      });
    });
  }

  // A lower bound on the cost of the rest of the game: its cost with unlimited red pebbles from here on.
  std::int64_t estimate(const State& s) const {
    const Bits missing = lacking(s) & ~s.red;
    std::int64_t cost = board_.task.sinks_end_blue ? board_.task.costs.store * board_.words(missing) : 0;
    if (once_) {
      const Bits computed = computed_in(s);
      Bits wanted = 0;
      each(board_.all & ~computed, [&](int v) { wanted |= board_.parents[v]; });
      return cost + board_.task.costs.load * board_.words(wanted & computed & ~s.red) +
             board_.task.costs.compute * count(board_.all & ~computed);
    }
    const auto [computes, used] = ahead(s);
    const Bits forced = used & board_.blue & ~s.red, either = used & s.blue & ~s.red & ~board_.blue;
    cost += board_.task.costs.load * board_.words(forced) + board_.task.costs.compute * count(computes);
    return either ? cost + Cut(board_, s.blue, s.red | forced).flow(either) : cost;
  }

  // A lower bound on the number of nodes still to be computed.
  int left(const State& s) const { return once_ ? count(board_.all & ~computed_in(s)) : count(ahead(s).first); }

  State renumber(const State& s, const Renumbering& numbers) const {
    return {renumbered(s.red, numbers), renumbered(s.blue, numbers)};
  }

 private:
  static constexpr std::int64_t kMuch = std::int64_t(1) << 30;  // a slack that excludes nothing

  // Computes, as a minimum cut by maximum flow, the least cost of loads after which every node of a set is loaded or
  // computable from loaded nodes.
  class Cut {
   public:
    Cut(const PebbleBoardBits<Bits>& board, Bits blue, Bits had) : board_(board), blue_(blue), had_(had) {
      through_.fill(0);
    }

    std::int64_t flow(Bits from) {
      std::int64_t total = 0;
      each(from, [&](int v) {
        while (const std::int64_t more = augment(v)) total += more;
      });
      return total;
    }

   private:
    std::int64_t capacity(int v) const {
      return blue_ >> v & 1 ? board_.task.costs.load * board_.task.words[v] : std::int64_t(1) << 40;
    }

    std::int64_t augment(int v) {
      entered_ = left_ = 0;
      return enter(v, capacity(v));
    }

    // Pushes at most `most` units of flow from the upper side of node v, through v or back along incoming flow. Returns
    // the units pushed.
    std::int64_t enter(int v, std::int64_t most) {
      if (entered_ >> v & 1 || most <= 0) return 0;
      entered_ |= bit<Bits>(v);
      if (const std::int64_t more = leave(v, std::min(most, capacity(v) - through_[v]))) {
        through_[v] += more;
        return more;
      }
      for (Bits from = carried_[v]; from; from &= from - 1) {
        const int child = least(from);
        std::int64_t& carried = along_[child][v];
        if (const std::int64_t more = leave(child, std::min(most, carried))) {
          if (!(carried -= more)) carried_[v] &= ~bit<Bits>(child);
          return more;
        }
      }
      return 0;
    }

    // The same from the lower side of v, to its parents.
    std::int64_t leave(int v, std::int64_t most) {
      if (left_ >> v & 1 || most <= 0) return 0;
      left_ |= bit<Bits>(v);
      if (board_.blue >> v & 1) return most;
      for (Bits above = board_.parents[v] & ~had_; above; above &= above - 1) {
        const int p = least(above);
        if (const std::int64_t more = enter(p, most)) {
          along_[v][p] = (carried_[p] >> v & 1 ? along_[v][p] : 0) + more;
          carried_[p] |= bit<Bits>(v);
          return more;
        }
      }
      if (const std::int64_t more = enter(v, std::min(most, through_[v]))) {
        through_[v] -= more;
        return more;
      }
      return 0;
    }

    const PebbleBoardBits<Bits>& board_;
    Bits blue_, had_, entered_ = 0, left_ = 0;
    std::array<std::int64_t, kWidth<Bits>> through_;
    // Per node, the children from which flow comes; only their entries of along_ are valid.
    std::array<Bits, kWidth<Bits>> carried_{};
    std::array<std::array<std::int64_t, kWidth<Bits>>, kWidth<Bits>> along_;
  };

  // With recomputation: returns the nodes that must be computed, and all their parents.
  std::pair<Bits, Bits> ahead(const State& s) const {
    const Bits had = s.red | s.blue;
    Bits todo = lacking(s) & ~s.red, computes = todo, used = 0;
    while (todo) {
      const Bits parents = board_.parents[least(todo)], above = parents & ~had & ~computes;
      todo = (todo & (todo - 1)) | above;
      computes |= above;
      used |= parents;
    }
    return {computes, used};
  }

  // The pebbles that may be evicted to compute node v. Without recomputation, a needed pebble must be loaded again.
  // With recomputation, a pebble stays if the game cannot be cheap enough without it.
  PebbleOffer<Bits> offer(const State& s, int v, std::int64_t slack, std::int64_t excess, std::int64_t rest) const {
    const std::int64_t load = board_.task.costs.load, store = board_.task.costs.store;
    const Bits may = s.red & ~board_.parents[v];
    if (once_) return {may & s.blue, may & ~s.blue, board_.reload(), store, slack};
    PebbleOffer<Bits> offer{may, may & ~s.blue, 0, store, slack};
    if (excess <= 0 || slack >= kMuch) return offer;
    State all{s.red | board_.parents[v] | bit<Bits>(v), s.blue};
    std::int64_t paid = load * board_.words(board_.parents[v] & ~s.red) + board_.task.costs.compute;
    if (board_.task.sinks_end_blue && board_.sinks >> v & 1 && !(s.blue >> v & 1)) {
      paid += store * board_.task.words[v];
      all.blue |= bit<Bits>(v);
    }
    each(may, [&](int e) {
      const Bits one = bit<Bits>(e);
      const std::int64_t most = rest + slack - paid;
      if (estimate({all.red & ~one, all.blue}) > most) offer.drop &= ~one;
      if (offer.store & one && estimate({all.red & ~one, all.blue | one}) + store * board_.task.words[e] > most)
        offer.store &= ~one;
    });
    return offer;
  }

  // Sinks that lack the pebble required at the end.
  Bits lacking(const State& s) const {
    return board_.sinks & ~(board_.task.sinks_end_blue ? s.blue : s.red | s.blue);
  }

  // Without recomputation: the nodes computed so far, and the inputs. Every needed value has a pebble, and a node whose
  // children are all computed was itself computed.
  Bits computed_in(const State& s) const {
    Bits computed = s.red | s.blue;
    for (int v = n_ - 1; v >= 0; --v)
      if (board_.children[v] && !(board_.children[v] & ~computed)) computed |= bit<Bits>(v);
    return computed;
  }

  Bits live_once(const State& s, Bits computed) const {
    Bits live = board_.sinks & s.red & ~s.blue;
    for (int v = 0; v < n_; ++v)
      if (board_.children[v] & ~computed) live |= bit<Bits>(v);
    return live;
  }

  // With recomputation: every node with a path to a sink that is not stored.
  Bits live_again(const State& s) const {
    Bits live = board_.sinks & ~s.blue;
    for (int v = n_ - 1; v >= 0; --v)
      if (board_.children[v] & live) live |= bit<Bits>(v);
    return live;
  }

  // Returns a node to compute at once, or -1. With recomputation, any node that fits: its pebble can be deleted for
  // free. Without recomputation, a sink, which costs one store in any case; or the last node that needs a parent's
  // dirty pebble: the node's own pebble can replace the parent's in all later moves.
  int free_compute(const State& s, Bits live, Bits computed) const {
    const std::int64_t spare = board_.task.red() - board_.words(s.red);
    if (spare <= 0) return -1;
    const Bits may = (once_ ? board_.all & ~computed : live) & ~s.red & ~board_.blue;
    for (Bits rest = may; rest; rest &= rest - 1) {
      const int v = least(rest);
      if ((board_.parents[v] & ~s.red) || board_.task.words[v] > spare) continue;
      if (!once_ || (board_.task.sinks_end_blue && board_.sinks >> v & 1)) return v;
      for (Bits dirty = board_.parents[v] & ~s.blue; dirty; dirty &= dirty - 1) {
        const int p = least(dirty);
        const bool last = !(board_.children[p] & ~computed & ~bit<Bits>(v));
        if (last && board_.task.words[v] <= board_.task.words[p]) return v;
      }
    }
    return -1;
  }

  PebbleBoardBits<Bits> board_;
  int n_;
  bool once_, eager_;
};

}  // namespace redblue
