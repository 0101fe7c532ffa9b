// The table of instruction sets. A new instruction set needs a translation unit like vector/sets/avx2.cpp, its vectors
// in vector/vec.h, and a line here.
#include "vector/isa.h"

#include <cstdlib>
#include <stdexcept>

#include "attention/pair_product.h"
#include "vector/prefetch.h"

namespace redblue {

__thread void (*pair_product)(const PairProduct&) REDBLUE_NEAR_THREAD = nullptr;

#if defined(__x86_64__)
namespace amx_bf16 { const Isa& row_of_table(); }
namespace amx_bf16_emulated { const Isa& row_of_table(); }
namespace avx512_bf16 { extern const Isa kRowOfTable; }
namespace avx512 { extern const Isa kRowOfTable; }
namespace avx2 { extern const Isa kRowOfTable; }
#elif defined(__aarch64__)
namespace neon_bf16 { extern const Isa kRowOfTable; }
namespace neon { extern const Isa kRowOfTable; }
#endif
namespace portable { extern const Isa kRowOfTable; }

static bool prefetches_into_l2() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // not yet called when global objects are initialised
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}
const bool kPrefetchIntoL2 = prefetches_into_l2();

const std::vector<const Isa*>& list_isas() {
  static const std::vector<const Isa*> rows = {
#if defined(REDBLUE_PORTABLE_ONLY)  // builds with sanitizers leave out rows: these take most of their compile time
#elif defined(__x86_64__)
#if !defined(REDBLUE_NO_AVX512)
      &amx_bf16::row_of_table(), &avx512_bf16::kRowOfTable, &avx512::kRowOfTable,
#endif
      &avx2::kRowOfTable,
#elif defined(__aarch64__)
      &neon_bf16::kRowOfTable, &neon::kRowOfTable,
#endif
      &portable::kRowOfTable,
  };
  return rows;
}

const std::vector<const Isa*>& list_emulated_isas() {
  static const std::vector<const Isa*> rows = {
#if !defined(REDBLUE_PORTABLE_ONLY) && !defined(REDBLUE_NO_AVX512) && defined(__x86_64__)
      &amx_bf16_emulated::row_of_table(),
#endif
  };
  return rows;
}

// Names of the rows that this build leaves out.
static bool left_out([[maybe_unused]] const std::string& name) {
#if defined(REDBLUE_NO_AVX512) && defined(__x86_64__)
  return name == "avx512" || name == "avx512_bf16" || name == "amx_bf16" || name == "amx_bf16_emulated";
#else
  return false;
#endif
}

const Isa& choose_isa(const std::string& name) {
  const char* forced = std::getenv("REDBLUE_ISA");
  const std::string wanted = name.empty() && forced ? forced : name;
  std::string runnable;
  bool known = false;
  for (const Isa* isa : list_isas()) {
    known |= wanted == isa->name;
    if (!isa->supported()) continue;
    if (wanted.empty() || wanted == isa->name) return *isa;
    runnable += (runnable.empty() ? "" : ", ") + std::string(isa->name);
  }
  for (const Isa* isa : list_emulated_isas()) {
    known |= wanted == isa->name;
    if (wanted == isa->name && isa->supported()) return *isa;
  }
  const char* const problem = known              ? "an instruction set that this CPU lacks"
                              : left_out(wanted) ? "an instruction set that this build leaves out"
                                                 : "an unknown instruction set";
  throw std::invalid_argument((name.empty() ? "REDBLUE_ISA names " : "") + std::string(problem) + ", '" + wanted +
                              "'; this CPU can run: " + runnable);
}

}  // namespace redblue
