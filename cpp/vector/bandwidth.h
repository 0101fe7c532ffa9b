// A streaming read, for the bandwidth of each cache level. Included once inside each target region (vector/region.h).
//
// With eight independent accumulators and plain vector loads, at least two loads start per cycle. The exclusive-ors
// cost no extra time, whatever the bits are.
inline long long read(const void* data, std::size_t bytes) {
  typedef long long Bits __attribute__((vector_size(kVectorBytes), may_alias));
  constexpr int kStreams = 8;
  const Bits* p = static_cast<const Bits*>(data);
  const Bits* const end = p + bytes / sizeof(Bits);
  Bits streams[kStreams] = {};
  for (; p < end; p += kStreams)
#pragma GCC unroll 8
    for (int i = 0; i < kStreams; i++) streams[i] ^= p[i];
#pragma GCC unroll 8
  for (int i = 1; i < kStreams; i++) streams[0] ^= streams[i];
  long long bits = 0;
  for (std::size_t lane = 0; lane < sizeof(Bits) / sizeof(long long); lane++) bits ^= streams[0][lane];
  return bits;
}
