// The rows of isa.h. Each instruction set's code is compiled in a target region and a namespace of its own, so that
// no function built for a newer CPU can be linked into the path of an older one (per-file flags cannot promise that).
// A new instruction set is a region here, a vector type in vec.h and a row in the table below.
#include "isa.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels.h"
#include "numbers.h"
#include "room.h"

#define REDBLUE_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define REDBLUE_BEGIN_REGION(options) \
  REDBLUE_PRAGMA(clang attribute push(__attribute__((target(options))), apply_to = function))
#define REDBLUE_END_REGION REDBLUE_PRAGMA(clang attribute pop)
#else
#define REDBLUE_BEGIN_REGION(options) REDBLUE_PRAGMA(GCC push_options) REDBLUE_PRAGMA(GCC target(options))
#define REDBLUE_END_REGION REDBLUE_PRAGMA(GCC pop_options)
#endif

// What REDBLUE_REGION, the region being compiled, is compared with.
#define REDBLUE_PORTABLE 0
#define REDBLUE_NEON 1
#define REDBLUE_AVX2 2
#define REDBLUE_AVX512 3
#define REDBLUE_AVX512_BF16 4

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace redblue {

namespace portable {
constexpr const char* kName = "portable";
bool supported() { return true; }
#define REDBLUE_REGION REDBLUE_PORTABLE
#include "region.h"
#undef REDBLUE_REGION
}  // namespace portable

#if defined(__aarch64__)
// Every 64-bit Arm CPU has NEON: no region to open.
namespace neon {
constexpr const char* kName = "neon";
bool supported() { return true; }
#define REDBLUE_REGION REDBLUE_NEON
#include "region.h"
#undef REDBLUE_REGION
}  // namespace neon
#endif

#if defined(__x86_64__)
namespace avx2 {
constexpr const char* kName = "avx2";
bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
REDBLUE_BEGIN_REGION("avx2,fma,f16c")
#define REDBLUE_REGION REDBLUE_AVX2
#include "region.h"
#undef REDBLUE_REGION
REDBLUE_END_REGION
}  // namespace avx2

namespace avx512 {
constexpr const char* kName = "avx512";
bool supported() {
  return avx2::supported() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
REDBLUE_BEGIN_REGION("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#define REDBLUE_REGION REDBLUE_AVX512
#include "region.h"
#undef REDBLUE_REGION
REDBLUE_END_REGION
}  // namespace avx512

namespace avx512_bf16 {
constexpr const char* kName = "avx512_bf16";
bool supported() { return avx512::supported() && __builtin_cpu_supports("avx512bf16"); }
REDBLUE_BEGIN_REGION("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#define REDBLUE_REGION REDBLUE_AVX512_BF16
#include "region.h"
#undef REDBLUE_REGION
REDBLUE_END_REGION
}  // namespace avx512_bf16
#endif

const std::vector<Isa>& list_isas() {
  static const std::vector<Isa> rows = {
#if defined(__x86_64__)
      avx512_bf16::kRow, avx512::kRow, avx2::kRow,
#elif defined(__aarch64__)
      neon::kRow,
#endif
      portable::kRow,
  };
  return rows;
}

const Isa& choose_isa(const std::string& name) {
  const char* forced = std::getenv("REDBLUE_ISA");
  const std::string wanted = name.empty() && forced ? forced : name;
  std::string runnable;
  bool known = false;
  for (const Isa& isa : list_isas()) {
    known |= wanted == isa.name;
    if (!isa.supported()) continue;
    if (wanted.empty() || wanted == isa.name) return isa;
    runnable += (runnable.empty() ? "" : ", ") + std::string(isa.name);
  }
  const char* const problem = known ? "an instruction set that this CPU lacks" : "an unknown instruction set";
  throw std::invalid_argument((name.empty() ? "REDBLUE_ISA names " : "") + std::string(problem) + ", '" + wanted +
                              "'; this CPU can run: " + runnable);
}

}  // namespace redblue
