// All kernels of one instruction set, and its row of the table. Included once inside each target region
// (vector/region.h). The order matters: each header uses those before it.
#define REDBLUE_IN_REGION
#include "vector/vec.h"
#include "vector/exp.h"
#include "attention/tile.h"
#include "attention/pack.h"
#include "attention/stream.h"
#include "attention/options.h"
#include "attention/dropout.h"
#include "attention/decode.h"
#include "attention/walk.h"
#include "attention/formats.h"
#include "attention/forward.h"
#include "attention/backward.h"
#include "attention/query_gradient.h"
#include "attention/spilled.h"
#include "attention/spilled_backward.h"
#include "attention/gather.h"

#include "vector/bandwidth.h"
#include "vector/peak.h"

// The kernels of one number type.
template <class T, class F>
constexpr Kernels kKernels = {
    sizeof(typename F::Number),
    Formats<T, F>::kLanesAtOnce,
    Wide<T>::kWhole ? Formats<T, F>::kFew : 0,
    Forward<T, F>::run,
    Forward<T, F>::merge,
    Backward<T, F>::deltas,
    Backward<T, F>::run,
    Queries<T, F>::run,
    SpilledBackward<T, F>::phase,
    Gather<T, F>::forward,
    Gather<T, F>::query_gradients,
    Gather<T, F>::key_gradients,
    Backward<T, F>::bias_gradient,
};
#if defined(REDBLUE_BF16_PAIRS)
using Bfloat16Format = Bfloat16Pairs;
#else
using Bfloat16Format = Float32;
#endif

// A constant: filling it must not run instructions that the CPU may not have.
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
    {kKernels<float, Float32>, kKernels<double, Float64>, kKernels<bfloat16, Bfloat16Format>, kKernels<float16, Float32>},
};
