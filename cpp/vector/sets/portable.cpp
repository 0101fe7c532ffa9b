// For any CPU of this architecture, so no region is needed.
#include "vector/region.h"

namespace redblue::portable {
constexpr const char* kName = "portable";
bool supported() { return true; }
#include "attention/region.h"
extern const Isa kRowOfTable;
const Isa kRowOfTable = kRow;
}  // namespace redblue::portable
