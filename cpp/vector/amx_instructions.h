// The tile instructions of AMX. Included once inside the target region of amx_bf16 (vector/region.h).
//
// They are written in assembly, so that the compiler needs no option for them and register numbers can be template
// arguments.

// The memory operand of ldtilecfg.
struct TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
struct TileRegisters {};  // the CPU holds them
inline void tile_configure(TileRegisters&) {
  static constexpr TileConfig config;
  static_assert(sizeof config == 64, "ldtilecfg reads 64 bytes");
  asm volatile("ldtilecfg %0" : : "m"(config));
}
inline void tile_release() { asm volatile("tilerelease"); }
template <int kT>
inline void tile_zero() { asm volatile("tilezero %%tmm%c0" : : "i"(kT)); }
template <int kT>
inline void tile_load(const void* rows, long bytes_apart) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(bytes_apart), "i"(kT) : "memory");
}
template <int kT>
inline void tile_store(void* rows, long bytes_apart) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(bytes_apart), "i"(kT) : "memory");
}
template <int kC, int kA, int kB>
inline void tile_dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
