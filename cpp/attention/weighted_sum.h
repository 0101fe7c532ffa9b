// Weighted sums of rows of V for few queries (decoding). Vectors lie along the features. Included once inside each
// target region (vector/region.h).

// Adds rows first .. stop - 1 of V, times their weights, to R rows of output. ahead: null if each vector prefetches a
// later one, as in dots_of. pace: how often `ahead` prefetches; a step is one key, or one pair of keys.
template <class T, int R, class Sum, class Row, class Fetched>
struct WeightedRows {
  static constexpr int L = kLanesOf<Sum>;
  long first, stop, columns;
  Row v_row;
  const Sum* weights;  // rows `cols` apart
  long cols;
  Sum* out;  // rows `length` apart
  long length;
  const Sum* factors;  // scale the previous contents of `out`; null: 1
  Fetched* ahead;
  Pace pace;

  Sum factor(int r) const { return factors ? factors[r] : Sum(1); }
  // Adds kAtOnce vectors of columns at a time while that many remain. Returns the first column not yet added.
  template <int kAtOnce>
  long add(long c) const {
    const bool into_l2 = kPrefetchIntoL2;
    for (; c + kAtOnce * L <= columns; c += kAtOnce * L) {
      V<Sum> sums[R][kAtOnce];
#pragma GCC unroll 4
      for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int x = 0; x < kAtOnce; x++) sums[r][x] = V<Sum>{};
      for (long key = first; key < stop; key++) {
        const T *const from = v_row(key) + c, *const later = v_row.later(key) + c;
        V<Sum> numbers[kAtOnce];
#pragma GCC unroll 8
        for (int x = 0; x < kAtOnce; x++) {
          if (R == 1 && !ahead) prefetch_once(later + x * L, into_l2);
          numbers[x] = Wide<T>::load_wide(from + x * L);
        }
        if (ahead && pace.fetches(key - first)) {
          if constexpr (std::is_same_v<T, Sum>) ahead->after(sums[R - 1][kAtOnce - 1]);
          ahead->fetch(pace.lines);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          const V<Sum> weight = splat(weights[r * cols + key]);
#pragma GCC unroll 8
          for (int x = 0; x < kAtOnce; x++) sums[r][x] = multiply_add<Sum>(numbers[x], weight, sums[r][x]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int x = 0; x < kAtOnce; x++) {
          Sum* const to = out + r * length + c + x * L;
          store(to, multiply_add<Sum>(load(to), splat(factor(r)), sums[r][x]));
        }
    }
    return c;
  }
  void add_rest(long c) const {
    for (; c < columns; c++)
      for (int r = 0; r < R; r++) {
        Sum sum = 0;
        for (long key = first; key < stop; key++) sum += weights[r * cols + key] * Sum(widen(v_row(key)[c]));
        out[r * length + c] = out[r * length + c] * factor(r) + sum;
      }
  }
  void add_all() const {
    constexpr int kMost = R == 1 ? 8 : 4;
    long c = 0;
    if constexpr (Wide<T>::kWhole) {
      c = add<kMost>(c);
      if constexpr (R == 1) c = add<4>(c);
      c = add<1>(c);
    }
    add_rest(c);
  }
};

#if defined(REDBLUE_BF16_PAIRS)
// The same with products of bfloat16 pairs: two keys at a time, with weights rounded to bfloat16.
template <int R, class Row, class Fetched>
struct WeightedPairs {
  static constexpr int L = kLanesOf<float>;
  long first, stop, columns;
  Row v_row;
  const bfloat16* weights;  // rows `cols` apart
  long cols;
  float* out;  // rows `length` apart
  long length;
  const float* factors;
  Fetched* ahead;
  Pace pace;

  static V<unsigned> pair_of(const bfloat16* weight) {
    unsigned pair;
    std::memcpy(&pair, weight, sizeof pair);
    return splat(pair);
  }
  // Adds 2 kAtOnce vectors of columns at a time while that many remain. Returns the first column not yet added.
  template <int kAtOnce>
  long add(long c) const {
    for (; c + 2 * kAtOnce * L <= columns; c += 2 * kAtOnce * L) {
      V<float> sums[R][2 * kAtOnce];
#pragma GCC unroll 4
      for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int x = 0; x < 2 * kAtOnce; x++) sums[r][x] = V<float>{};
      const auto add_pairs = [&](long key, auto is_pair) {
        const bfloat16 *const even = v_row(key) + c, *const odd = is_pair() ? v_row(key + 1) + c : even;
        V<unsigned> numbers[2 * kAtOnce];
#pragma GCC unroll 4
        for (int x = 0; x < kAtOnce; x++) {
          const V<unsigned> a = load_pairs(even + 2 * x * L);
          const V<unsigned> b = is_pair() ? load_pairs(odd + 2 * x * L) : V<unsigned>{};
          numbers[2 * x] = lower_columns(a, b);
          numbers[2 * x + 1] = upper_columns(a, b);
        }
        if (pace.fetches((key - first) / 2)) {
          ahead->after(sums[R - 1][2 * kAtOnce - 1]);
          ahead->fetch(pace.lines);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          const V<unsigned> weight = pair_of(weights + r * cols + key);
#pragma GCC unroll 8
          for (int x = 0; x < 2 * kAtOnce; x++) sums[r][x] = multiply_add_pairs(weight, numbers[x], sums[r][x]);
        }
      };
      long key = first;
      for (; key + 2 <= stop; key += 2) add_pairs(key, std::true_type());
      if (key < stop) add_pairs(key, std::false_type());
#pragma GCC unroll 4
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int x = 0; x < kAtOnce; x++) store_in_order(r, c + 2 * x * L, sums[r] + 2 * x);
    }
    return c;
  }
  // Columns 0..3, 8..11, ... are in the first vector of sums, columns 4..7, 12..15, ... in the second.
  void store_in_order(int r, long c, const V<float>* sums) const {
    V<int> first_half;
#pragma GCC unroll 16
    for (int lane = 0; lane < L; lane++) first_half[lane] = lane % 4 + lane / 8 * 4 + lane / 4 % 2 * L;
    const V<float> factor = splat(factors ? factors[r] : 1.0f);
    float* const to = out + r * length + c;
    const V<float> first = L == 4 ? sums[0] : shuffle(sums[0], sums[1], first_half),
                   second = L == 4 ? sums[1] : shuffle(sums[0], sums[1], first_half + L / 2);
    store(to, multiply_add<float>(load(to), factor, first));
    store(to + L, multiply_add<float>(load(to + L), factor, second));
  }
  void add_all() const {
    constexpr int kMost = R == 1 ? 4 : 2;
    long c = add<kMost>(0);
    if (kMost == 4) c = add<2>(c);
    add<1>(c);
  }
};
// Rounds weights to bfloat16 in place: the result fills the first half of each row. Rows are whole vectors, `cols`
// numbers apart.
inline void round_weights(long keys, long count, float* p, long cols) {
  for (long r = 0; r < count; r++)
    for (long key = 0; key < keys; key += kLanesOf<float>)
      Wide<bfloat16>::store_narrow(reinterpret_cast<bfloat16*>(p + r * cols) + key, load(p + r * cols + key));
}
#endif
// Whether weighted sums of this many columns use products of bfloat16 pairs.
template <class T>
constexpr bool takes_pairs([[maybe_unused]] long columns) {
#if defined(REDBLUE_BF16_PAIRS)
  return std::is_same_v<T, bfloat16> && columns % (2 * kLanesOf<float>) == 0;
#else
  return false;
#endif
}

// out[r] = out[r] factors[r] + sum over keys of p[r][key] v[key]. Keys are processed in blocks whose rows of V fit in
// the L1 cache: all rows and columns of one block before the next block.
template <class T, class Sum, class Row>
__attribute__((noinline)) void weighted_sum_of_row(long keys, long columns, const Row& v_row, const Sum* p,
                                                   const Sum* factors, Sum* out) {
  constexpr int L = kLanesOf<Sum>;
  // One query needs no blocks if it processes all columns in one pass. Otherwise one query is faster with blocks of
  // this size (by 5 %), and several queries with half of it (by 10 %; measured, Zen 5).
  const bool one_pass = columns == 8 * L || columns == 4 * L || columns == L;
  const long block = one_pass ? keys : std::max<long>(1, 2 * kBytesAhead / (columns * long(sizeof(T))));
  for (long first = 0; first < keys; first += block) {
    const long stop = std::min(keys, first + block);
    using Share = WeightedRows<T, 1, Sum, Row, Trail<T, Row>>;
    Share{first, stop, columns, v_row, p, 0, out, 0, first ? nullptr : factors, nullptr, {}}.add_all();
  }
}
// begin(key): returns the object that prefetches while the block of keys from `key` on is computed. p is overwritten.
template <class T, class Sum, class Row, class Begin>
__attribute__((noinline)) void weighted_sum_of_rows(long keys, long count, long columns, const Row& v_row, Sum* p,
                                                    long cols, const Sum* factors, Sum* out, long length,
                                                    Begin begin) {
  constexpr int L = kLanesOf<Sum>, R = kRegisters == 32 ? 4 : 2;
  const bool pairs = takes_pairs<T>(columns);
  const long passes = (count / R + count % R / 2) * ((columns + 4 * L - 1) / (4 * L)) +
                      count % 2 * ((columns + 8 * L - 1) / (8 * L));
  const Pace pace = Pace::of((pairs ? 2 : 1) * columns, passes * (64 / long(sizeof(T))));
  const long fitting = std::max<long>(1, kBytesAhead / (columns * long(sizeof(T))));
  const long block = pairs ? fitting + fitting % 2 : fitting;
#if defined(REDBLUE_BF16_PAIRS)
  if constexpr (std::is_same_v<T, bfloat16>)
    if (pairs) round_weights(keys, count, p, cols);
#endif
  for (long first = 0; first < keys; first += block) {
    const long stop = std::min(keys, first + block);
    auto&& ahead = begin(first);
    using Fetched = std::decay_t<decltype(ahead)>;
    long r = 0;
    const auto add = [&](auto rows) {
      const Sum* const scaled = first ? nullptr : factors + r;
#if defined(REDBLUE_BF16_PAIRS)
      if constexpr (std::is_same_v<T, bfloat16>)
        if (pairs) {
          const auto* const weights = reinterpret_cast<const bfloat16*>(p + r * cols);
          WeightedPairs<rows(), Row, Fetched>{first, stop, columns, v_row, weights, 2 * cols, out + r * length, length,
                                              scaled, &ahead, pace}.add_all();
          r += rows();
          return;
        }
#endif
      WeightedRows<T, rows(), Sum, Row, Fetched>{first, stop, columns, v_row, p + r * cols, cols, out + r * length,
                                                 length, scaled, &ahead, pace}.add_all();
      r += rows();
    };
    while (r + R <= count) add(std::integral_constant<int, R>());
    if (R > 2 && r + 2 <= count) add(std::integral_constant<int, 2>());
    if (r < count) add(std::integral_constant<int, 1>());
  }
}
template <class T, class Sum, class Row>
inline void weighted_sum(long keys, long count, long columns, const Row& v_row, Sum* p, long cols, const Sum* factors,
                         Sum* out, long length) {
  if (count == 1 && !takes_pairs<T>(columns)) return weighted_sum_of_row<T>(keys, columns, v_row, p, factors, out);
  weighted_sum_of_rows<T>(keys, count, columns, v_row, p, cols, factors, out, length,
                          [&](long key) { return Trail<T, Row>(v_row, key, keys - 1, columns); });
}
