// The description of a product of bfloat16 pairs, which attention kernels pass to a matrix unit of the CPU, such as
// AMX.
#pragma once

namespace redblue {

// How products are added to C. kZero: C <- products. kSum: C <- C + products. kScaled: C <- C factors + products, lane
// by lane. kWeighted: C <- C + products factors.
enum class Start { kZero, kSum, kScaled, kWeighted };

// The most units in one chain of additions. Rounding errors grow with the length: at d = 576, a single chain doubled
// the error of dV.
constexpr long kLongest = 256;

// The arguments of `product` in attention/tile.h. lanes must be whole vectors, and am or ak must be 1.
struct PairProduct {
  long rows, lanes, length;  // length: pairs
  const unsigned* a;
  long am, ak;
  const unsigned* b;
  long bk;
  float* c;
  long cm;
  Start start;
  const float* factors;
  float* tops;
};

// On Linux, "initial-exec" gives a thread-local variable a fixed offset, so that products read it without a function
// call.
#if defined(__linux__)
#define REDBLUE_NEAR_THREAD __attribute__((tls_model("initial-exec")))
#else
#define REDBLUE_NEAR_THREAD
#endif
// The function that computes this thread's products of pairs while a kernel with such a unit runs; otherwise null.
extern __thread void (*pair_product)(const PairProduct&) REDBLUE_NEAR_THREAD;

}  // namespace redblue
