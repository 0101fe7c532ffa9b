#include "pebble/search.h"

namespace redblue {

namespace {

template <class Bits>
PebbleResult search(const PebbleTask& task, const PebbleLimits& limits) {
  PebbleWatch watch(limits);
  const PebbleBoardBits<Bits> board(task);
  const std::vector<Renumbering> symmetries = PebbleSymmetries(board, std::size_t(limits.symmetries), watch).list();
  if (task.partial) return PebbleSearch<PartialRules<Bits>>(task, limits, symmetries, watch).run();
  // A game that computes each node once is also legal with recomputation, and is found sooner.
  PebbleTask once = task;
  once.once = true;
  PebbleResult known;
  if (!task.once) known = PebbleSearch<RedBlueRules<Bits>>(once, limits, symmetries, watch).first_game();
  return PebbleSearch<RedBlueRules<Bits>>(task, limits, symmetries, watch).run(std::move(known));
}

}  // namespace

PebbleResult search_pebbles(const PebbleTask& task, const PebbleLimits& limits) {
  task.check();
  if (task.capacities.size() != 1) throw std::invalid_argument("a game is searched on two levels of memory");
  const bool small = task.nodes() <= 64 && (!task.partial || task.parents.size() <= 128);
  return small ? search<Bits64>(task, limits) : search<Bits128>(task, limits);
}

}  // namespace redblue
