// Finds the cheapest pebble game and proves it: A* over settled states, after a beam search for an upper bound.
#pragma once
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <queue>

#include "pebble/partial.h"
#include "pebble/red_blue.h"
#include "pebble/states.h"
#include "pebble/watch.h"

namespace redblue {

// A* (Hart, Nilsson, Raphael 1968): expands states in the order of cost so far plus `estimate`, a lower bound. States
// that a symmetry of the graph maps to each other count as one. States that cannot beat the best known game are
// dropped.
template <class Rules>
class PebbleSearch {
 public:
  using State = typename Rules::State;
  using States = PebbleStates<State>;

  PebbleSearch(const PebbleTask& task, const PebbleLimits& limits, const std::vector<Renumbering>& symmetries,
               PebbleWatch& watch)
      : rules_(task), limits_(limits), symmetries_(symmetries), watch_(watch),
        step_(std::max<std::int64_t>(1, std::min(task.costs.load, task.costs.store))) {}

  // Finds a good game, if the limits allow it. known: a game to beat, legal by these rules.
  PebbleResult first_game(PebbleResult known = {}) {
    result_ = std::move(known);
    const State first = begin();
    for (int beam = 1; beam <= limits_.beam && !watch_.stopped(); beam *= 10) sweep(first, beam);
    return result_;
  }

  PebbleResult run(PebbleResult known = {}) {
    first_game(std::move(known));
    if (!watch_.stopped()) best_first(begin());
    if (result_.proved) result_.at.lower_bound = result_.at.cost;
    return std::move(result_);
  }

 private:
  static constexpr int kSweeps = 8;
  static constexpr int kAskEvery = 1024;  // evictions
  static constexpr std::int64_t kNever = std::numeric_limits<std::int32_t>::max();

  State begin() {
    State first = rules_.first();
    begin_cost_ = rules_.settle(first, NoRecord{});
    first = canonical(first);
    result_.at.lower_bound = begin_cost_ + rules_.estimate(first);
    return first;
  }

  // Finds a game without a proof by beam search. A sweep visits the levels of remaining work from most to least and
  // expands the best `beam` states of each level.
  void sweep(const State& first, int beam) {
    using Ranked = std::pair<std::int64_t, std::uint32_t>;
    std::map<int, std::priority_queue<Ranked, std::vector<Ranked>, std::greater<>>, std::greater<>> levels;
    States states;
    const std::uint32_t root = states.add(first, States::kNone, begin_cost_, 0);
    if (rules_.finished(first)) finish(states, root);
    levels[rules_.left(first)].emplace(0, root);
    for (int round = 0; round < kSweeps && !watch_.stopped(); ++round)
      for (auto& [left, level] : levels)
        for (int k = 0; k < beam && !level.empty() && fits(states) && goes_on(states); ++k) {
          const auto [total, i] = level.top();
          level.pop();
          if (total < upper())
            grow(states, i, upper() - 1, [&](std::uint32_t child, std::int64_t least_total) {
              levels[rules_.left(states[child].state)].emplace(least_total, child);
            });
        }
  }

  // Expands states in ascending order of their totals (cost so far plus estimate). An expansion for one total reaches
  // only the next states with this total; the state is expanded again for each larger total.
  void best_first(const State& first) {
    States states;
    std::map<std::int64_t, std::vector<std::uint32_t>> open;
    const std::int64_t least_total = begin_cost_ + rules_.estimate(first);
    const std::uint32_t root = states.add(first, States::kNone, begin_cost_, least_total);
    if (rules_.finished(first)) {  // grow() tests only the states that it reaches, not the first state
      if (begin_cost_ < upper()) finish(states, root);
      result_.proved = true;
      return;
    }
    open[least_total].push_back(root);
    while (!open.empty() && open.begin()->first < upper()) {
      const auto at = open.begin();
      if (at->second.empty()) {
        open.erase(at);
        continue;
      }
      const std::int64_t due = at->first, next = due + step_;
      result_.at.lower_bound = std::max(result_.at.lower_bound, due);
      const std::uint32_t i = at->second.back();
      at->second.pop_back();
      if (states[i].due != due) continue;
      if (!fits(states) || !goes_on(states)) return;
      states[i].due = std::int32_t(next);
      if (!grow(states, i, next - 1, [&](std::uint32_t child, std::int64_t total) { open[total].push_back(child); }))
        return;
      if (next < upper()) open[next].push_back(i);
    }
    result_.proved = result_.at.cost >= 0;
  }

  // Expands state i: calls visit(number, total) for every state that a step from it reaches more cheaply than before.
  // total: a lower bound on the cost of a game through that state; states with a larger total than `most` are skipped.
  // Returns false if the limits ended the expansion before all of its steps.
  template <class Visit>
  bool grow(States& states, std::uint32_t i, std::int64_t most, Visit&& visit) {
    const State from = states[i].state;
    const std::int64_t so_far = states[i].cost;
    ++result_.at.expanded;
    bool complete = true;
    const auto goes_on = [&] {
      return complete = complete && may_try() && (tried_ % kAskEvery || fits(states));
    };
    rules_.expand(from, most - so_far - rules_.estimate(from), goes_on, [&](const typename Rules::Step& step) {
      State to = from;
      const std::int64_t cost = so_far + rules_.play(to, step, NoRecord{});
      if (cost > most) return;
      const std::int64_t total = cost + rules_.estimate(to);
      if (total > most || total >= upper()) return;
      to = canonical(to);
      std::uint32_t child = states.find(to);
      if (child != States::kNone && states[child].cost <= cost) return;
      if (child == States::kNone) {
        child = states.add(to, i, cost, total);
      } else {
        states[child].from = i;
        states[child].cost = std::int32_t(cost);
        states[child].due = std::int32_t(total);
      }
      if (rules_.finished(to))
        finish(states, child);
      else
        visit(child, total);
    });
    return complete && !watch_.stopped();  // a stopped finish() loses a game
  }

  // Records the game that leads to a finished state, unless it is stopped. Symmetries renumber the nodes of each state
  // on the path; `original` maps a node to its number in the graph.
  void finish(States& states, std::uint32_t last) {
    std::vector<std::uint32_t> way;
    for (std::uint32_t i = last; i != States::kNone; i = states[i].from) way.push_back(i);
    PebbleResult game;
    game.at = result_.at;
    Renumbering original(rules_.board().n);
    std::iota(original.begin(), original.end(), std::uint8_t(0));
    State now = rules_.first();
    game.at.cost = rules_.settle(now, PebbleRecord{game, original});
    canonical(now, &original);
    for (std::size_t k = way.size() - 1; k-- > 0;) {
      now = states[way[k + 1]].state;
      const State next = states[way[k]].state;
      const std::int64_t paid = states[way[k]].cost - states[way[k + 1]].cost;
      std::int64_t least_cost = kNever;
      typename Rules::Step best{};
      const auto goes_on = [&] { return least_cost > paid && may_try(); };
      const std::int64_t slack = paid + rules_.estimate(next) - rules_.estimate(now);
      rules_.expand(now, slack, goes_on, [&](const typename Rules::Step& step) {
        State to = now;
        const std::int64_t cost = rules_.play(to, step, NoRecord{});
        if (cost < least_cost && canonical(to) == next) best = step, least_cost = cost;
      });
      if (watch_.stopped()) return;
      if (least_cost == kNever) throw std::logic_error("a step of the game cannot be found again");
      game.at.cost += rules_.play(now, best, PebbleRecord{game, original});
      canonical(now, &original);
    }
    result_ = std::move(game);
  }

  // Returns the representative of all states to which symmetries map this state. Renumbers `original` accordingly.
  State canonical(const State& state, Renumbering* original = nullptr) const {
    State best = state;
    const Renumbering* by = nullptr;
    for (const Renumbering& numbers : symmetries_) {
      if (best.red < renumbered(state.red, numbers)) continue;
      const State image = rules_.renumber(state, numbers);
      if (image < best) best = image, by = &numbers;
    }
    if (original && by) {
      const Renumbering before = *original;
      for (std::size_t v = 0; v < before.size(); ++v) (*original)[(*by)[v]] = before[v];
    }
    return best;
  }

  std::int64_t upper() const { return result_.at.cost < 0 ? kNever : result_.at.cost; }

  bool fits(const States& states) const { return states.bytes() <= limits_.bytes; }

  // Returns whether the next state may be expanded.
  bool goes_on(const States& states) {
    result_.at.stored = states.size();
    if (result_.at.expanded % 64 == 0) watch_.goes_on(result_.at);
    return !watch_.stopped();
  }

  // Counts an eviction that is tried, and returns whether the search may continue. Between two states there may be
  // thousands of millions of evictions.
  bool may_try() {
    if (++tried_ % kAskEvery == 0) watch_.goes_on(result_.at);
    return !watch_.stopped();
  }

  Rules rules_;
  const PebbleLimits& limits_;
  const std::vector<Renumbering>& symmetries_;
  PebbleWatch& watch_;
  std::int64_t step_;  // the difference between totals at which a state is expanded again
  std::int64_t tried_ = 0;  // evictions
  std::int64_t begin_cost_ = 0;
  PebbleResult result_;
};

}  // namespace redblue
