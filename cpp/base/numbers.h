// The number types of arrays: bfloat16 and float16 as their bits, and conversions to and from float32, one at a time.
// Whole vectors convert in pack.h.
#pragma once
#include <cstdint>
#include <cstring>

namespace redblue {

struct bfloat16 {
  std::uint16_t bits;
};
struct float16 {
  std::uint16_t bits;
};

struct Boolean {  // of a mask: whether to attend; adds 0 or -inf to a score
  std::uint8_t value;
};

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint16_t to_bfloat16(float value) {  // rounds to nearest, ties to even; NaN stays NaN
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline std::uint16_t to_float16(float value) {  // rounds as to_bfloat16
  const std::uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (size >> 13 & 0x3ff));
  if (size >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);  // it rounds to 65536 or more
  if (size >= 0x38800000) {                                                  // a normal float16
    const std::uint32_t half = size - 0x38000000;
    return static_cast<std::uint16_t>(sign | (half + 0xfff + (half >> 13 & 1)) >> 13);
  }
  return static_cast<std::uint16_t>(sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f)));  // multiples of 2^-24
}

inline float from_float16(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t(half & 0x8000) << 16, size = half & 0x7fff;
  if (size >= 0x7c00) return float_of(sign | 0x7f800000 | (size & 0x3ff) << 13);
  if (size >= 0x400) return float_of(sign | ((size << 13) + 0x38000000));
  return float_of(sign | bits_of(static_cast<float>(size) * 0x1p-24f));
}

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(bfloat16 value) { return float_of(std::uint32_t(value.bits) << 16); }
inline float widen(float16 value) { return from_float16(value.bits); }
inline float widen(Boolean attends) { return attends.value ? 0.0f : float_of(0xff800000); }

inline void narrow(float value, float& to) { to = value; }
inline void narrow(double value, double& to) { to = value; }
inline void narrow(float value, bfloat16& to) { to.bits = to_bfloat16(value); }
inline void narrow(float value, float16& to) { to.bits = to_float16(value); }

}  // namespace redblue
