// The table of instruction sets that redblue supports: one row each, best first. A row is chosen at run time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/array.h"
#include "attention/kernels.h"

namespace redblue {

// One row. A function pointer is null if the instruction set has no such instruction.
struct Isa {
  const char* name;
  bool (*supported)();   // by this CPU and its operating system
  int vector_bytes;      // of one vector register
  int vector_registers;  // architectural registers

  // Run independent chains of `steps` multiply-adds each; return a value that depends on all of them. A call does steps
  // * flops_per_step_* floating-point operations (a multiply-add counts as two).
  float (*chains_fp32)(long steps, float x, float y);
  float (*chains_bf16)(long steps, float x, float y);
  long flops_per_step_fp32, flops_per_step_bf16;

  // a * b + c, as the chains compute it (bf16: a and b rounded to bfloat16, c in fp32).
  float (*multiply_add_fp32)(float a, float b, float c);
  float (*multiply_add_bf16)(float a, float b, float c);

  // Reads `bytes` (a multiple of 1024, 64-byte aligned) once; returns a value that depends on all of them.
  long long (*read)(const void* data, std::size_t bytes);

  // Replace each of `count` numbers x by e^x or 2^x, as the kernels compute it.
  void (*exp_fp32)(float* x, std::size_t count);
  void (*exp_fp64)(double* x, std::size_t count);
  void (*exp2_fp32)(float* x, std::size_t count);
  void (*exp2_fp64)(double* x, std::size_t count);

  Kernels kernels[4];  // by Number: float32, float64, bfloat16, float16
};

// Returns `row` with its own kernels for bfloat16 and the other row's kernels for the other number types.
inline Isa with_kernels_of(Isa row, const Isa& other) {
  for (const Number number : {Number::kFloat32, Number::kFloat64, Number::kFloat16})
    row.kernels[int(number)] = other.kernels[int(number)];
  return row;
}

// All rows compiled into this build, best first. The last row, "portable", runs on every CPU.
const std::vector<const Isa*>& list_isas();

// Rows for tests, with emulated instructions. choose_isa returns them only by name.
const std::vector<const Isa*>& list_emulated_isas();

// Returns the row called `name`. For "", returns the row that the environment variable REDBLUE_ISA names, or else the
// best row that this CPU can run. Throws std::invalid_argument, which lists the runnable rows, if the row is unknown or
// the CPU cannot run it.
const Isa& choose_isa(const std::string& name = "");

}  // namespace redblue
