// Intel since Haswell (2013), AMD since Zen (2017).
#if defined(__x86_64__)
#define REDBLUE_AVX2
#include "vector/region.h"

namespace redblue::avx2 {
constexpr const char* kName = "avx2";
bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
REDBLUE_BEGIN_REGION("avx2,fma,f16c")
#include "attention/region.h"
REDBLUE_END_REGION
extern const Isa kRowOfTable;
const Isa kRowOfTable = kRow;
}  // namespace redblue::avx2
#endif
