// The row of an instruction set with tiles. Its products of bfloat16 pairs use tile instructions; its other kernels are
// the kernels of avx512_bf16. Included once inside each target region (vector/region.h), after the functions of the
// tile instructions: tile_configure, tile_release, tile_zero<C>, tile_load<T>, tile_store<T> and tile_dot<C, A, B>.
//
// There are 8 tile registers of 16 rows of 64 bytes. A product uses four of them for C (32 rows of 32 lanes) and two
// each for A and B. tile_dot<C, A, B> adds to C[m][n] the sum over k of A[m][k] B[k][n]; units of A and B are pairs of
// bfloat16.
//
// Sums are rounded differently than in avx512_bf16. tdpbf16ps sums the products of the even and of the odd numbers of
// 16 pairs separately, then adds both sums, then C; vdpbf16ps adds each product to C. Both round to nearest, ties to
// even, in float32 after each step, and flush denormals to 0.
constexpr long kSide = 16;          // rows and lanes of a tile
constexpr long kBlock = 2 * kSide;  // rows and lanes of a block of C
constexpr long kTile = kSide * kSide;

// The working memory of a task, besides its tile registers.
struct Scratch {
  alignas(64) unsigned a[2 * kSide * kLongest];  // tiles of 32 rows of A
  alignas(64) unsigned b[2 * kTile];             // the last rows of B, and zeros
  alignas(64) float c[kBlock * kBlock];
};

// Packs `rows` rows of A into tiles [tile along k][tile along m][m][k], with zeros beyond the edges of A.
inline void pack_tiles(long rows, long units, const unsigned* a, long am, long ak, unsigned* to) {
  for (long k = 0; k < units; k += kSide)
    for (long m = 0; m < kBlock; m += kSide, to += kTile) {
      const long height = std::min(kSide, rows - m), width = std::min(kSide, units - k);
      if (height <= 0) continue;  // no product reads this tile
      const unsigned* const from = a + m * am + k * ak;
      if (am == 1 && height == kSide && width == kSide) {
        transpose(from, ak, to, kSide);
        continue;
      }
      std::fill_n(to, kTile, 0u);
      for (long x = 0; x < height; x++)
        for (long y = 0; y < width; y++) to[x * kSide + y] = load_unaligned(from + x * am + y * ak);
    }
}

// The tiles of A, packed or in place.
struct TilesOfA {
  const unsigned* from;
  long step_k, step_m, stride;  // strides in units: between tiles along k and along m, and between rows
};
inline TilesOfA tiles_of(long rows, long units, const unsigned* a, long am, long ak, Scratch& scratch) {
  const bool whole = units % kSide == 0 && (rows == kSide || rows == kBlock);
  if (ak == 1 && whole) return {a, kSide, kSide * am, am};
  pack_tiles(rows, units, a, am, ak, scratch.a);
  return {scratch.a, 2 * kTile, kTile, kSide};
}

// scratch.c <- the product of at most 32 rows of A with 16 kLanes lanes of B. wide: A has more than 16 rows.
template <int kLanes>
inline void multiply(const TilesOfA& a, bool wide, long units, const unsigned* b, long bk, Scratch& scratch) {
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (long k = 0; k < units; k += kSide) {
    const unsigned* rows = b + k * bk;
    long stride = bk;
    if (units - k < kSide) {
      std::fill_n(scratch.b, 2 * kTile, 0u);
      for (long x = 0; x < units - k; x++) std::memcpy(scratch.b + x * kBlock, rows + x * bk, kLanes * kSide * 4);
      rows = scratch.b, stride = kBlock;
    }
    tile_load<6>(rows, 4 * stride);
    if (kLanes == 2) tile_load<7>(rows + kSide, 4 * stride);
    const unsigned* const tile = a.from + k / kSide * a.step_k;
    tile_load<4>(tile, 4 * a.stride);
    tile_dot<0, 4, 6>();
    if (kLanes == 2) tile_dot<1, 4, 7>();
    if (!wide) continue;
    tile_load<5>(tile + a.step_m, 4 * a.stride);
    tile_dot<2, 5, 6>();
    if (kLanes == 2) tile_dot<3, 5, 7>();
  }
  tile_store<0>(scratch.c, 4 * kBlock);
  if (kLanes == 2) tile_store<1>(scratch.c + kSide, 4 * kBlock);
  if (!wide) return;
  tile_store<2>(scratch.c + kSide * kBlock, 4 * kBlock);
  if (kLanes == 2) tile_store<3>(scratch.c + kSide * kBlock + kSide, 4 * kBlock);
}

// Adds scratch.c to `rows` rows of one vector of C, as `micro_kernel` in attention/tile.h does. tops: the maxima of
// these lanes, or null.
inline void add_to(const Scratch& scratch, long at, long rows, float* c, long cm, Start start, const float* factors,
                   float* tops) {
  const bool takes = start == Start::kScaled || start == Start::kWeighted;
  const V<float> factor = takes ? load(factors) : V<float>{};
  V<float> top = tops ? load(tops) : V<float>{};
  for (long m = 0; m < rows; m++) {
    V<float> sum = load(scratch.c + m * kBlock + at);
    if (start == Start::kSum) sum += load(c + m * cm);
    if (start == Start::kScaled) sum = multiply_add<float>(load(c + m * cm), factor, sum);
    if (start == Start::kWeighted) sum = multiply_add<float>(sum, factor, load(c + m * cm));
    top = larger<float>(sum, top);
    store(c + m * cm, sum);
  }
  if (tops) store(tops, top);
}

static __thread Scratch* scratch_of_task;

inline void product_of_tiles(const PairProduct& p) {
  Scratch& scratch = *scratch_of_task;
  const long parts = (p.length + kLongest - 1) / kLongest,
             part = parts > 1 ? (p.length + parts - 1) / parts : std::max(1L, p.length);
  for (long m = 0; m < p.rows; m += kBlock)
    for (long k = 0; k == 0 || k < p.length; k += part) {
      const long rows = std::min(kBlock, p.rows - m), units = std::min(part, p.length - k);
      const Start start = k && p.start != Start::kWeighted ? Start::kSum : p.start;
      float* const tops = k + part < p.length ? nullptr : p.tops;
      const TilesOfA a = tiles_of(rows, units, p.a + m * p.am + k * p.ak, p.am, p.ak, scratch);
      for (long lane = 0; lane < p.lanes; lane += kBlock) {
        const unsigned* const b = p.b + k * p.bk + lane;
        const bool two = p.lanes - lane > kSide;
        if (two) multiply<2>(a, rows > kSide, units, b, p.bk, scratch);
        else multiply<1>(a, rows > kSide, units, b, p.bk, scratch);
        for (long x = lane; x < std::min(p.lanes, lane + kBlock); x += kSide)
          add_to(scratch, x - lane, rows, p.c + m * p.cm + x, p.cm, start, p.factors ? p.factors + x : nullptr,
                 tops ? tops + x : nullptr);
      }
    }
}

// While a WithTiles exists, products of this thread use tiles. Its destructor releases the tiles even if a kernel
// throws.
struct WithTiles {
  Scratch scratch;
  TileRegisters registers_of_task;
  WithTiles() {
    tile_configure(registers_of_task);
    scratch_of_task = &scratch;
    pair_product = product_of_tiles;
  }
  ~WithTiles() {
    pair_product = nullptr;
    tile_release();
  }
  WithTiles(const WithTiles&) = delete;
};

// Runs a kernel of avx512_bf16 with tiles.
template <auto kKernel, class Pointer = decltype(kKernel)>
struct Tiled;
template <auto kKernel, class... Arguments>
struct Tiled<kKernel, Moved (*Kernels::*)(Arguments...)> {
  static Moved run(Arguments... arguments) {
    WithTiles tiles;
    return (avx512_bf16::kRowOfTable.kernels[int(Number::kBfloat16)].*kKernel)(arguments...);
  }
};

// Whether a product of whole numbers equals the result of a plain loop. Such sums are exact in every order.
inline bool agrees_with_a_plain_loop(long rows, long lanes, long length, bool by_rows) {
  const auto number = [](long x, long y) { return (7 * x + 5 * y + x * y) % 9 - 4; };
  const auto pair = [&](long x, long k) {
    return unsigned(to_bfloat16(float(number(x, 2 * k + 1)))) << 16 | to_bfloat16(float(number(x, 2 * k)));
  };
  const long am = by_rows ? length : 1, ak = by_rows ? 1 : rows, first_lane = rows;
  std::vector<unsigned> a(rows * length), b(length * lanes);
  std::vector<float> c(rows * lanes);
  for (long k = 0; k < length; k++) {
    for (long m = 0; m < rows; m++) a[m * am + k * ak] = pair(m, k);
    for (long n = 0; n < lanes; n++) b[k * lanes + n] = pair(first_lane + n, k);
  }
  WithTiles tiles;
  product_of_tiles(
      {rows, lanes, length, a.data(), am, ak, b.data(), lanes, c.data(), lanes, Start::kZero, nullptr, nullptr});
  for (long m = 0; m < rows; m++)
    for (long n = 0; n < lanes; n++) {
      long sum = 0;
      for (long k = 0; k < 2 * length; k++) sum += number(m, k) * number(first_lane + n, k);
      if (c[m * lanes + n] != float(sum)) return false;
    }
  return true;
}
// Checks products with A in place and packed, by rows and by columns, with partial tiles and in two parts. Prints a
// message if one is wrong.
inline bool known_products_agree() {
  if (agrees_with_a_plain_loop(64, 64, 32, true) && agrees_with_a_plain_loop(37, 48, kLongest + 21, true) &&
      agrees_with_a_plain_loop(37, 48, kLongest + 21, false))
    return true;
  std::fprintf(stderr, "redblue: %s is not used, because its products of known numbers are wrong on this machine\n",
               kName);
  return false;
}

// Four independent chains of tile products, for the peak rate.
inline float chains_of_tiles(long steps, float x, float y) {
  WithTiles tiles;
  const auto filled = [&](float value) {
    std::fill_n(tiles.scratch.a, kTile, unsigned(to_bfloat16(value)) * 0x10001);
    return tiles.scratch.a;
  };
  tile_load<4>(filled(x), 4 * kSide);
  tile_load<6>(filled(y), 4 * kSide);
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (long step = 0; step < steps; step++)
    tile_dot<0, 4, 6>(), tile_dot<1, 4, 6>(), tile_dot<2, 4, 6>(), tile_dot<3, 4, 6>();
  tile_store<0>(tiles.scratch.c, 4 * kBlock);
  tile_store<1>(tiles.scratch.c + kSide, 4 * kBlock);
  tile_store<2>(tiles.scratch.c + kSide * kBlock, 4 * kBlock);
  tile_store<3>(tiles.scratch.c + kSide * kBlock + kSide, 4 * kBlock);
  return tiles.scratch.c[0] + tiles.scratch.c[kSide] + tiles.scratch.c[kSide * kBlock];
}

// constexpr, because initialising it at run time could execute instructions that the CPU lacks. Null: the kernel of
// avx512_bf16.
constexpr Kernels kTiled = {
    0,
    0,
    0,
    Tiled<&Kernels::forward>::run,
    nullptr,
    nullptr,
    nullptr,
    Tiled<&Kernels::backward>::run,
    Tiled<&Kernels::queries>::run,
    Tiled<&Kernels::spilled>::run,
    nullptr,
    nullptr,
    nullptr,
    Tiled<&Kernels::bias_gradient>::run,
};
constexpr long kFlopsOfChains = 4 * 2 * 2 * kSide * kSide * kSide;
