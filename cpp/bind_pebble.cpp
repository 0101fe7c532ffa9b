// Python bindings of the pebble game: its referee, its player, and the search for the cheapest game.
#include "bindings.h"
#include "pebble/player.h"
#include "pebble/referee.h"
#include "pebble/task.h"

namespace {

using Flags = Numbers<std::uint8_t>;
using redblue::PebbleReferee;

void bind_board(nb::module_& m) {
  nb::class_<redblue::PebbleBoard>(m, "PebbleBoard")
      .def(
          "__init__",
          [](redblue::PebbleBoard* self, const Lines& starts, const Lines& parents, const Lines& words,
             const Lines& capacities, const Flags& blue, const Flags& free, bool once, bool partial, bool sliding,
             bool keeps_sinks) {
            redblue::PebbleBoard board{to_vector(starts),
                                       to_vector(parents),
                                       to_vector(words),
                                       to_vector(capacities),
                                       to_vector(blue),
                                       to_vector(free),
                                       once,
                                       partial,
                                       sliding,
                                       keeps_sinks};
            board.check();
            new (self) redblue::PebbleBoard(std::move(board));
          },
          "starts"_a, "parents"_a, "words"_a, "capacities"_a, "blue"_a, "free"_a, "once"_a = false, "partial"_a = false,
          "sliding"_a = false, "keeps_sinks"_a = true);
}

void bind_player(nb::module_& m) {
  m.def(
      "pebble_play",
      [](const redblue::PebbleBoard& board, const Lines& order, bool recent, double ratio, bool recomputes) {
        redblue::PebbleMoves moves;
        {
          const nb::gil_scoped_release others_may_run;
          moves = redblue::PebblePlayer(board, {recent, ratio}, recomputes).play(order.data(), order.shape(0));
        }
        return nb::make_tuple(copied(moves.kinds), copied(moves.nodes), copied(moves.parents));
      },
      "board"_a, "order"_a, "recent"_a, "ratio"_a, "recomputes"_a);
}

void bind_referee(nb::module_& m) {
  nb::class_<PebbleReferee>(m, "PebbleReferee")
      .def(nb::init<redblue::PebbleBoard>(), "board"_a)
      .def(
          "play",
          [](PebbleReferee& self, const Kinds& kinds, const Lines& nodes, const Lines& parents, const Kinds& levels) {
            const std::size_t count = kinds.shape(0);
            if (nodes.shape(0) != count || parents.shape(0) != count || levels.shape(0) != count)
              throw std::invalid_argument("a game's arrays have one length");
            const nb::gil_scoped_release others_may_run;
            return self.play(kinds.data(), nodes.data(), parents.data(), levels.data(), count);
          },
          "kinds"_a, "nodes"_a, "parents"_a, "levels"_a)
      .def_prop_ro("broken", [](const PebbleReferee& self) { return int(self.broken()); })
      .def("have", [](const PebbleReferee& self) { return copied(self.have()); })
      .def("marked_in", [](const PebbleReferee& self) { return copied(self.marked_in()); })
      .def_prop_ro("held", &PebbleReferee::held)
      .def_prop_ro("peak", &PebbleReferee::peak)
      .def_prop_ro("loaded", &PebbleReferee::loaded)
      .def_prop_ro("stored", &PebbleReferee::stored)
      .def_prop_ro("computes", &PebbleReferee::computes);
}

// Returns whether the search may continue, according to the Python function `keep_on`. Ctrl-C ends the search, not the
// program.
bool keeps_on(const nb::callable& keep_on, const redblue::PebbleProgress& at) {
  const nb::gil_scoped_acquire python;
  if (PyErr_CheckSignals() != 0) {
    if (!PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) throw nb::python_error();
    PyErr_Clear();
    return false;
  }
  try {
    return nb::cast<bool>(keep_on(at.cost, at.lower_bound, at.expanded, at.stored));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_KeyboardInterrupt)) throw;
    return false;
  }
}

void bind_search(nb::module_& m) {
  m.def(
      "search_pebbles",
      [](const Lines& starts, const Lines& parents, const Lines& words, const Flags& blue, std::int64_t red,
         const std::array<std::int64_t, 3>& costs, const std::array<bool, 4>& flags, double seconds, std::int64_t bytes,
         int beam, int symmetries, const nb::callable& keep_on) {
        const auto [once, partial, sliding, sinks_end_blue] = flags;
        const redblue::PebbleTask task{to_vector(starts),
                                       to_vector(parents),
                                       to_vector(words),
                                       to_vector(blue),
                                       red,
                                       costs[0],
                                       costs[1],
                                       costs[2],
                                       once,
                                       partial,
                                       sliding,
                                       sinks_end_blue};
        const auto asks = [&](const redblue::PebbleProgress& at) { return keeps_on(keep_on, at); };
        const redblue::PebbleResult result = [&] {
          const nb::gil_scoped_release others_may_run;
          return redblue::search_pebbles(task, {seconds, bytes, beam, symmetries, asks});
        }();
        return nb::make_tuple(result.at.cost, result.at.lower_bound, result.proved, result.at.expanded,
                              copied(result.kinds), copied(result.nodes), copied(result.parents));
      },
      "starts"_a, "parents"_a, "words"_a, "blue"_a, "red"_a, "costs"_a, "flags"_a, "seconds"_a, "bytes"_a, "beam"_a,
      "symmetries"_a, "keep_on"_a);
}

}  // namespace

void bind_pebble(nb::module_& m) {
  bind_board(m);
  bind_player(m);
  bind_referee(m);
  bind_search(m);
}
