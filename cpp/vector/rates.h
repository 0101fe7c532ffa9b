// Measures the peak multiply-add rate of this machine and the read bandwidth of its memories.
#pragma once
#include <cstddef>
#include <string>

#include "vector/isa.h"

namespace redblue {

// Floating-point operations per second of independent multiply-adds (two operations each) on `threads` threads at once:
// the median of repetitions that together take about `seconds`. dtype: "float32", or "bfloat16" for products of
// bfloat16 with sums in fp32. Throws std::invalid_argument for other dtypes, and for a dtype that the instruction set
// lacks.
double multiply_add_rate(const std::string& dtype, int threads, double seconds, const Isa& isa);

// a * b + c, as these chains compute it (bfloat16: a and b are rounded to bfloat16, c is fp32). Throws as above.
float multiply_add(float a, float b, float c, const std::string& dtype, const Isa& isa);

// Bytes per second that `threads` threads together read, each repeatedly from its own buffer of `bytes_per_thread`
// (rounded down to a multiple of 1024, at least 1024): the median of repetitions that together take about `seconds`.
double read_rate(std::size_t bytes_per_thread, int threads, double seconds, const Isa& isa);

}  // namespace redblue
