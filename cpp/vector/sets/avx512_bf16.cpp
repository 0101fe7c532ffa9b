// AVX-512 with products of bfloat16 pairs: Intel since Cooper Lake (2020), AMD since Zen 4.
#if defined(__x86_64__)
#define REDBLUE_AVX512
#define REDBLUE_BF16_PAIRS
#include "vector/region.h"

namespace redblue::avx512 { extern const Isa kRowOfTable; }

namespace redblue::avx512_bf16 {
constexpr const char* kName = "avx512_bf16";
bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16");
}
REDBLUE_BEGIN_REGION("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#include "attention/region.h"
REDBLUE_END_REGION
extern const Isa kRowOfTable;
// avx512::kRowOfTable is constant-initialised, so it exists before this row.
const Isa kRowOfTable = with_kernels_of(kRow, avx512::kRowOfTable);
}  // namespace redblue::avx512_bf16
#endif
