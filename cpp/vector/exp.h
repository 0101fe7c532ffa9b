// Exponential and hyperbolic tangent of whole vectors. Included once inside each target region (vector/region.h).
//
// exp splits x = n ln 2 + r with |r| <= ln 2 / 2, and computes e^r by a polynomial of least relative error (float:
// degree 5, 1.05e-7 before rounding) or Taylor's polynomial (double: degree 13). Tested over the whole range: the
// relative error of normal results is at most 4e-7 (float) and 4e-16 (double); the absolute error of smaller results is
// at most the least normal number; exp(-inf) = 0; NaN stays NaN. Arguments from 88 on are not supported: score - row
// maximum and score - log-sum-exp stay below, because both passes round scores alike.

template <class T>
struct ExpOf;

template <>
struct ExpOf<float> {
  using Int = int;
  static constexpr float kLeast = -88.0f, kLeast2 = -127.0f;  // these give n = -127, for which power_of returns 0
  static constexpr float kMagic = 12582912.0f + 127.0f;       // 1.5 x 2^23, and the exponent's bias
  static constexpr float kLn2High = 0.693145751953125f, kLn2Low = 1.428606765330187e-6f;
  static constexpr float kTerms2[] = {0.0013264658628031611f, 0.00967156607657671f, 0.055507343262434006f,
                                      0.24022240936756134f,   0.6931470036506653f,  1.0f};
  static constexpr int kMantissa = 23;
  static constexpr float kTerms[] = {0.008312501013278961f, 0.041890330612659454f, 0.16667115688323975f,
                                     0.499992311000824f,    1.0f,                  1.0f};
};

template <>
struct ExpOf<double> {
  using Int = long long;
  static constexpr double kLeast = -709.0, kLeast2 = -1023.0;
  static constexpr double kMagic = 6755399441055744.0 + 1023.0;  // 1.5 x 2^52, and the exponent's bias
  static constexpr double kLn2High = 0.6931471803691238, kLn2Low = 1.9082149292705877e-10;
  static constexpr int kMantissa = 52;
  static constexpr double kTerms[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                      1.0 / 40320,      1.0 / 5040,      1.0 / 720,      1.0 / 120,     1.0 / 24,
                                      1.0 / 6,          0.5,             1.0,            1.0};
};

// 2^n for whole n, or 0 if 2^n is below the least normal number. shifted: n + kMagic, whose low bits are the biased
// exponent.
template <class T>
inline V<T> power_of(V<T> shifted) {
  using E = ExpOf<T>;
  return bits<V<T>>(bits<V<typename E::Int>>(shifted) << E::kMantissa);
}

template <class T>
inline V<T> exp(V<T> x) {
  using E = ExpOf<T>;
  constexpr bool kScales = kVectorBytes == 64 && sizeof(T) == 4;  // one instruction multiplies by 2^n
  const V<T> clamped = larger<T>(splat(kScales ? T(-110) : E::kLeast), x);  // NaN stays
  const V<T> shifted = multiply_add<T>(clamped, splat(T(1.4426950408889634)), splat(E::kMagic));
  const V<T> n = shifted - splat(E::kMagic);
  V<T> r = multiply_add<T>(n, splat(-E::kLn2High), clamped);
  r = multiply_add<T>(n, splat(-E::kLn2Low), r);
  V<T> power = splat(E::kTerms[0]);
#pragma GCC unroll 16
  for (unsigned i = 1; i < sizeof(E::kTerms) / sizeof(T); i++) power = multiply_add<T>(power, r, splat(E::kTerms[i]));
#if defined(REDBLUE_AVX512)
  if constexpr (kScales) return _mm512_scalef_ps(power, n);  // handles denormals and 0, such as e^-110
#endif
  return power * power_of<T>(shifted);
}

// 2^r for |r| <= 1/2 (float: degree 5, 9.2e-8 before rounding).
template <class T>
inline V<T> power_of_fraction(V<T> r) {
  using E = ExpOf<T>;
  if constexpr (sizeof(T) == 4) {
    V<T> power = splat(E::kTerms2[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 6; i++) power = multiply_add<T>(power, r, splat(E::kTerms2[i]));
    return power;
  } else {
    r *= splat(T(0.6931471805599453));
    V<T> power = splat(E::kTerms[0]);
#pragma GCC unroll 16
    for (unsigned i = 1; i < sizeof(E::kTerms) / sizeof(T); i++) power = multiply_add<T>(power, r, splat(E::kTerms[i]));
    return power;
  }
}

// 2^x, with the same error bounds. Cheaper than exp, because x - n is exact.
template <class T>
inline V<T> exp2(V<T> x) {
  using E = ExpOf<T>;
  const V<T> clamped = larger<T>(splat(E::kLeast2), x);  // NaN stays
  const V<T> shifted = clamped + splat(E::kMagic);
  return power_of_fraction<T>(clamped - (shifted - splat(E::kMagic))) * power_of<T>(shifted);
}
#if defined(REDBLUE_AVX512)
// AVX-512 has instructions for x - floor(x) and for multiplication by 2^floor(x), down to denormals and 0, which handle
// -inf and NaN: no clamping, rounding or bit operations are needed (10 % faster; measured, Zen 5). 2^r for 0 <= r < 1
// by a polynomial of degree 5 (8.2e-8 before rounding) that is exactly 1 at 0.
template <>
inline V<float> exp2<float>(V<float> x) {
  constexpr float kTerms[] = {0.0018671301659196615f, 0.009017029777169228f, 0.05579991266131401f,
                              0.24016444385051727f,   0.6931512951850891f,   1.0f};
  const V<float> r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  V<float> power = splat(kTerms[0]);
#pragma GCC unroll 8
  for (int i = 1; i < 6; i++) power = multiply_add<float>(power, r, splat(kTerms[i]));
  return _mm512_scalef_ps(power, x);
}
#endif

template <class T, V<T> (*function)(V<T>)>
inline void for_all(T* x, std::size_t count) {
  constexpr std::size_t L = kLanesOf<T>;
  for (std::size_t i = 0; i < count; i += L) {
    T lanes[L] = {};
    std::copy_n(x + i, std::min(L, count - i), lanes);
    store(lanes, function(load(lanes)));
    std::copy_n(lanes, std::min(L, count - i), x + i);
  }
}

template <class T>
inline V<T> magnitude(V<T> x) {
  return x < V<T>{} ? -x : x;
}

// tanh, with a relative error of at most 4e-7 (float) and 4e-15 (double). Small arguments use Lambert's continued
// fraction x / (1 + x^2 / (3 + x^2 / (5 + ...))), others e^(-2|x|).
template <class T>
inline V<T> tanh(V<T> x) {
  constexpr int kLast = sizeof(T) == 4 ? 9 : 17;
  const V<T> square = x * x, size = magnitude<T>(x);
  V<T> fraction = splat(T(kLast));
#pragma GCC unroll 8
  for (int odd = kLast - 2; odd > 0; odd -= 2)
    fraction = multiply_add<T>(square, splat(T(1)) / fraction, splat(T(odd)));
  const V<T> tail = exp<T>(size * splat(T(-2)));
  const V<T> large = (splat(T(1)) - tail) / (splat(T(1)) + tail);
  return size < splat(T(0.625)) ? x / fraction : x < V<T>{} ? -large : large;
}
