// Python bindings of the compiled core: instruction sets, rates, the meter and the simulated caches. bind_attention.cpp
// and bind_pebble.cpp add attention and the pebble game.
#include "attention/call.h"
#include "bindings.h"
#include "meter/meter.h"
#include "simulator/belady.h"
#include "simulator/cache.h"
#include "vector/isa.h"
#include "vector/rates.h"

using redblue::Isa;

namespace {

void check_trace(const Lines& lines, const Kinds& kinds) {
  if (lines.shape(0) != kinds.shape(0)) throw std::invalid_argument("a trace has as many kinds as lines");
}

void bind_isas(nb::module_& m) {
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
}

void bind_meter(nb::module_& m) {
  using redblue::Output;
  nb::class_<Output>(m, "Output")
      .def(
          "__init__",
          [](Output* self, std::uintptr_t address, std::size_t bytes) { new (self) Output{address, bytes}; },
          "address"_a, "bytes"_a);
  m.def("under_valgrind", &redblue::under_valgrind);
  m.def(
      "meter_arm",
      [](std::vector<Output> outputs, std::size_t line_bytes) {
        redblue::meter().arm(std::move(outputs), line_bytes);
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
}

void bind_exp(nb::module_& m) {
  using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using Doubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def("exp", [](Floats x, const Isa& isa) { isa.exp_fp32(x.data(), x.shape(0)); });
  m.def("exp", [](Doubles x, const Isa& isa) { isa.exp_fp64(x.data(), x.shape(0)); });
  m.def("exp2", [](Floats x, const Isa& isa) { isa.exp2_fp32(x.data(), x.shape(0)); });
  m.def("exp2", [](Doubles x, const Isa& isa) { isa.exp2_fp64(x.data(), x.shape(0)); });
}

void bind_rates(nb::module_& m) {
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
}

void bind_simulator(nb::module_& m) {
  nb::class_<redblue::LineCounts>(m, "LineCounts")
      .def_ro("hits", &redblue::LineCounts::hits)
      .def_ro("misses", &redblue::LineCounts::misses)
      .def_ro("fills", &redblue::LineCounts::fills)
      .def_ro("write_backs", &redblue::LineCounts::write_backs)
      .def_ro("dead_write_backs", &redblue::LineCounts::dead_write_backs);

  using redblue::CacheShape;
  nb::class_<CacheShape>(m, "CacheShape")
      .def(
          "__init__",
          [](CacheShape* self, std::int64_t sets, std::int64_t ways) { new (self) CacheShape{sets, ways}; },
          "sets"_a, "ways"_a);

  nb::class_<redblue::CacheHierarchy>(m, "CacheHierarchy")
      .def(nb::init<const std::vector<CacheShape>&, std::int64_t, bool, bool>(), "shapes"_a, "line_words"_a,
           "fetch_on_write"_a = false, "records"_a = false)
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
}

}  // namespace

NB_MODULE(_core, m) {
  // Some objects outlive the module when the interpreter ends, for example objects that PyTorch keeps. Users could not
  // act on nanobind's warning about them.
  nanobind::set_leak_warnings(false);
  bind_isas(m);
  bind_attention(m);
  bind_pebble(m);
  bind_meter(m);
  bind_exp(m);
  bind_rates(m);
  bind_simulator(m);
}
