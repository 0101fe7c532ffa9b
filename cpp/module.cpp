// The Python face of the compiled core; the only file that knows Python. Types and docstrings are in _core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "simulator/belady.h"
#include "simulator/cache.h"
#include "vector/isa.h"
#include "attention/call.h"
#include "vector/rates.h"
#include "meter/meter.h"
#include "pebble/referee.h"
#include "pebble/player.h"
#include "pebble/task.h"

namespace nb = nanobind;
using namespace nb::literals;
using redblue::Isa;
using Lines = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Kinds = nb::ndarray<const std::int8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

namespace {

void check_trace(const Lines& lines, const Kinds& kinds) {
  if (lines.shape(0) != kinds.shape(0)) throw std::invalid_argument("a trace has as many kinds as lines");
}

template <class T>
auto copied(const std::vector<T>& values) {
  T* data = new T[values.size()];
  std::copy(values.begin(), values.end(), data);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {values.size()}, owner);
}

template <class T>
std::vector<T> taken(const nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& array) {
  return {array.data(), array.data() + array.shape(0)};
}

using redblue::Array;
using redblue::Call;

// (address, lead strides..., head, row, column), strides in elements; None: not given.
Array make_array(nb::handle given, int leads) {
  Array array;
  if (given.is_none()) return array;
  const auto parts = nb::cast<nb::tuple>(given);
  if (parts.size() != std::size_t(leads) + 4) throw std::invalid_argument("an array is (address, strides...)");
  array.data = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(parts[0]));
  for (int i = 0; i < leads; i++) array.lead[i] = nb::cast<std::int64_t>(parts[1 + i]);
  array.head = nb::cast<std::int64_t>(parts[leads + 1]);
  array.row = nb::cast<std::int64_t>(parts[leads + 2]);
  array.column = nb::cast<std::int64_t>(parts[leads + 3]);
  return array;
}

// (addresses of starts, runs and bits, planes as an array, panel, panels, number of planes, scattered).
redblue::Pattern make_pattern(nb::handle given, int leads) {
  redblue::Pattern pattern;
  if (given.is_none()) return pattern;
  const auto parts = nb::cast<nb::tuple>(given);
  pattern.starts = reinterpret_cast<const std::int64_t*>(nb::cast<std::uintptr_t>(parts[0]));
  pattern.runs = reinterpret_cast<const redblue::Run*>(nb::cast<std::uintptr_t>(parts[1]));
  pattern.bits = reinterpret_cast<const std::uint64_t*>(nb::cast<std::uintptr_t>(parts[2]));
  pattern.planes = make_array(parts[3], leads);
  std::int64_t* const fields[] = {&pattern.panel, &pattern.panels, &pattern.planes_count};
  for (int i = 0; i < 3; i++) *fields[i] = nb::cast<std::int64_t>(parts[4 + i]);
  pattern.scattered = nb::cast<bool>(parts[7]);
  return pattern;
}

// Addresses of (starts by query, keys, starts by key, queries), and the sizes that they are for.
redblue::Edges make_edges(nb::handle given, const Call& call) {
  redblue::Edges edges;
  if (given.is_none()) return edges;
  const auto parts = nb::cast<nb::tuple>(given);
  const auto address = [&](int i) { return nb::cast<std::uintptr_t>(parts[i]); };
  edges.query_starts = reinterpret_cast<const std::int64_t*>(address(0));
  edges.keys = reinterpret_cast<const std::int32_t*>(address(1));
  edges.key_starts = reinterpret_cast<const std::int64_t*>(address(2));
  edges.queries = reinterpret_cast<const std::int32_t*>(address(3));
  edges.n_q = call.n_q, edges.n_k = call.n_k;
  return edges;
}

// See redblue.kernels.cpu.plan.SpillTile.
redblue::SpillTiles make_tiles(nb::handle given) {
  redblue::SpillTiles t;
  const auto edges = nb::cast<nb::tuple>(given);
  t.stays = nb::cast<std::int64_t>(edges[0]);
  std::int64_t* const fields[] = {&t.rows,    &t.cols,    &t.depth,   &t.out_rows, &t.out_cols,
                                  &t.dk_rows, &t.dk_cols, &t.dv_rows, &t.dv_cols,  &t.chunk};
  for (int i = 0; i < 10; i++) *fields[i] = nb::cast<std::int64_t>(edges[i + 1]);
  if (t.rows < 1) throw std::invalid_argument("tile edges must be at least 1");
  return t;
}

// What both passes share. sizes: (lead..., kv_heads, group, n_q, n_k, d, d_v). mask: (first, end, pattern, by_query,
// edges).
// tile: (rows, cols, pieces, threads, tiles of a schedule that writes P or None, and backward, where dQ has a pass of its
// own, the keys that stream by together in it).
Call make_call(int number, const nb::tuple& sizes, const nb::tuple& arrays, const nb::tuple& mask,
               double scale, double softcap, int bias_number, double dropout, std::uint64_t seed, const nb::tuple& tile) {
  Call call;
  call.leads = int(sizes.size()) - 6;
  if (call.leads < 0 || call.leads >= redblue::kMaxLead)
    throw std::invalid_argument("at most " + std::to_string(redblue::kMaxLead - 1) + " leading dimensions");
  call.number = redblue::Number(number);
  for (int i = 0; i < call.leads; i++) call.lead_sizes[i] = nb::cast<std::int64_t>(sizes[i]);
  std::int64_t* const fields[] = {&call.kv_heads, &call.group, &call.n_q, &call.n_k, &call.d, &call.d_v};
  for (int i = 0; i < 6; i++) *fields[i] = nb::cast<std::int64_t>(sizes[call.leads + i]);
  Array* const given[] = {&call.q,    &call.k,  &call.v,  &call.out, &call.lse,  &call.bias,  &call.sinks,
                          &call.dout, &call.dq, &call.dk, &call.dv,  &call.dlse, &call.delta, &call.dbias};
  for (std::size_t i = 0; i < arrays.size() && i < std::size(given); i++) *given[i] = make_array(arrays[i], call.leads);
  call.first = nb::cast<std::int64_t>(mask[0]);
  call.end = nb::cast<std::int64_t>(mask[1]);
  call.pattern = make_pattern(mask[2], call.leads);
  call.by_query = make_pattern(mask[3], call.leads);
  call.edges = make_edges(mask[4], call);
  call.scale = scale;
  call.softcap = softcap;
  call.bias_number = redblue::Number(bias_number);
  call.dropout = dropout;
  call.seed = seed;
  call.rows = nb::cast<std::int64_t>(tile[0]);
  call.cols = nb::cast<std::int64_t>(tile[1]);
  call.pieces = nb::cast<std::int64_t>(tile[2]);
  call.threads = nb::cast<int>(tile[3]);
  if (tile.size() > 4 && !tile[4].is_none()) call.spilled = make_tiles(tile[4]);
  if (tile.size() > 5) call.dq_cols = nb::cast<std::int64_t>(tile[5]);
  if (call.rows < 1 || call.cols < 1 || call.dq_cols < 0) throw std::invalid_argument("tile edges must be at least 1");
  return call;
}

template <redblue::Moved (*pass)(const Call&, const Isa&)>
std::pair<std::int64_t, std::int64_t> run_pass(const Isa& isa, int number, const nb::tuple& sizes, const nb::tuple& arrays,
                                               const nb::tuple& mask, double scale, double softcap, int bias_number,
                                               double dropout, std::uint64_t seed, const nb::tuple& tile) {
  const Call call = make_call(number, sizes, arrays, mask, scale, softcap, bias_number, dropout, seed, tile);
  const nb::gil_scoped_release others_may_run;
  const redblue::Measured measured;
  const redblue::Moved moved = pass(call, isa);
  return {moved.reads, moved.writes};
}

}  // namespace

NB_MODULE(_core, m) {
  nb::class_<Isa>(m, "Isa")
      .def_prop_ro("name", [](const Isa& isa) { return isa.name; })
      .def_prop_ro("supported", [](const Isa& isa) { return isa.supported(); })
      .def_ro("vector_bytes", &Isa::vector_bytes)
      .def_ro("vector_registers", &Isa::vector_registers)
      .def("lanes", [](const Isa& isa, int number) { return isa.kernels[number & 3].lanes; }, "number"_a)
      .def("packed_bytes", [](const Isa& isa, int number) { return isa.kernels[number & 3].packed_bytes; }, "number"_a)
      .def_prop_ro("has_bfloat16", [](const Isa& isa) { return isa.chains_bf16 != nullptr; });

  m.def("list_isas", [] {
    nb::list rows;
    for (const Isa* isa : redblue::list_isas()) rows.append(nb::cast(isa, nb::rv_policy::reference));
    return rows;
  });
  m.def("choose_isa", &redblue::choose_isa, "isa"_a = "", nb::rv_policy::reference);

  using Starts = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using Places = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def(
      "by_key",
      [](Starts query_starts, Places keys, std::int64_t n_k) {
        const std::int64_t n_q = std::int64_t(query_starts.shape(0)) - 1;
        const auto found = redblue::by_key(query_starts.data(), keys.data(), n_q, n_k);
        return nb::make_tuple(copied(found.starts), copied(found.queries));
      },
      "query_starts"_a, "keys"_a, "n_k"_a);
  m.def("attention_forward", run_pass<redblue::forward>);
  m.def("attention_backward", run_pass<redblue::backward>);

  m.def("under_valgrind", &redblue::under_valgrind);
  m.def(
      "meter_arm",
      [](const std::vector<std::pair<std::uintptr_t, std::size_t>>& outputs, std::size_t line_bytes) {
        std::vector<redblue::Output> kept;
        for (const auto& [address, bytes] : outputs) kept.push_back({address, bytes});
        redblue::meter().arm(std::move(kept), line_bytes);
      },
      "outputs"_a, "line_bytes"_a);
  m.def("meter_start", [] { redblue::meter().start(); });
  m.def("meter_stop", [] { redblue::meter().stop(); });
  m.def(
      "meter_loop",
      [](const std::string& name, std::uintptr_t to, std::uintptr_t other, std::uintptr_t third, std::size_t count,
         std::size_t step) {
        double* const c = reinterpret_cast<double*>(to);
        const double* const a = reinterpret_cast<const double*>(other);
        const double* const b = reinterpret_cast<const double*>(third);
        const redblue::Measured measured;
        if (name == "copy") redblue::copy_loop(c, a, count);
        else if (name == "strided") redblue::strided_loop(a, count, step, 2);
        else if (name == "product") redblue::product_loop(c, a, b, count, step);
        else throw std::invalid_argument("no loop of that name");
      },
      "name"_a, "to"_a, "other"_a, "third"_a, "count"_a, "step"_a);
  using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using Doubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def("exp", [](Floats x, const Isa& isa) { isa.exp_fp32(x.data(), x.shape(0)); });
  m.def("exp", [](Doubles x, const Isa& isa) { isa.exp_fp64(x.data(), x.shape(0)); });
  m.def("exp2", [](Floats x, const Isa& isa) { isa.exp2_fp32(x.data(), x.shape(0)); });
  m.def("exp2", [](Doubles x, const Isa& isa) { isa.exp2_fp64(x.data(), x.shape(0)); });

  m.def(
      "multiply_add",
      [](float a, float b, float c, const std::string& dtype, const std::string& isa) {
        return redblue::multiply_add(a, b, c, dtype, redblue::choose_isa(isa));
      },
      "a"_a, "b"_a, "c"_a, "dtype"_a = "float32", "isa"_a = "");

  m.def(
      "multiply_add_rate",
      [](const std::string& dtype, int threads, double seconds, const std::string& isa) {
        return redblue::multiply_add_rate(dtype, threads, seconds, redblue::choose_isa(isa));
      },
      "dtype"_a = "float32", "threads"_a = 1, "seconds"_a = 0.05, "isa"_a = "",
      nb::call_guard<nb::gil_scoped_release>());

  m.def(
      "read_rate",
      [](std::size_t bytes_per_thread, int threads, double seconds, const std::string& isa) {
        return redblue::read_rate(bytes_per_thread, threads, seconds, redblue::choose_isa(isa));
      },
      "bytes_per_thread"_a, "threads"_a = 1, "seconds"_a = 0.05, "isa"_a = "",
      nb::call_guard<nb::gil_scoped_release>());

  nb::class_<redblue::LineCounts>(m, "LineCounts")
      .def_ro("hits", &redblue::LineCounts::hits)
      .def_ro("misses", &redblue::LineCounts::misses)
      .def_ro("fills", &redblue::LineCounts::fills)
      .def_ro("write_backs", &redblue::LineCounts::write_backs)
      .def_ro("dead_write_backs", &redblue::LineCounts::dead_write_backs);

  nb::class_<redblue::CacheHierarchy>(m, "CacheHierarchy")
      .def(nb::init<const std::vector<std::pair<std::int64_t, std::int64_t>>&, std::int64_t, bool, bool>(),
           "shapes"_a, "line_words"_a, "fetch_on_write"_a = false, "records"_a = false)
      .def(
          "play",
          [](redblue::CacheHierarchy& self, const Lines& lines, const Kinds& kinds) {
            check_trace(lines, kinds);
            self.play(lines.data(), kinds.data(), lines.shape(0));
          },
          "lines"_a, "kinds"_a)
      .def("block", &redblue::CacheHierarchy::block, "base"_a, "rows"_a, "stride"_a, "words"_a, "writes"_a)
      .def("discard", &redblue::CacheHierarchy::discard, "first"_a, "lines"_a)
      .def("flush", &redblue::CacheHierarchy::flush)
      .def("counts", &redblue::CacheHierarchy::counts)
      .def("recorded", [](const redblue::CacheHierarchy& self) {
        return nb::make_tuple(copied(self.recorded_lines()), copied(self.recorded_kinds()));
      });

  m.def(
      "belady",
      [](const Lines& lines, const Kinds& kinds, std::int64_t capacity, bool fetch_on_write) {
        check_trace(lines, kinds);
        return redblue::belady(lines.data(), kinds.data(), lines.shape(0), capacity, fetch_on_write);
      },
      "lines"_a, "kinds"_a, "capacity"_a, "fetch_on_write"_a = false);

  using Flags = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using redblue::PebbleReferee;
  nb::class_<redblue::PebbleBoard>(m, "PebbleBoard")
      .def(
          "__init__",
          [](redblue::PebbleBoard* self, const Lines& starts, const Lines& parents, const Lines& words,
             const Lines& capacities, const Flags& blue, const Flags& free, bool once, bool partial, bool sliding,
             bool keeps_sinks) {
            redblue::PebbleBoard board{taken(starts), taken(parents), taken(words), taken(capacities), taken(blue),
                                       taken(free),   once,           partial,      sliding,           keeps_sinks};
            board.check();
            new (self) redblue::PebbleBoard(std::move(board));
          },
          "starts"_a, "parents"_a, "words"_a, "capacities"_a, "blue"_a, "free"_a, "once"_a = false, "partial"_a = false,
          "sliding"_a = false, "keeps_sinks"_a = true);

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

  m.def(
      "search_pebbles",
      [](const Lines& starts, const Lines& parents, const Lines& words, const Flags& blue, std::int64_t red,
         const std::array<std::int64_t, 3>& costs, const std::array<bool, 4>& flags, double seconds, std::int64_t bytes,
         int beam, int symmetries, const nb::callable& keep_on) {
        const auto [once, partial, sliding, sinks_end_blue] = flags;
        const redblue::PebbleTask task{taken(starts), taken(parents), taken(words), taken(blue), red, costs[0],
                                       costs[1], costs[2], once, partial, sliding, sinks_end_blue};
        const auto asks = [&](const redblue::PebbleProgress& at) {
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
        };
        const redblue::PebbleFound found = [&] {
          const nb::gil_scoped_release others_may_run;
          return redblue::search_pebbles(task, {seconds, bytes, beam, symmetries, asks});
        }();
        return nb::make_tuple(found.at.cost, found.at.lower_bound, found.proved, found.at.expanded,
                              copied(found.kinds), copied(found.nodes), copied(found.parents));
      },
      "starts"_a, "parents"_a, "words"_a, "blue"_a, "red"_a, "costs"_a, "flags"_a, "seconds"_a, "bytes"_a, "beam"_a,
      "symmetries"_a, "keep_on"_a);
}
