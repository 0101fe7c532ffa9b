// The vectors of one instruction set: V<float>, V<double>, and the operations that kernels use. Included once inside
// each target region (vector/region.h), so it has neither an include guard nor an #include.
// The macros REDBLUE_AVX512 and the like are defined by the translation unit of the instruction set (vector/sets).
//
// V<T> is the compiler's vector type, so + - * / < and ?: work on whole vectors. Only operations that compile to slow
// code are written per instruction set. The compiler contracts sums of products to fused multiply-adds, if the CPU has
// them.
#if defined(REDBLUE_AVX512)
constexpr int kVectorBytes = 64, kRegisters = 32;
#elif defined(REDBLUE_AVX2)
constexpr int kVectorBytes = 32, kRegisters = 16;
#elif defined(REDBLUE_NEON)
constexpr int kVectorBytes = 16, kRegisters = 32;
#else
constexpr int kVectorBytes = 16, kRegisters = 16;  // SSE2 on x86: no fused multiply-add, so products round twice
#endif

template <class T>
struct Vector {
  typedef T Held __attribute__((vector_size(kVectorBytes), may_alias));
  typedef T Unaligned __attribute__((vector_size(kVectorBytes), may_alias, aligned(alignof(T))));
};
template <class T>
using V = typename Vector<T>::Held;
template <class T>
constexpr int kLanesOf = kVectorBytes / sizeof(T);

template <class T>
inline V<T> load(const T* p) {
  return *reinterpret_cast<const typename Vector<T>::Unaligned*>(p);
}
template <class T>
inline void store(T* p, V<T> value) {
  *reinterpret_cast<typename Vector<T>::Unaligned*>(p) = value;
}
template <class T>
inline V<T> splat(T value) {
  return value - V<T>{};  // keeps -0
}
template <class To, class From>
inline To bits(From value) {  // reinterprets the bits as another type
  static_assert(sizeof(To) == sizeof(From), "bits() changes no size");
  To to;
  __builtin_memcpy(&to, &value, sizeof to);
  return to;
}

template <class T>
inline V<T> multiply_add(V<T> a, V<T> b, V<T> c) {
  return a * b + c;
}
// The larger of a and b; b if either is NaN.
template <class T>
inline V<T> larger(V<T> a, V<T> b) {
  return a > b ? a : b;
}
#if defined(REDBLUE_AVX512)
template <>
inline V<float> splat(float value) { return _mm512_set1_ps(value); }
template <>
inline V<double> splat(double value) { return _mm512_set1_pd(value); }
template <>
inline V<float> larger<float>(V<float> a, V<float> b) { return _mm512_max_ps(a, b); }
#elif defined(REDBLUE_AVX2)
template <>
inline V<float> splat(float value) { return _mm256_set1_ps(value); }
template <>
inline V<double> splat(double value) { return _mm256_set1_pd(value); }
template <>
inline V<float> larger<float>(V<float> a, V<float> b) { return _mm256_max_ps(a, b); }
#endif

// A vector of 16-bit numbers, one per fp32 lane. low_halves puts each in the low half of its lane.
typedef std::uint16_t Halves __attribute__((vector_size(kVectorBytes / 2), may_alias));
template <class Number>
inline Halves load_halves(const Number* p) {
  static_assert(sizeof(Number) == 2, "halves have 16 bits");
  Halves halves;
  __builtin_memcpy(&halves, reinterpret_cast<const char*>(p), sizeof halves);
  return halves;
}
template <class Number>
inline void store_halves(Number* p, Halves halves) {
  static_assert(sizeof(Number) == 2, "halves have 16 bits");
  __builtin_memcpy(reinterpret_cast<char*>(p), &halves, sizeof halves);
}
inline V<unsigned> low_halves(Halves halves) {
#if defined(REDBLUE_AVX512)
  return bits<V<unsigned>>(_mm512_cvtepu16_epi32(bits<__m256i>(halves)));  // GCC 12 converts each half on its own
#elif defined(REDBLUE_AVX2)
  return bits<V<unsigned>>(_mm256_cvtepu16_epi32(bits<__m128i>(halves)));
#else
  return __builtin_convertvector(halves, V<unsigned>);
#endif
}

// Rounds to bfloat16, ties to even; NaN stays NaN.
inline Halves bfloat16_halves(V<float> value) {
#if defined(REDBLUE_BF16_PAIRS) && defined(REDBLUE_NEON)
  return bits<Halves>(vcvt_bf16_f32(bits<float32x4_t>(value)));
#elif defined(REDBLUE_BF16_PAIRS)
  return bits<Halves>(_mm512_cvtneps_pbh(value));
#else
  const auto wide = bits<V<unsigned>>(value);
  const V<unsigned> nearest = (wide + 0x7fff + (wide >> 16 & 1)) >> 16, nan = wide >> 16 | 0x40;
  const V<unsigned> result = value == value ? nearest : nan;
#if defined(REDBLUE_AVX512)
  return bits<Halves>(_mm512_cvtepi32_epi16(bits<__m512i>(result)));
#else
  return __builtin_convertvector(result, Halves);
#endif
#endif
}

#if defined(REDBLUE_BF16_PAIRS)
// Each fp32 lane of a and b holds two bfloat16, the even one in the low half. Both products are added to the lane of c.
// Arm's instruction rounds to odd, x86's to nearest; both flush denormals to 0.
inline V<float> multiply_add_pairs(V<unsigned> a, V<unsigned> b, V<float> c) {
#if defined(REDBLUE_NEON)
  return vbfdotq_f32(c, bits<bfloat16x8_t>(a), bits<bfloat16x8_t>(b));
#else
  return _mm512_dpbf16_ps(c, bits<__m512bh>(a), bits<__m512bh>(b));
#endif
}
// Loads pairs of neighbouring numbers of a row.
inline V<unsigned> load_pairs(const bfloat16* p) {
  V<unsigned> pairs;
  __builtin_memcpy(&pairs, reinterpret_cast<const char*>(p), sizeof pairs);
  return pairs;
}
// Interleave the numbers of two rows to pairs of the same column, a in the low half: lower_columns takes the lower
// columns of each 16 bytes, upper_columns the upper columns.
inline V<unsigned> lower_columns(V<unsigned> a, V<unsigned> b) {
#if defined(REDBLUE_NEON)
  return bits<V<unsigned>>(vzip1q_u16(bits<uint16x8_t>(a), bits<uint16x8_t>(b)));
#else
  return bits<V<unsigned>>(_mm512_unpacklo_epi16(bits<__m512i>(a), bits<__m512i>(b)));
#endif
}
inline V<unsigned> upper_columns(V<unsigned> a, V<unsigned> b) {
#if defined(REDBLUE_NEON)
  return bits<V<unsigned>>(vzip2q_u16(bits<uint16x8_t>(a), bits<uint16x8_t>(b)));
#else
  return bits<V<unsigned>>(_mm512_unpackhi_epi16(bits<__m512i>(a), bits<__m512i>(b)));
#endif
}
#endif

// Returns the value, rounded: the compiler cannot contract a product with the next operation.
template <class T>
inline V<T> rounded(V<T> value) {
#if defined(REDBLUE_AVX512)
  asm("" : "+v"(value));
#elif defined(__x86_64__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
  return value;
}

// Returns the running sum of a scalar loop, and keeps the compiler from vectorising the loop. Otherwise it vectorises
// only some strides: a vectorised loop rounds each product, a scalar loop fuses product and sum (GCC 12 for NEON), and
// the passes would disagree.
template <class T>
inline T in_order(T sum) {
#if defined(__x86_64__)
  asm("" : "+x"(sum));
#elif defined(__aarch64__)
  asm("" : "+w"(sum));
#endif
  return sum;
}

// Lane i of the result is lane index[i] of a and b, concatenated.
template <class U, class Index>
inline U shuffle(U a, U b, Index index) {
#if defined(__clang__)
  U result;
  for (unsigned lane = 0; lane < sizeof(Index) / sizeof index[0]; lane++) {
    const unsigned from = index[lane], lanes = sizeof(Index) / sizeof index[0];
    result[lane] = from < lanes ? a[from] : b[from - lanes];
  }
  return result;
#else
  return __builtin_shuffle(a, b, index);
#endif
}
// Reduces the lanes of a vector by the function `two`.
template <class U, class Two>
inline auto folded(U value, Two two) {
  constexpr int kLanes = sizeof value / sizeof value[0];
  V<std::conditional_t<sizeof value[0] == 8, long long, int>> other;
#pragma GCC unroll 8
  for (int step = kLanes / 2; step; step /= 2) {
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; lane++) other[lane] = lane ^ step;
    value = two(value, shuffle(value, value, other));
  }
  return value[0];
}
template <class T>
inline T sum_of_lanes(V<T> value) {
  return folded(value, [&](V<T> a, V<T> b) { return a + b; });
}

// Pairs of 16-bit numbers: even[c] in the low half, odd[c] in the high half.
inline V<unsigned> interleave(const std::uint16_t* even, const std::uint16_t* odd) {
  return low_halves(load_halves(odd)) << 16 | low_halves(load_halves(even));
}
