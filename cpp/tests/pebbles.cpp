// Tests random small pebble games, in builds with sanitizers (make sanitize). The referee gets random moves, and must
// accept the games of the player and of the search, also of a search that is stopped. Usage: pebbles [games] [seed];
// prints the number of a failing game.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "pebble/player.h"
#include "pebble/search.h"
#include "pebble/task.h"

using namespace redblue;

namespace {

std::mt19937_64 generator;
std::int64_t pick(std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
}
bool chance(double share) { return std::bernoulli_distribution(share)(generator); }

PebbleBoard random_board() {
  PebbleBoard board;
  const std::int64_t n = pick(1, 10), sources = pick(1, 3);
  board.starts = {0};
  for (std::int64_t v = 0; v < n; ++v) {
    if (v >= sources)
      for (std::int64_t p = 0; p < v; ++p)
        if (p == v - 1 || chance(0.3)) board.parents.push_back(p);
    board.starts.push_back(std::int64_t(board.parents.size()));
    board.words.push_back(chance(0.8) ? 1 : 2);
    const bool source = board.starts[v] == board.starts[v + 1];
    board.blue.push_back(source);
    board.free.push_back(0);
  }
  board.partial = chance(0.3);
  board.once = !board.partial && chance(0.5);
  board.sliding = !board.partial && chance(0.3);
  std::int64_t least = 1;
  for (std::int64_t v = 0; v < n; ++v) {
    std::int64_t words = board.words[v];
    for (std::int64_t e = board.starts[v]; e < board.starts[v + 1]; ++e) words += board.words[board.parents[e]];
    least = std::max(least, words);
  }
  board.capacities = {least + pick(0, 2)};
  return board;
}

// Returns the words that the referee counts, or -1 if a move is illegal or a sink is not blue at the end.
std::int64_t judged(const PebbleBoard& board, const PebbleMoves& moves) {
  PebbleReferee referee(board);
  const std::vector<std::int8_t> levels(moves.kinds.size(), 0);
  const std::size_t count = moves.kinds.size();
  if (referee.play(moves.kinds.data(), moves.nodes.data(), moves.parents.data(), levels.data(), count) != count)
    return -1;
  std::vector<std::uint8_t> inner(board.words.size(), 0);
  for (const std::int64_t p : board.parents) inner[p] = 1;
  for (std::size_t v = 0; v < inner.size(); ++v)
    if (!inner[v] && !(referee.have()[v] & 2)) return -1;
  return referee.loaded()[0] + referee.stored()[0];
}

bool one_game() {
  const PebbleBoard board = random_board();
  const std::int64_t n = board.nodes();
  PebbleMoves wild;
  for (int i = 0; i < 30; ++i) {
    wild.kinds.push_back(std::int8_t(pick(-1, 4)));
    wild.nodes.push_back(pick(-1, n));
    wild.parents.push_back(pick(-2, n));
  }
  judged(board, wild);  // legal or not, the moves must not access memory out of bounds

  std::vector<std::int64_t> order;
  for (std::int64_t v = 0; v < n; ++v)
    if (board.starts[v] != board.starts[v + 1]) order.push_back(v);
  const PebblePolicy policy{chance(0.5), double(pick(1, 3))};
  const std::int64_t played = judged(board, PebblePlayer(board, policy, chance(0.5)).play(order.data(), order.size()));

  const PebbleTask task{board, {}};
  const auto keep_on = [](const PebbleProgress&) { return true; };
  const PebbleResult result = search_pebbles(task, {0, std::int64_t(1) << 30, 10, 16, keep_on});
  const std::int64_t best = judged(board, {result.kinds, result.nodes, result.parents});
  if (!result.proved || best != result.at.cost || best > played) return false;

  const double seconds = 1e-6 * double(pick(1, 200));
  const PebbleResult early = search_pebbles(task, {seconds, std::int64_t(1) << 30, 10, 16, keep_on});
  const bool legal = early.at.cost < 0 || judged(board, {early.kinds, early.nodes, early.parents}) == early.at.cost;
  return legal && early.at.lower_bound <= best && (early.at.cost < 0 || best <= early.at.cost);
}

}  // namespace

int main(int count, char** arguments) {
  const long games = count > 1 ? std::atol(arguments[1]) : 300;
  const std::uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
  for (long game = 0; game < games; game++) {
    generator.seed(seed * 1000003 + game);
    if (!one_game()) {
      std::printf("FAILED: seed %llu, game %ld\n", static_cast<unsigned long long>(seed), game);
      return 1;
    }
  }
  std::printf("%ld pebble games: as expected\n", games);
  return 0;
}
