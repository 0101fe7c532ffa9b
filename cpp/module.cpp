// The Python face of the compiled core; the only file that knows Python. Types and docstrings are in _core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "belady.h"
#include "cache.h"
#include "isa.h"
#include "measure.h"

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

}  // namespace

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
}
