// Tiles of bfloat16 (AMX): Intel since Sapphire Rapids (2023). Only on Linux, where a process requests the tile
// registers.
//
// A second row with emulated instructions is for tests: any CPU with avx512_bf16 can run it, if it is chosen by name.
// Both rows share one file, because parsing the headers takes half of the compile time.
#if defined(__x86_64__)
#define REDBLUE_AVX512
#include "vector/region.h"

#include <cpuid.h>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace redblue {
namespace avx512_bf16 { extern const Isa kRowOfTable; }

// Whether CPU and system support tiles, and the system lets this process use the tile registers.
static bool permitted() {
#if defined(__linux__)
  constexpr unsigned kTiles = 1 << 24, kBfloat16 = 1 << 22, kSavedBySystem = 1 << 27;
  constexpr long kAskForRegisters = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & kSavedBySystem)) return false;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & (kTiles | kBfloat16)) != (kTiles | kBfloat16))
    return false;
  return syscall(SYS_arch_prctl, kAskForRegisters, kTileData) == 0;
#else
  return false;
#endif
}
// Returns the row of avx512_bf16 with these kernels and chains. Outside of the regions, because every CPU executes this
// function.
static Isa row_of(const char* name, bool (*supported)(), float (*chains)(long, float, float), long flops_per_step,
                  const Kernels& tiled) {
  Isa row = avx512_bf16::kRowOfTable;
  row.name = name;
  row.supported = supported;
  row.chains_bf16 = chains;
  row.flops_per_step_bf16 = flops_per_step;
  Kernels& kernels = row.kernels[int(Number::kBfloat16)];
  kernels.forward = tiled.forward;
  kernels.backward = tiled.backward;
  kernels.queries = tiled.queries;
  kernels.spilled = tiled.spilled;
  kernels.bias_gradient = tiled.bias_gradient;
  return row;
}

namespace amx_bf16 {
constexpr const char* kName = "amx_bf16";
bool supported();
REDBLUE_BEGIN_REGION("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#include "vector/vec.h"
#include "attention/tile.h"
#include "attention/pack.h"
#include "vector/amx_instructions.h"
#include "vector/amx.h"
REDBLUE_END_REGION
bool supported() {
  static const bool result = avx512_bf16::kRowOfTable.supported() && permitted() && known_products_agree();
  return result;
}
const Isa& row_of_table() {
  static const Isa row = row_of(kName, supported, chains_of_tiles, kFlopsOfChains, kTiled);
  return row;
}
}  // namespace amx_bf16

namespace amx_bf16_emulated {
constexpr const char* kName = "amx_bf16_emulated";
bool supported();
REDBLUE_BEGIN_REGION("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#include "vector/vec.h"
#include "attention/tile.h"
#include "attention/pack.h"
#include "vector/amx_emulated.h"
#include "vector/amx.h"
REDBLUE_END_REGION
bool supported() {
  static const bool result = avx512_bf16::kRowOfTable.supported() && known_products_agree();
  return result;
}
const Isa& row_of_table() {
  static const Isa row = row_of(kName, supported, chains_of_tiles, kFlopsOfChains, kTiled);
  return row;
}
}  // namespace amx_bf16_emulated
}  // namespace redblue
#endif
