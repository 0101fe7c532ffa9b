// Input and result of the search for the cheapest pebble game. Costs are whole numbers.
#pragma once
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "pebble/referee.h"
#include "pebble/bits.h"

namespace redblue {

struct PebbleCosts {
  std::int64_t load = 1, store = 1;  // per word
  std::int64_t compute = 0;          // per computed node; with partial computation, per marked edge
};

// A board with two levels of memory, and the costs of moves on it.
struct PebbleTask : PebbleBoard {
  PebbleCosts costs;

  std::int64_t red() const { return capacities[0]; }  // words of red pebbles
};

// The progress of a search.
struct PebbleProgress {
  std::int64_t cost = -1;                // of the cheapest game so far; -1 until a game is found
  std::int64_t lower_bound = 0;          // on the cost of every game
  std::int64_t expanded = 0, stored = 0;  // states
};

struct PebbleResult {
  PebbleProgress at;
  bool proved = false;
  std::vector<std::int8_t> kinds;
  std::vector<std::int64_t> nodes, parents;
};

struct PebbleLimits {
  double seconds = 0;          // 0: none
  std::int64_t bytes = 0;      // of memory
  int beam = 1000;             // states per level of the beam search for a first game
  int symmetries = 0;          // the most symmetries of the graph to use
  std::function<bool(const PebbleProgress&)> keep_on;  // called from time to time; false stops the search
};

// Finds the cheapest game of at most 128 nodes and, with partial computation, at most 256 edges. Throws
// std::invalid_argument for larger graphs, for arrays of inconsistent lengths, and for more than two levels of memory.
PebbleResult search_pebbles(const PebbleTask& task, const PebbleLimits& limits);

// The task's graph and rules, with sets of nodes as bits.
template <class Bits>
struct PebbleBoardBits {
  explicit PebbleBoardBits(const PebbleTask& source) : task(source), n(int(source.nodes())) {
    if (n > kWidth<Bits>) throw std::invalid_argument("too many nodes for this search");
    parents.assign(n, 0);
    children.assign(n, 0);
    for (int v = 0; v < n; ++v) {
      all |= bit<Bits>(v);
      if (task.blue[v]) blue |= bit<Bits>(v);
      if (task.words[v] != 1) unit = false;
      for (std::int64_t e = task.starts[v]; e < task.starts[v + 1]; ++e) {
        parents[v] |= bit<Bits>(int(task.parents[e]));
        children[task.parents[e]] |= bit<Bits>(v);
      }
    }
    for (int v = 0; v < n; ++v)
      if (!children[v]) sinks |= bit<Bits>(v);
  }

  std::int64_t words(Bits set) const {
    if (unit) return count(set);
    std::int64_t sum = 0;
    each(set, [&](int v) { sum += task.words[v]; });
    return sum;
  }

  // Without recomputation: the least later cost of each evicted word. It is a load, unless the node may be a sink,
  // which need not be loaded again.
  std::int64_t reload() const { return task.sinks_end_blue ? task.costs.load : 0; }

  PebbleTask task;
  int n;
  bool unit = true;
  Bits all = 0, blue = 0, sinks = 0;
  std::vector<Bits> parents, children;
};

using Renumbering = std::vector<std::uint8_t>;  // the new number of each node

// Records a game move by move, in the node numbers of the original graph.
struct PebbleRecord {
  PebbleResult& result;
  const Renumbering& original;
  void operator()(PebbleMove kind, int node, int parent = -1) const {
    result.kinds.push_back(std::int8_t(kind));
    result.nodes.push_back(original[node]);
    result.parents.push_back(parent < 0 ? parent : original[parent]);
  }
};

struct NoRecord {
  void operator()(PebbleMove, int, int = -1) const {}
};

}  // namespace redblue
