// The rules of partial computation (PRBP) for the search. One step marks one edge. Missing nodes of the edge are loaded
// just before. Pebbles are evicted only to make room; dark pebbles are stored first. See pebble/red_blue.h.
#pragma once
#include <algorithm>
#include <tuple>

#include "pebble/eviction.h"
#include "pebble/symmetry.h"

namespace redblue {

// A set of edges, numbered as in the graph's compressed rows; it has room for twice as many edges as nodes.
template <class Bits>
struct EdgeSet {
  Bits low = 0, high = 0;
  static EdgeSet one(int e) {
    return e < kWidth<Bits> ? EdgeSet{bit<Bits>(e), 0} : EdgeSet{0, bit<Bits>(e - kWidth<Bits>)};
  }
  bool operator==(const EdgeSet& other) const { return low == other.low && high == other.high; }
  bool covers(const EdgeSet& other) const { return !(other.low & ~low) && !(other.high & ~high); }
  bool meets(const EdgeSet& other) const { return (low & other.low) || (high & other.high); }
  void add(const EdgeSet& other) { low |= other.low, high |= other.high; }
  EdgeSet without(const EdgeSet& other) const { return {low & ~other.low, high & ~other.high}; }
  int size() const { return count(low) + count(high); }
  template <class Visit>
  void each(Visit&& visit) const {
    redblue::each(low, visit);
    redblue::each(high, [&](int e) { visit(e + kWidth<Bits>); });
  }
};

// Every begun node that is still needed has a pebble. A pebble that is red and not blue is dark.
template <class Bits>
struct PartialState {
  Bits red = 0, blue = 0;
  EdgeSet<Bits> marked;
  bool operator==(const PartialState& other) const {
    return red == other.red && blue == other.blue && marked == other.marked;
  }
  bool operator<(const PartialState& other) const {
    return std::tie(red, blue, marked.low, marked.high) <
           std::tie(other.red, other.blue, other.marked.low, other.marked.high);
  }
  std::uint64_t hash() const { return mixed(mixed(mixed(mixed(0, red), blue), marked.low), marked.high); }
};

template <class Bits>
class PartialRules {
 public:
  using State = PartialState<Bits>;

  // Marks the edge from `parent` to `node`; parent -1: computes a node without parents.
  struct Step {
    int node, parent;
    Bits evicted, stored;
  };

  explicit PartialRules(const PebbleTask& task) : board_(task), edges_(int(task.parents.size())) {
    if (edges_ > 2 * kWidth<Bits>) throw std::invalid_argument("too many edges for this search");
    into_.resize(board_.n);
    out_.resize(board_.n);
    for (int v = 0; v < board_.n; ++v)
      for (std::int64_t e = task.starts[v]; e < task.starts[v + 1]; ++e) {
        heads_.push_back(v);
        into_[v].add(Edges::one(int(e)));
        out_[task.parents[e]].add(Edges::one(int(e)));
        every_.add(Edges::one(int(e)));
      }
  }

  const PebbleBoardBits<Bits>& board() const { return board_; }

  State first() const {
    State s;
    s.blue = board_.blue;
    return s;
  }

  bool finished(const State& s) const { return s.marked.covers(every_) && !lacking(s); }

  template <class Record>
  std::int64_t play(State& s, const Step& step, Record&& record) const {
    Bits pair = bit<Bits>(step.node);
    if (step.parent >= 0) pair |= bit<Bits>(step.parent);
    const Bits loaded = pair & ~s.red & s.blue;
    each(step.stored, [&](int v) { record(kStore, v); });
    each(step.evicted, [&](int v) { record(kDelete, v); });
    each(loaded, [&](int v) { record(kLoad, v); });
    s.red = (s.red & ~step.evicted) | pair;
    s.blue |= step.stored;
    if (step.parent >= 0)
      mark(s, step.node, edge(step.node, step.parent), record);
    else
      record(kCompute, step.node);
    return board_.task.costs.store * board_.words(step.stored) + board_.task.costs.load * board_.words(loaded) +
           board_.task.costs.compute + settle(s, record);
  }

  template <class Record>
  std::int64_t settle(State& s, Record&& record) const {
    std::int64_t cost = 0;
    for (;;) {
      Bits live = 0, ready = 0;
      for (int v = 0; v < board_.n; ++v) {
        const bool complete = s.marked.covers(into_[v]), needed = !s.marked.covers(out_[v]);
        if (!complete || needed) live |= bit<Bits>(v);
        if (complete) ready |= bit<Bits>(v);
      }
      const Bits unsaved = s.red & ready & board_.sinks & ~s.blue;
      if (board_.task.sinks_end_blue) {
        each(unsaved, [&](int v) { record(kStore, v); });
        s.blue |= unsaved;
        cost += board_.task.costs.store * board_.words(unsaved);
      } else {
        live |= unsaved;
      }
      each(s.red & ~live, [&](int v) { record(kDelete, v); });
      s.red &= live;
      s.blue &= live | (board_.sinks & ready);
      const int next = free_mark(s, ready);
      if (next < 0) return cost;
      s.red |= bit<Bits>(heads_[next]);
      mark(s, heads_[next], next, record);
      cost += board_.task.costs.compute;
    }
  }

  template <class GoesOn, class Visit>
  void expand(const State& s, std::int64_t slack, GoesOn&& goes_on, Visit&& visit) const {
    const Bits had = s.red | s.blue;
    every_.without(s.marked).each([&](int e) {
      const int parent = int(board_.task.parents[e]), node = heads_[e];
      if (had >> parent & 1 && s.marked.covers(into_[parent])) step(s, node, parent, slack, goes_on, visit);
    });
    each(board_.all & ~had, [&](int v) {
      if (!board_.parents[v] && !(out_[v].size() && s.marked.covers(out_[v]))) step(s, v, -1, slack, goes_on, visit);
    });
  }

  // A lower bound: every node that has a pebble and is needed must become red again.
  std::int64_t estimate(const State& s) const {
    Bits wanted = 0;
    for (int v = 0; v < board_.n; ++v)
      if (!s.marked.covers(out_[v]) || !s.marked.covers(into_[v])) wanted |= bit<Bits>(v);
    const Bits stores = board_.task.sinks_end_blue ? board_.sinks & (wanted | ~s.blue) & board_.all : Bits(0);
    const PebbleCosts& costs = board_.task.costs;
    return costs.load * board_.words(wanted & s.blue & ~s.red) + costs.store * board_.words(stores) +
           costs.compute * every_.without(s.marked).size();
  }

  // Edges still to be marked.
  int left(const State& s) const { return every_.without(s.marked).size(); }

  State renumber(const State& s, const Renumbering& numbers) const {
    State image;
    image.red = renumbered(s.red, numbers);
    image.blue = renumbered(s.blue, numbers);
    s.marked.each([&](int e) {
      image.marked.add(Edges::one(edge(numbers[heads_[e]], numbers[board_.task.parents[e]])));
    });
    return image;
  }

 private:
  using Edges = EdgeSet<Bits>;

  int edge(int node, int parent) const {
    std::int64_t e = board_.task.starts[node];
    while (board_.task.parents[e] != parent) ++e;
    return int(e);
  }

  Bits lacking(const State& s) const {
    return board_.sinks & ~(board_.task.sinks_end_blue ? s.blue : s.red | s.blue);
  }

  template <class Record>
  void mark(State& s, int node, int e, Record&& record) const {
    record(kCompute, node, int(board_.task.parents[e]));
    s.marked.add(Edges::one(e));
    s.blue &= ~bit<Bits>(node);  // the copy in slow memory is out of date
  }

  template <class GoesOn, class Visit>
  void step(const State& s, int node, int parent, std::int64_t slack, GoesOn& goes_on, Visit& visit) const {
    Bits pair = bit<Bits>(node);
    if (parent >= 0) pair |= bit<Bits>(parent);
    const Bits may = s.red & ~pair;
    const PebbleOffer<Bits> offer{may & s.blue, may & ~s.blue, board_.reload(), board_.task.costs.store, slack};
    auto choice = [&](Bits evicted, Bits stored) { visit(Step{node, parent, evicted, stored}); };
    PebbleEviction(board_, offer, goes_on, choice).evict(board_.words(s.red | pair) - board_.task.red());
  }

  // Returns an edge that can be marked at once, or -1. Either the edge's head is already dark, or the edge is the last
  // edge out of a dark node and its head, not yet begun, can replace that node's pebble.
  int free_mark(const State& s, Bits ready) const {
    const Bits dark = s.red & ~s.blue;
    const std::int64_t spare = board_.task.red() - board_.words(s.red);
    int edge = -1;
    each(s.red & ready, [&](int p) {
      if (edge >= 0) return;
      const Edges open = out_[p].without(s.marked);
      const bool last = open.size() == 1 && dark >> p & 1;
      open.each([&](int e) {
        const int head = heads_[e];
        const bool begun = (s.red | s.blue) >> head & 1;
        const bool fits = board_.task.words[head] <= std::min(spare, board_.task.words[p]);
        if (dark >> head & 1 || (last && !begun && fits)) edge = e;
      });
    });
    return edge;
  }

  PebbleBoardBits<Bits> board_;
  int edges_;
  std::vector<int> heads_;
  std::vector<Edges> into_, out_;
  Edges every_;
};

}  // namespace redblue
