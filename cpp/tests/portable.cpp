// isa.cpp with the portable row alone: what a ThreadSanitizer build needs, in a quarter of the time to compile.
#include "../isa.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../kernels.h"
#include "../numbers.h"
#include "../room.h"

#define REDBLUE_PORTABLE 0
#define REDBLUE_NEON 1
#define REDBLUE_AVX2 2
#define REDBLUE_AVX512 3
#define REDBLUE_AVX512_BF16 4

namespace redblue {

namespace portable {
constexpr const char* kName = "portable";
bool supported() { return true; }
#define REDBLUE_REGION REDBLUE_PORTABLE
#include "../region.h"
#undef REDBLUE_REGION
}  // namespace portable

const std::vector<Isa>& list_isas() {
  static const std::vector<Isa> rows = {portable::kRow};
  return rows;
}

}  // namespace redblue
