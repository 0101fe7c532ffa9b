// The tile instructions of AMX in software, bit by bit as Intel's manual defines them. Included once inside the target
// region of amx_bf16_emulated (vector/region.h).
struct TileRegisters {
  alignas(64) unsigned rows[8][16][16];
};
static __thread TileRegisters* registers;  // of this thread; null: not configured

// For tests/kernels/cpu/test_amx.py: makes one sum of every product wrong.
inline bool wrong_on_purpose() {
  static const bool result = std::getenv("REDBLUE_WRONG_TILES");
  return result;
}

inline void tile_configure(TileRegisters& own) { registers = &own; }
inline void tile_release() { registers = nullptr; }
inline unsigned (*rows_of(int tile))[16] {
  if (!registers) throw std::logic_error("a tile instruction without a configuration");
  return registers->rows[tile];
}
template <int kT>
inline void tile_zero() { std::memset(rows_of(kT), 0, 1024); }
template <int kT>
inline void tile_load(const void* rows, long bytes_apart) {
  for (long m = 0; m < 16; m++) std::memcpy(rows_of(kT)[m], static_cast<const char*>(rows) + m * bytes_apart, 64);
}
template <int kT>
inline void tile_store(void* rows, long bytes_apart) {
  for (long m = 0; m < 16; m++) std::memcpy(static_cast<char*>(rows) + m * bytes_apart, rows_of(kT)[m], 64);
}
// Denormal arguments and results become 0 and keep their sign.
inline V<float> flushed(V<float> x) {
  const V<unsigned> number = bits<V<unsigned>>(x);
  return bits<V<float>>((number & 0x7f800000) == V<unsigned>{} ? number & 0x80000000 : number);
}
inline V<float> flushed_multiply_add(V<float> a, V<float> b, V<float> c) {
  return flushed(_mm512_fmadd_ps(flushed(a), flushed(b), c));
}
template <int kC, int kA, int kB>
inline void tile_dot() {
  for (long m = 0; m < 16; m++) {
    V<float> even = {}, odd = {};
    for (long k = 0; k < 16; k++) {
      const V<unsigned> a = splat(rows_of(kA)[m][k]), b = load(rows_of(kB)[k]);
      even = flushed_multiply_add(bits<V<float>>(a << 16), bits<V<float>>(b << 16), even);
      odd = flushed_multiply_add(bits<V<float>>(a & 0xffff0000), bits<V<float>>(b & 0xffff0000), odd);
    }
    float* const c = reinterpret_cast<float*>(rows_of(kC)[m]);
    store(c, flushed(flushed(load(c)) + flushed(even + odd)));
  }
  if (wrong_on_purpose()) rows_of(kC)[3][5] ^= 1 << 20;
}
