// Random numbers and arrays for the tests with sanitizers, and the comparison of results.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include "attention/call.h"
#include "base/numbers.h"
#include "vector/isa.h"

namespace {

using namespace redblue;

std::mt19937_64 generator;
std::int64_t pick(std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
}
bool chance(double share) { return std::bernoulli_distribution(share)(generator); }
double normal() { return std::normal_distribution<double>()(generator); }

Number random_bias_number(Number sums) {
  const Number number = Number(pick(0, 4));
  return number == Number::kFloat64 && sums != Number::kFloat64 ? Number::kBool : number;
}

int bytes_of(Number number) {
  switch (number) {
    case Number::kFloat64: return 8;
    case Number::kFloat32: return 4;
    case Number::kBool: return 1;
    default: return 2;
  }
}

// An array (lead, heads, rows, columns) in a heap block that ends with its last number, so that sanitizers detect
// overruns.
struct Buffer {
  Number number;
  std::int64_t size[4], stride[4], extent = 1;  // extent: numbers from the first to the last
  std::unique_ptr<char[]> memory;
  Array array;

  // broadcast: some strides may be 0.
  Buffer(Number n, std::int64_t lead, std::int64_t heads, std::int64_t rows, std::int64_t columns, bool plain = false,
         bool broadcast = false)
      : number(n), size{lead, heads, rows, columns} {
    int order[4] = {3, 2, 1, 0};  // innermost first
    if (!plain && chance(0.5)) std::shuffle(order, order + 4, generator);
    std::int64_t step = !plain && chance(0.3) ? pick(2, 3) : 1;
    for (int axis : order) {
      stride[axis] = broadcast && chance(0.5) ? 0 : step;
      if (stride[axis]) step *= std::max<std::int64_t>(1, size[axis]), step += !plain && chance(0.2) ? pick(1, 3) : 0;
      extent += stride[axis] * std::max<std::int64_t>(0, size[axis] - 1);
    }
    bool empty = false;
    for (int axis = 0; axis < 4; axis++) empty |= !size[axis] && stride[axis];
    memory.reset(new char[empty ? 0 : extent * bytes_of(number)]);
    array.data = memory.get();
    array.lead[0] = stride[0], array.head = stride[1], array.row = stride[2], array.column = stride[3];
    for (std::int64_t i = 0; !empty && i < extent; i++) set(i, normal());
  }
  void set(std::int64_t at, double value) {
    char* const p = memory.get() + at * bytes_of(number);
    switch (number) {
      case Number::kFloat64: *reinterpret_cast<double*>(p) = value; break;
      case Number::kFloat32: *reinterpret_cast<float*>(p) = float(value); break;
      case Number::kBfloat16: narrow(float(value), *reinterpret_cast<bfloat16*>(p)); break;
      case Number::kFloat16: narrow(float(value), *reinterpret_cast<float16*>(p)); break;
      case Number::kBool: *p = value > -0.5; break;
    }
  }
  double get(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) const {
    const char* const p =
        memory.get() + (b * stride[0] + h * stride[1] + r * stride[2] + c * stride[3]) * bytes_of(number);
    switch (number) {
      case Number::kFloat64: return *reinterpret_cast<const double*>(p);
      case Number::kFloat32: return *reinterpret_cast<const float*>(p);
      case Number::kBfloat16: return widen(*reinterpret_cast<const bfloat16*>(p));
      case Number::kFloat16: return widen(*reinterpret_cast<const float16*>(p));
      default: return *p ? 0.0 : -std::numeric_limits<double>::infinity();
    }
  }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void compare(const char* name, const Isa& isa, Number number, double got, double expected) {
  const double allowed = number == Number::kFloat64   ? 1e-11
                         : number == Number::kFloat32 ? 2e-4
                         : number == Number::kFloat16 ? 0.03
                                                      : 0.3;
  if (got == expected || std::abs(got - expected) <= allowed * (1 + std::abs(expected))) return;
  throw Failure(std::string(isa.name) + ", number type " + std::to_string(int(number)) + ": " + name + " is " +
                std::to_string(got) + ", expected " + std::to_string(expected));
}

}  // namespace
