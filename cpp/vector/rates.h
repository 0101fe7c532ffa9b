// Measures the peak multiply-add rate of this machine and the read bandwidth of its memories.
#pragma once
#include <cstddef>
#include <string>

#include "vector/isa.h"

namespace redblue {

// Floating-point operations per second of independent multiply-adds (two operations each) on `threads` threads at once,
// the best of repetitions that take about `seconds` together. dtype: "float32" or "bfloat16" (products; sums in fp32).
// Throws std::invalid_argument for another dtype, or one that the instruction set lacks.
double multiply_add_rate(const std::string& dtype, int threads, double seconds, const Isa& isa);

// a * b + c, as those chains compute it (bfloat16: a and b are rounded to it, c is fp32). Throws as above.
float multiply_add(float a, float b, float c, const std::string& dtype, const Isa& isa);

// Bytes per second that `threads` threads read at once, all together, each over and over from `bytes_per_thread` of its
// own (rounded down to 1024, at least that); the best of repetitions that take about `seconds` together.
double read_rate(std::size_t bytes_per_thread, int threads, double seconds, const Isa& isa);

}  // namespace redblue
