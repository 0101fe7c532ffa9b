// NEON with products of bfloat16 pairs (FEAT_BF16): Arm Neoverse V1 and N2 (2021), Apple since M2 (2022).
#if defined(__aarch64__)
#define REDBLUE_NEON
#define REDBLUE_BF16_PAIRS
#include "vector/region.h"
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace redblue::neon { extern const Isa kRowOfTable; }

namespace redblue::neon_bf16 {
constexpr const char* kName = "neon_bf16";
bool supported() {
#if defined(__linux__)
  constexpr unsigned long kBf16 = 1 << 14;  // HWCAP2_BF16 of the kernel
  return getauxval(AT_HWCAP2) & kBf16;
#elif defined(__APPLE__)
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &value, &size, nullptr, 0) == 0 && value;
#else
  return false;
#endif
}
REDBLUE_BEGIN_REGION("arch=armv8.2-a+bf16")
#include "attention/region.h"
REDBLUE_END_REGION
extern const Isa kRowOfTable;
// neon::kRowOfTable is constant-initialised, so it exists before this row.
const Isa kRowOfTable = with_kernels_of(kRow, neon::kRowOfTable);
}  // namespace redblue::neon_bf16
#endif
