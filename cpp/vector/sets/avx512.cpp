// Intel since Skylake-SP (2017), AMD since Zen 4 (2022).
#if defined(__x86_64__)
#define REDBLUE_AVX512
#include "vector/region.h"

namespace redblue::avx512 {
constexpr const char* kName = "avx512";
bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
REDBLUE_BEGIN_REGION("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#include "attention/region.h"
REDBLUE_END_REGION
extern const Isa kRowOfTable;
const Isa kRowOfTable = kRow;
}  // namespace redblue::avx512
#endif
