// The vector type of one instruction set. Included once inside each target region of isa.cpp, which sets
// REDBLUE_REGION; hence no include guard, and no #include here.
#if REDBLUE_REGION == REDBLUE_AVX512 || REDBLUE_REGION == REDBLUE_AVX512_BF16
using Vec = __m512;
constexpr int kRegisters = 32;
inline Vec splat(float value) { return _mm512_set1_ps(value); }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
#elif REDBLUE_REGION == REDBLUE_AVX2
using Vec = __m256;
constexpr int kRegisters = 16;
inline Vec splat(float value) { return _mm256_set1_ps(value); }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
#elif REDBLUE_REGION == REDBLUE_NEON
using Vec = float32x4_t;
constexpr int kRegisters = 32;
inline Vec splat(float value) { return vdupq_n_f32(value); }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
#else
// Compiler vectors of 16 bytes: SSE2 on x86. Rounds twice where there is no fused multiply-add.
typedef float Vec __attribute__((vector_size(16)));
constexpr int kRegisters = 16;
inline Vec splat(float value) { return Vec{value, value, value, value}; }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
#endif

constexpr int kLanes = sizeof(Vec) / sizeof(float);

#if REDBLUE_REGION == REDBLUE_AVX512_BF16
// Two bfloat16 per fp32 lane: the even one in the low half.
using Pairs = __m512bh;
inline Pairs splat_pairs(float even, float odd) {
  const unsigned low = (unsigned short)_mm256_extract_epi16((__m256i)_mm512_cvtneps_pbh(splat(even)), 0);
  const unsigned high = (unsigned short)_mm256_extract_epi16((__m256i)_mm512_cvtneps_pbh(splat(odd)), 0);
  return (Pairs)_mm512_set1_epi32((int)(high << 16 | low));
}
// Each fp32 lane of c gains both products.
inline Vec multiply_add(Pairs a, Pairs b, Vec c) { return _mm512_dpbf16_ps(c, a, b); }
#endif
