// Helpers of the files that bind C++ to Python; no other file includes nanobind. Types and docstrings are in _core.pyi.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

template <class T>
using Numbers = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Lines = Numbers<std::int64_t>;
using Kinds = Numbers<std::int8_t>;

// A NumPy array that owns a copy of these values.
template <class T>
auto copied(const std::vector<T>& values) {
  T* data = new T[values.size()];
  std::copy(values.begin(), values.end(), data);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {values.size()}, owner);
}

template <class T>
std::vector<T> to_vector(const Numbers<T>& array) {
  return {array.data(), array.data() + array.shape(0)};
}

void bind_attention(nb::module_& m);
void bind_pebble(nb::module_& m);
