// Register-tiled products of packed panels. Included once inside each target region (vector/region.h).
//
// Every product of attention, forward and backward, has this form:
//
//     C[m][lane] (+)= sum over k of A[m, k] B[k][lane]
//
// B: a panel, k-th row at b + k * bk, loaded as whole vectors. A: single units, at a + m * am + k * ak, broadcast. C:
// sums, m-th row at c + m * cm, whole vectors. A unit is the operand of one multiply-add per lane: a float, a double,
// or a pair of bfloat16 that are neighbours along k (k then counts units: half the length).
//
// Registers hold MR rows of C of NR vectors each, NR vectors of B, and one broadcast unit of A. With 32 registers there
// are 6 x 4 = 24 sums, with 16 registers 6 x 2 = 12, so that loads (MR + NR and one prefetch per MR x NR multiply-adds)
// are never the bottleneck.

constexpr int kNR = kRegisters == 32 ? 4 : 2;
constexpr int kMR = 6;

// The formats of numbers in a packed panel. multiply_add_unit(b, a, c) is b times a plus c, where a comes from
// `broadcast`.
struct Float32 {
  using Number = float;  // as packed
  using Unit = float;
  using Sum = float;
  static constexpr int kStep = 1;  // numbers per unit
  static V<Sum> multiply_add_unit(V<Unit> b, V<Unit> a, V<Sum> c) {
#if defined(REDBLUE_NEON)
    return vfmaq_laneq_f32(c, b, a, 0);
#else
    return multiply_add<float>(b, a, c);
#endif
  }
};
struct Float64 {
  using Number = double;
  using Unit = double;
  using Sum = double;
  static constexpr int kStep = 1;
  static V<Sum> multiply_add_unit(V<Unit> b, V<Unit> a, V<Sum> c) {
#if defined(REDBLUE_NEON)
    return vfmaq_laneq_f64(c, b, a, 0);
#else
    return multiply_add<double>(b, a, c);
#endif
  }
};
#if defined(REDBLUE_BF16_PAIRS)
struct Bfloat16Pairs {
  using Number = bfloat16;
  using Unit = unsigned;
  using Sum = float;
  static constexpr int kStep = 2;
  static V<Sum> multiply_add_unit(V<Unit> b, V<Unit> a, V<Sum> c) {
#if defined(REDBLUE_NEON)
    return vbfdotq_laneq_f32(c, bits<bfloat16x8_t>(b), bits<bfloat16x8_t>(a), 0);
#else
    return multiply_add_pairs(b, a, c);
#endif
  }
};
#endif

// A queue of array rows to prefetch while products are computed. Without it, the first access to a row waits for memory
// (10 % of the time at d = 512). The rows added last are prefetched first.
//
// A product prefetches one line per kUnitsPerLine of its units. Many prefetches at once would also delay the product's
// own loads from the L2 cache (1 to 3 % of the time; measured, Zen 5). Rows that are too short for this and not
// contiguous are prefetched all at once.
class Ahead {
 public:
  // `count` rows of `bytes` bytes each, `stride` bytes apart.
  void add(const void* row, long count, long stride, long bytes) {
    if (count <= 0 || waiting_ == kMax) return;
    if (stride == bytes) bytes *= count, count = 1;
    blocks_[waiting_++] = {static_cast<const char*>(row), count, stride, bytes, 0};
  }
  void clear() { waiting_ = 0; }

  // The addresses that a product prefetches: `from` with its first unit, and `step` bytes further with each following
  // unit.
  struct Trail {
    const char* from;
    long step;
  };
  // The trail for the next `units` units. If too little is left to prefetch, every address is `nothing`.
  Trail follow(long units, const void* nothing) {
    for (long bytes = units * kStep; waiting_ > 0 && bytes > 0;) {
      Block& block = blocks_[waiting_ - 1];
      const char* const from = block.row + block.at;
      const long left = block.bytes - block.at;
      if (left > bytes) {
        block.at += bytes;
        return {from, (bytes + units - 1) / units};
      }
      for (long at = 0; at < left; at += kLine) __builtin_prefetch(from + at, 0, 2);
      bytes -= left;
      block.at = 0, block.row += block.stride;
      if (--block.count == 0) waiting_--;
    }
    return {static_cast<const char*>(nothing), 0};
  }

 private:
  static constexpr int kMax = 32;  // blocks; enough for K and V of a window in pages of 16 keys
  static constexpr long kLine = 64, kUnitsPerLine = 8, kStep = kLine / kUnitsPerLine;
  struct Block {
    const char* row;
    long count, stride, bytes, at;
  };
  Block blocks_[kMax];
  int waiting_ = 0;
};

// Loads a unit that may be unaligned: a pair of bfloat16 may begin at any number.
template <class Unit>
inline Unit load_unaligned(const Unit* p) {
  Unit unit;
  __builtin_memcpy(&unit, reinterpret_cast<const char*>(p), sizeof unit);
  return unit;
}

// Broadcasts one unit to a vector. With NEON only lane 0 holds the unit, and multiply_add_unit multiplies by that lane.
// The operand `sum` delays the load until `sum` is computed: otherwise the compiler loads the units of all rows first,
// and registers run out.
template <class Unit, class Sum>
inline V<Unit> broadcast(const Unit* p, [[maybe_unused]] V<Sum> sum) {
#if defined(REDBLUE_NEON)
  V<Unit> unit;
  if constexpr (sizeof(Unit) == 4)
    asm("ldr %s0, %1" : "=w"(unit) : "m"(*p), "w"(sum));
  else
    asm("ldr %d0, %1" : "=w"(unit) : "m"(*p), "w"(sum));
  return unit;
#else
  return splat(load_unaligned(p));
#endif
}

// The micro-kernel: computes a register tile of C, MR rows of NR vectors.
template <class F, int MR, int NR>
inline void micro_kernel(const typename F::Unit* a, long am, long ak, const typename F::Unit* b, long bk,
                         typename F::Sum* c, long cm, long length, Start start, const typename F::Sum* factors,
                         Ahead::Trail ahead, typename F::Sum* tops) {
  using Sum = typename F::Sum;
  constexpr int L = kLanesOf<Sum>;
  V<Sum> sums[MR][NR];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
    for (int v = 0; v < NR; v++) sums[m][v] = V<Sum>{};
  for (long k = 0; k < length; k++) {
    __builtin_prefetch(ahead.from, 0, 2);
    ahead.from += ahead.step;
    V<typename F::Unit> row[NR];
#pragma GCC unroll 4
    for (int v = 0; v < NR; v++) row[v] = load(b + v * L);
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      const V<typename F::Unit> unit = broadcast<typename F::Unit, Sum>(a + m * am, sums[m < 2 ? 0 : m - 2][NR - 1]);
#pragma GCC unroll 4
      for (int v = 0; v < NR; v++) sums[m][v] = F::multiply_add_unit(row[v], unit, sums[m][v]);
    }
    a += ak;
    b += bk;
  }
  // The old C is added at the end. A sum over thousands of keys is then a sum of sums over tiles, and its rounding
  // error hardly grows.
  if (start == Start::kScaled) {
#pragma GCC unroll 4
    for (int v = 0; v < NR; v++) {
      const V<Sum> factor = load(factors + v * L);
#pragma GCC unroll 8
      for (int m = 0; m < MR; m++) sums[m][v] = multiply_add<Sum>(load(c + m * cm + v * L), factor, sums[m][v]);
    }
  } else if (start == Start::kWeighted) {
#pragma GCC unroll 4
    for (int v = 0; v < NR; v++) {
      const V<Sum> factor = load(factors + v * L);
#pragma GCC unroll 8
      for (int m = 0; m < MR; m++) sums[m][v] = multiply_add<Sum>(sums[m][v], factor, load(c + m * cm + v * L));
    }
  } else if (start == Start::kSum) {
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
      for (int v = 0; v < NR; v++) sums[m][v] += load(c + m * cm + v * L);
  }
  if (tops)
#pragma GCC unroll 4
    for (int v = 0; v < NR; v++) {
      V<Sum> top = load(tops + v * L);
#pragma GCC unroll 8
      for (int m = 0; m < MR; m++) top = larger<Sum>(sums[m][v], top);
      store(tops + v * L, top);
    }
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
    for (int v = 0; v < NR; v++) store(c + m * cm + v * L, sums[m][v]);
}

// Computes NR vectors of lanes of all rows of C. The last two register tiles share the remaining rows evenly, because a
// register tile of one or two rows waits for its own sums.
template <class F, int NR>
inline void column(long rows, const typename F::Unit* a, long am, long ak, const typename F::Unit* b, long bk,
                   typename F::Sum* c, long cm, long length, Start start, const typename F::Sum* factors, Ahead& ahead,
                   typename F::Sum* tops) {
  const long parts = (length + kLongest - 1) / kLongest,
             part = parts > 1 ? (length + parts - 1) / parts : std::max(1L, length);
  long m = 0;
  const auto step = [&](auto height) {
    constexpr int MR = decltype(height)::value;
    for (long k = 0; k == 0 || k < length; k += part) {
      const long units = std::min(part, length - k);
      micro_kernel<F, MR, NR>(a + m * am + k * ak, am, ak, b + k * bk, bk, c + m * cm, cm, units,
                       k && start != Start::kWeighted ? Start::kSum : start, factors, ahead.follow(units, b),
                       k + part < length ? nullptr : tops);
    }
    m += MR;
  };
  while (rows - m > kMR + 2 || rows - m == kMR) step(std::integral_constant<int, kMR>{});
  if (rows - m > kMR) step(std::integral_constant<int, 4>{});
  switch (rows - m) {
    case 5: return step(std::integral_constant<int, 5>{});
    case 4: return step(std::integral_constant<int, 4>{});
    case 3: return step(std::integral_constant<int, 3>{});
    case 2: return step(std::integral_constant<int, 2>{});
    case 1: return step(std::integral_constant<int, 1>{});
  }
}

// Computes C (rows x lanes) as above; lanes must be whole vectors. tops: if not null, the maximum of each lane so far,
// updated while C is in registers. A panel of B larger than the L1 cache streams from the L2 cache without loss:
// splitting it into parts of 128 or 256 units was not faster (measured, Zen 5, d = 512).
template <class F>
inline void product(long rows, long lanes, long length, const typename F::Unit* a, long am, long ak,
                    const typename F::Unit* b, long bk, typename F::Sum* c, long cm, Start start,
                    const typename F::Sum* factors, Ahead& ahead, typename F::Sum* tops = nullptr) {
  constexpr int L = kLanesOf<typename F::Sum>;
#if defined(REDBLUE_AVX512) && defined(REDBLUE_BF16_PAIRS)
  if (pair_product) return pair_product({rows, lanes, length, a, am, ak, b, bk, c, cm, start, factors, tops});
#endif
  for (long lane = 0; lane < lanes; lane += kNR * L) {
    const auto go = [&](auto width) {
      column<F, decltype(width)::value>(rows, a, am, ak, b + lane, bk, c + lane, cm, length, start, factors + lane,
                                        ahead, tops ? tops + lane : nullptr);
    };
    switch ((lanes - lane) / L) {
      case 1: go(std::integral_constant<int, 1>{}); break;
      case 2: go(std::integral_constant<int, 2>{}); break;
      case 3: go(std::integral_constant<int, kNR < 3 ? kNR : 3>{}); break;
      default: go(std::integral_constant<int, kNR>{});
    }
  }
}
