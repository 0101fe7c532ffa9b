// The instruction sets that redblue has code for: one row each, best first, chosen once at run time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/array.h"
#include "attention/kernels.h"

namespace redblue {

// One row. A function pointer is null where the instruction set has no such instruction.
struct Isa {
  const char* name;
  bool (*supported)();   // by this CPU and its operating system
  int vector_bytes;      // of one vector register
  int vector_registers;  // architectural ones

  // Independent multiply-add chains, `steps` links each; returns a value that depends on all of them.
  // One pass does steps * flops_per_step_* floating-point operations (a multiply-add counts as two).
  float (*chains_fp32)(long steps, float x, float y);
  float (*chains_bf16)(long steps, float x, float y);
  long flops_per_step_fp32, flops_per_step_bf16;

  // a * b + c, as the chains compute it (bf16: a and b rounded to bfloat16, c in fp32).
  float (*multiply_add_fp32)(float a, float b, float c);
  float (*multiply_add_bf16)(float a, float b, float c);

  // Reads `bytes` (a multiple of 1024, 64-byte aligned) once; returns a value that depends on all of them.
  long long (*read)(const void* data, std::size_t bytes);

  // Each of `count` numbers becomes e or 2 to its power, as the kernels compute it.
  void (*exp_fp32)(float* x, std::size_t count);
  void (*exp_fp64)(double* x, std::size_t count);
  void (*exp2_fp32)(float* x, std::size_t count);
  void (*exp2_fp64)(double* x, std::size_t count);

  Kernels kernels[4];  // by Number: float32, float64, bfloat16, float16
};

// A row of its own kernels of bfloat16, and of another row's kernels of the other number types.
inline Isa with_kernels_of(Isa row, const Isa& other) {
  for (const Number number : {Number::kFloat32, Number::kFloat64, Number::kFloat16})
    row.kernels[int(number)] = other.kernels[int(number)];
  return row;
}

// Every row compiled into this build, best first; the last one, "portable", runs anywhere.
const std::vector<const Isa*>& list_isas();

// Rows for tests, whose instructions are emulated; choose_isa takes them only by name.
const std::vector<const Isa*>& list_emulated_isas();

// The row of that name; "" takes the one that the environment variable REDBLUE_ISA names, else the best that
// this CPU can run. Throws std::invalid_argument, listing the names, for one unknown or not runnable here.
const Isa& choose_isa(const std::string& name = "");

}  // namespace redblue
