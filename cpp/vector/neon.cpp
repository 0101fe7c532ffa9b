// Every 64-bit Arm CPU has NEON: no region to open.
#define REDBLUE_REGION REDBLUE_NEON
#include "vector/region.h"

#if defined(__aarch64__)
namespace redblue::neon {
constexpr const char* kName = "neon";
bool supported() { return true; }
#include "attention/region.h"
extern const Isa kRowOfTable;
const Isa kRowOfTable = kRow;
}  // namespace redblue::neon
#endif
