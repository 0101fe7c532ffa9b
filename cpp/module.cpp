// The Python face of the compiled core; the only file that knows Python. Types and docstrings are in _core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "isa.h"
#include "measure.h"

namespace nb = nanobind;
using namespace nb::literals;
using redblue::Isa;

NB_MODULE(_core, m) {
  nb::class_<Isa>(m, "Isa")
      .def_prop_ro("name", [](const Isa& isa) { return isa.name; })
      .def_prop_ro("supported", [](const Isa& isa) { return isa.supported(); })
      .def_ro("vector_bytes", &Isa::vector_bytes)
      .def_ro("vector_registers", &Isa::vector_registers)
      .def_prop_ro("has_bfloat16", [](const Isa& isa) { return isa.chains_bf16 != nullptr; });

  m.def("list_isas", &redblue::list_isas);
  m.def("choose_isa", [](const std::string& isa) { return redblue::choose_isa(isa); }, "isa"_a = "");

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
