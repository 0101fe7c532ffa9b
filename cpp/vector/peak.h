// Multiply-add chains, for the peak arithmetic rate. Included once inside each target region (vector/region.h).
//
// Each multiply-add of a chain waits for the previous one, so the peak needs latency x units independent chains: 4
// cycles x 2 units on current x86, 4 x 4 on Apple's cores. Three quarters of the registers hold chains: 12 of 16, or 24
// of 32. Loops over the chains must be unrolled: otherwise the chains lie in memory and the rate halves (measured, GCC
// 12).
constexpr int kChains = kRegisters * 3 / 4;

inline float sum_of_chains(const V<float>* chains) {
  float sum = 0;
#pragma GCC unroll 32
  for (int i = 0; i < kChains; i++) sum += sum_of_lanes<float>(chains[i]);
  return sum;
}

// Every chain: c <- c x + y. With x = y = 0.5 they stay at 1: no overflow, no denormals.
inline float chains_fp32(long steps, float x, float y) {
  V<float> chains[kChains];
  const V<float> vx = splat(x), vy = splat(y);
#pragma GCC unroll 32
  for (int i = 0; i < kChains; i++) chains[i] = splat(1.0f + i);
  for (long step = 0; step < steps; step++)
#pragma GCC unroll 32
    for (int i = 0; i < kChains; i++) chains[i] = multiply_add<float>(chains[i], vx, vy);
  return sum_of_chains(chains);
}

inline float multiply_add_fp32(float a, float b, float c) {
  return multiply_add<float>(splat(a), splat(b), splat(c))[0];
}

#if defined(REDBLUE_BF16_PAIRS)
inline V<unsigned> splat_pair(float even, float odd) {
  return splat(unsigned(to_bfloat16(odd)) << 16 | to_bfloat16(even));
}

// Every chain: c <- c + x y + x y.
inline float chains_bf16(long steps, float x, float y) {
  V<float> chains[kChains];
  const V<unsigned> px = splat_pair(x, x), py = splat_pair(y, y);
#pragma GCC unroll 32
  for (int i = 0; i < kChains; i++) chains[i] = splat(1.0f + i);
  for (long step = 0; step < steps; step++)
#pragma GCC unroll 32
    for (int i = 0; i < kChains; i++) chains[i] = multiply_add_pairs(px, py, chains[i]);
  return sum_of_chains(chains);
}

inline float multiply_add_bf16(float a, float b, float c) {
  return multiply_add_pairs(splat_pair(a, 0), splat_pair(b, 0), splat(c))[0];
}
#else
constexpr float (*chains_bf16)(long, float, float) = nullptr;
constexpr float (*multiply_add_bf16)(float, float, float) = nullptr;
#endif
