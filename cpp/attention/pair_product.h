// A product of bfloat16 pairs, as one value: kernels of attention hand it to another unit of the CPU, such as AMX.
#pragma once

namespace redblue {

// The initial value of C: kZero 0, kSum C, kScaled C times `factors` (lane by lane); kWeighed: C, and the products are
// multiplied by `factors`.
enum class Start { kZero, kSum, kScaled, kWeighed };

// The longest chain of additions: the rounding error grows with the length (at d = 576 a single chain doubled the error
// of dV).
constexpr long kLongest = 256;

// The arguments of `product` in attention/tile.h. Lanes come in whole vectors, and am or ak is 1.
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

// On Linux a variable of the thread lies at a fixed distance, so that every product reads it without a function call.
#if defined(__linux__)
#define REDBLUE_NEAR_THREAD __attribute__((tls_model("initial-exec")))
#else
#define REDBLUE_NEAR_THREAD
#endif
// Computes this thread's products of pairs, in a kernel of a row that has such a unit; elsewhere null.
extern __thread void (*pair_product)(const PairProduct&) REDBLUE_NEAR_THREAD;

}  // namespace redblue
