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
             bool sinks_end_blue) {
            redblue::PebbleBoard board{to_vector(starts),
                                       to_vector(parents),
                                       to_vector(words),
                                       to_vector(capacities),
                                       to_vector(blue),
                                       to_vector(free),
                                       once,
                                       partial,
                                       sliding,
                                       sinks_end_blue};
            board.check();
            new (self) redblue::PebbleBoard(std::move(board));
          },
          "starts"_a, "parents"_a, "words"_a, "capacities"_a, "blue"_a, "free"_a, "once"_a = false, "partial"_a = false,
          "sliding"_a = false, "sinks_end_blue"_a = true);
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
    return nb::cast<bool>(keep_on(at));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_KeyboardInterrupt)) throw;
    return false;
  }
}

void bind_search_structs(nb::module_& m) {
  using redblue::PebbleCosts;
  using redblue::PebbleLimits;
  using redblue::PebbleProgress;
  using redblue::PebbleResult;
  nb::class_<PebbleCosts>(m, "PebbleCosts")
      .def(
          "__init__",
          [](PebbleCosts* self, std::int64_t load, std::int64_t store, std::int64_t compute) {
            new (self) PebbleCosts{load, store, compute};
          },
          "load"_a, "store"_a, "compute"_a)
      .def_ro("load", &PebbleCosts::load)
      .def_ro("store", &PebbleCosts::store)
      .def_ro("compute", &PebbleCosts::compute);
  nb::class_<PebbleLimits>(m, "PebbleLimits")
      .def(
          "__init__",
          [](PebbleLimits* self, double seconds, std::int64_t bytes, int beam, int symmetries) {
            new (self) PebbleLimits{seconds, bytes, beam, symmetries, {}};
          },
          "seconds"_a, "bytes"_a, "beam"_a, "symmetries"_a);
  nb::class_<PebbleProgress>(m, "PebbleProgress")
      .def_ro("cost", &PebbleProgress::cost)
      .def_ro("lower_bound", &PebbleProgress::lower_bound)
      .def_ro("expanded", &PebbleProgress::expanded)
      .def_ro("stored", &PebbleProgress::stored);
  nb::class_<PebbleResult>(m, "PebbleResult")
      .def_prop_ro("cost", [](const PebbleResult& self) { return self.at.cost; })
      .def_prop_ro("lower_bound", [](const PebbleResult& self) { return self.at.lower_bound; })
      .def_prop_ro("expanded", [](const PebbleResult& self) { return self.at.expanded; })
      .def_ro("proved", &PebbleResult::proved)
      .def_prop_ro("kinds", [](const PebbleResult& self) { return copied(self.kinds); }, nb::rv_policy::automatic)
      .def_prop_ro("nodes", [](const PebbleResult& self) { return copied(self.nodes); }, nb::rv_policy::automatic)
      .def_prop_ro("parents", [](const PebbleResult& self) { return copied(self.parents); }, nb::rv_policy::automatic);
}

void bind_search(nb::module_& m) {
  m.def(
      "search_pebbles",
      [](const redblue::PebbleBoard& board, const redblue::PebbleCosts& costs, redblue::PebbleLimits limits,
         const nb::callable& keep_on) {
        limits.keep_on = [&](const redblue::PebbleProgress& at) { return keeps_on(keep_on, at); };
        const nb::gil_scoped_release others_may_run;
        return redblue::search_pebbles({board, costs}, limits);
      },
      "board"_a, "costs"_a, "limits"_a, "keep_on"_a);
}

}  // namespace

void bind_pebble(nb::module_& m) {
  bind_board(m);
  bind_player(m);
  bind_referee(m);
  bind_search_structs(m);
  bind_search(m);
}
