// All kernels of one instruction set, and its row of the table. Included once inside each target region
// (vector/region.h). The order matters: each header uses those before it.
#define REDBLUE_IN_REGION
#include "vector/vec.h"
#include "vector/exp.h"
#include "attention/kernels.h"
#include "vector/bandwidth.h"
#include "vector/peak.h"

// constexpr, because initialising it at run time could execute instructions that the CPU lacks.
constexpr Isa kRow = {
    kName,
    supported,
    kVectorBytes,
    kRegisters,
    chains_fp32,
    chains_bf16,
    2L * kChains * kLanesOf<float>,
    4L * kChains * kLanesOf<float>,
    multiply_add_fp32,
    multiply_add_bf16,
    read,
    for_all<float, exp<float>>,
    for_all<double, exp<double>>,
    for_all<float, exp2<float>>,
    for_all<double, exp2<double>>,
#if defined(REDBLUE_BF16_PAIRS)
    // Only products of bfloat16 gain from pairs; the other number types use the kernels of avx512 or neon.
    {{}, {}, kKernels<bfloat16, Bfloat16Pairs>, {}},
#else
    {kKernels<float, Float32>, kKernels<double, Float64>, kKernels<bfloat16, Float32>, kKernels<float16, Float32>},
#endif
};
