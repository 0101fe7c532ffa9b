// Every 64-bit Arm CPU has NEON, so no region is needed.
#if defined(__aarch64__)
#define REDBLUE_NEON
#include "vector/region.h"

namespace redblue::neon {
constexpr const char* kName = "neon";
bool supported() { return true; }
#include "attention/region.h"
extern const Isa kRowOfTable;
const Isa kRowOfTable = kRow;
}  // namespace redblue::neon
#endif
