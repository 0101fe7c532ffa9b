// Functions that both passes share: packing arrays of T in format F, and the softmax of a tile of scores. Included once
// inside each target region (vector/region.h).
//
// Queries lie in the lanes of vectors; keys (for scores) or features (for outputs) lie in the rows of a tile. S^T = K
// Q^T and O^T = V^T P^T both have the form of tile.h: Q^T and P^T are panels, K and V are broadcast from their own
// rows.
template <class T, class F>
struct Formats {
  using Sum = typename F::Sum;
  using Packed = typename F::Number;
  using Unit = typename F::Unit;
  static constexpr int L = kLanesOf<Sum>, S = F::kStep;
  static constexpr long kLanesAtOnce = kNR * L;
  static constexpr long kFew = FewQueries<T, F>::kMost;  // up to this many rows, decode.h is faster
  static constexpr Sum kLog2E = Sum(1.4426950408889634);
  static constexpr Sum kLowest = -std::numeric_limits<Sum>::infinity();

  static long up(long count, long multiple) { return (count + multiple - 1) / multiple * multiple; }
  static long units(long count) { return (count + S - 1) / S; }
  // The padded length of a packed row. Rows of a multiple of 1024 bytes get extra padding, so that they begin in
  // different cache sets.
  static long padded(long columns) { return up(columns, S * L) + (columns % (1024 / sizeof(Packed)) ? 0 : S * L); }
  static const Unit* as_units(const Packed* p) { return reinterpret_cast<const Unit*>(p); }
  // Whether products can read rows of an array in place. in_place_pairs: whether they can read these rows as the layout
  // `pairs` of pack.h.
  static bool in_place(const Array& array, long columns) {
    return std::is_same_v<T, Packed> && array.column == 1 && columns % S == 0 && array.row % S == 0;
  }
  static bool in_place_pairs(const Array& array) { return std::is_same_v<T, Packed> && S == 1 && array.column == 1; }
  // Queues rows first .. first + rows - 1 of an array for prefetching. row(r): the address of row r; consecutive rows
  // must be array.row numbers apart.
  template <class Row>
  static void add_ahead(Ahead& ahead, const Array& array, Row row, long first, long rows, long columns) {
    if (rows > 0 && array.column == 1)
      ahead.add(row(first), rows, long(array.row * sizeof(T)), long(columns * sizeof(T)));
  }
  static Rows rows_of(long start, long count) { return {start, count, up(count, L)}; }

  // The rows of K or V that a product reads: of the array itself, or of a packed tile.
  struct Side {
    const Packed* rows;
    long length;
    long first;     // the key of row 0
    bool by_place;  // rows are in the order of the tile of scores, and `first` is not used
    const Packed* of(const Stretch& x) const { return rows + (by_place ? x.at : x.j - first) * length; }
  };
  // One stretch for all rows of a chunk.
  static constexpr Stretch whole_of(const Chunk& chunk) { return {0, 0, chunk.rows}; }
  // Calls use(stretch) for the stretches of a chunk, or for one stretch of all rows if rows are in the order of the
  // tile.
  template <class Use>
  static void each_stretch(const Chunk& chunk, bool by_place, Use use) {
    if (by_place) return use(whole_of(chunk));
    for (long i = 0; i < chunk.stretches_count; i++) use(chunk.stretches[i]);
  }

  // Converts P to the formats of the next products. A unit of by_keys is a pair of neighbouring keys, a unit of by_rows
  // a pair of neighbouring rows.
  static void to_panels(const Sum* p, long keys, long lanes, Unit* by_keys, Packed* by_rows) {
    if constexpr (S == 2) {
#if defined(REDBLUE_BF16_PAIRS)
      for (long key = 0; key < keys; key += 2)
        for (long v = 0; v < lanes; v += L) {
          const V<Sum> even = load(p + key * lanes + v);
          const V<Sum> odd = key + 1 < keys ? load(p + (key + 1) * lanes + v) : V<Sum>{};
          const Halves half_even = bfloat16_halves(even), half_odd = bfloat16_halves(odd);
          if (by_rows) {
            store_halves(by_rows + key * lanes + v, half_even);
            if (key + 1 < keys) store_halves(by_rows + (key + 1) * lanes + v, half_odd);
          }
          if (by_keys) store(by_keys + key / 2 * lanes + v, low_halves(half_odd) << 16 | low_halves(half_even));
        }
#endif
    }
  }

  // Applies options and mask to scores; tile rows between parts become -inf.
  static void finish_chunk(const Stream& s, const Rows& rows, const Chunk& chunk, Sum* scores, Sum* slopes, Sum* extra,
                           Sum* bias_scratch) {
    for (long i = 0; i < chunk.parts_count; i++) {
      const Part& part = chunk.parts[i];
      Sum* const tile = scores + part.at * rows.lanes;
      if (!plain_scores(s.call))
        finish_scores<Sum>(s, rows, part.j, part.keys, tile, slopes ? slopes + part.at * rows.lanes : nullptr, extra,
                           bias_scratch);
      mask_part<Sum>(s, rows, part, tile, kLowest);
    }
    fill_gaps(chunk, rows.lanes, scores, kLowest);
  }
  // Whether the products of a chunk without gaps are final scores, so that finish_chunk is not needed.
  static bool finished(const Stream& s, const Rows& rows, const Chunk& chunk) {
    if (!plain_scores(s.call)) return false;
    for (long i = 0; i < chunk.parts_count; i++) {
      const Part& part = chunk.parts[i];
      if (part.bits || (!s.call.pattern.starts && !s.holds(rows.start, rows.count, part.j, part.keys))) return false;
    }
    return true;
  }
  static void fill_gaps(const Chunk& chunk, long lanes, Sum* tile, Sum value) {
    chunk.each_gap([&](long row, long count) { std::fill_n(tile + row * lanes, count * lanes, value); });
  }

  // One step of the online softmax: scores <- e^(factor (score - the new maximum)), updates row_max and row_sum, and
  // sets `factors` to the scale of earlier sums. The maximum is subtracted before the factor is applied, so that the
  // largest weight is exactly 1, however large scores are. tops: the maxima of the scores, if known.
  static void softmax(long keys, long lanes, Sum factor, Sum* scores, Sum* row_max, Sum* row_sum, Sum* factors,
                      const Sum* tops = nullptr) {
    if (lanes == kLanesAtOnce) return softmax_of<kNR>(keys, lanes, factor, scores, row_max, row_sum, factors, tops);
    for (long v = 0; v < lanes; v += L)
      softmax_of<1>(keys, lanes, factor, scores + v, row_max + v, row_sum + v, factors + v, tops ? tops + v : nullptr);
  }
  // The same for N vectors of lanes, in memory order.
  template <int N>
  static void softmax_of(long keys, long lanes, Sum factor, Sum* scores, Sum* row_max, Sum* row_sum, Sum* factors,
                         const Sum* known) {
    constexpr int M = N == 1 ? 4 : 2;  // keys at once: M independent chains of sums
    const V<Sum> scale = splat(factor * kLog2E), lowest = splat(kLowest);
    V<Sum> tops[M][N], base[N], sums[M][N] = {};
    const auto each = [&](auto use) {
      long key = 0;
      for (; key + M <= keys; key += M)
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
          for (int n = 0; n < N; n++) use(scores + (key + m) * lanes + n * L, m, n);
      for (; key < keys; key++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) use(scores + key * lanes + n * L, 0, n);
    };
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) tops[m][n] = known ? load(known + n * L) : lowest;
    if (!known) each([&](const Sum* score, int m, int n) { tops[m][n] = larger<Sum>(load(score), tops[m][n]); });
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
      const V<Sum> old = load(row_max + n * L);
      V<Sum> top = old;
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) top = larger<Sum>(tops[m][n], top);
      base[n] = top == lowest ? V<Sum>{} : top;  // 0 for a row without attended keys so far: exp(-inf - 0) = 0
      store(row_max + n * L, top);
      store(factors + n * L, exp2<Sum>((old - base[n]) * scale));
    }
    each([&](Sum* score, int m, int n) {
      const V<Sum> weight = exp2<Sum>((load(score) - base[n]) * scale);
      sums[m][n] += weight;
      store(score, weight);
    });
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
#pragma GCC unroll 4
      for (int m = 1; m < M; m++) sums[0][n] += sums[m][n];
      store(row_sum + n * L, multiply_add<Sum>(load(row_sum + n * L), load(factors + n * L), sums[0][n]));
    }
  }
};
