// The two products and the softmax for few queries (decoding), whose time is that of reading K and V once. Vectors lie
// along the features in the products, so that nothing is packed, and along the keys in the softmax. Included once
// inside each target region (vector/region.h).

// One step of summing the lanes of L vectors. a and b are the results of the step before, each for N vectors. After the
// steps for N = 1, 2, .. L / 2, lane i is the sum of the i-th vector. At first, lanes stay within their 16 bytes, which
// is the cheapest shuffle; then whole 16 bytes move.
template <class T, int N>
inline V<T> sums_of_groups(V<T> a, V<T> b) {
  constexpr int L = kLanesOf<T>, kBlock = 16 / sizeof(T);
  constexpr bool kWithin = N < kBlock;
  constexpr int kSize = kWithin ? N : kBlock, kReach = kWithin ? kBlock : L;  // lanes that move together, and how far
  constexpr int kHalf = kReach / kSize / 2;
  V<std::conditional_t<sizeof(T) == 8, long long, int>> first, second;
#pragma GCC unroll 16
  for (int lane = 0; lane < L; lane++) {
    const int group = lane % kReach / kSize, base = lane - lane % kReach + lane % kSize;
    if constexpr (kWithin) {  // the first and the second half of the groups, those of a and b in turns
      first[lane] = group % 2 * L + base + group / 2 * kSize;
      second[lane] = first[lane] + kHalf * kSize;
    } else {  // the even and the odd groups, those of a before those of b
      first[lane] = group / kHalf * L + base + group % kHalf * 2 * kSize;
      second[lane] = first[lane] + kSize;
    }
  }
  return shuffle(a, b, first) + shuffle(a, b, second);
}

// q . k[key] for N keys from `key` on; each dot product is spread over L / N lanes of partial sums. Keys are read in
// memory order, so that the hardware prefetcher follows.
template <class T, int N, class Sum, class Row, class Fetched>
inline V<Sum> dots_of(long key, long last, long columns, const Row& k_row, const Sum* q, Fetched& ahead) {
  if constexpr (N > 1) {
    const V<Sum> first = dots_of<T, N / 2>(key, last, columns, k_row, q, ahead);
    return sums_of_groups<Sum, N / 2>(first, dots_of<T, N / 2>(key + N / 2, last, columns, k_row, q, ahead));
  } else {
    constexpr int L = kLanesOf<Sum>;
    const T *const from = k_row(std::min(key, last)), *const later = k_row.later(std::min(key, last));
    V<Sum> sums[4] = {};
    long c = 0;
    if constexpr (Wide<T>::kWhole) {
      for (; c + 4 * L <= columns; c += 4 * L)
#pragma GCC unroll 4
        for (int y = 0; y < 4; y++) {
          if (y % Fetched::template kVectors<L> == 0) ahead.fetch_beside(later + c + y * L);
          sums[y] = multiply_add<Sum>(Wide<T>::load_wide(from + c + y * L), load(q + c + y * L), sums[y]);
        }
      for (; c + L <= columns; c += L) sums[0] = multiply_add<Sum>(Wide<T>::load_wide(from + c), load(q + c), sums[0]);
    }
    V<Sum> sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    Sum tail = 0;
    for (; c < columns; c++) tail += Sum(widen(from[c])) * q[c];
    sum[0] += tail;
    return sum;
  }
}

// The sums of the lanes of N vectors, in order.
template <int N, class Sum>
inline V<Sum> sums_of_each(const V<Sum>* x) {
  if constexpr (N == 1) return *x;
  else return sums_of_groups<Sum, N / 2>(sums_of_each<N / 2, Sum>(x), sums_of_each<N / 2, Sum>(x + N / 2));
}

// The vectors of one multiply-add: L numbers of K, widened, and of a query as sums;
template <class T, class Sum>
struct WideDots {
  using Query = Sum;
  static constexpr int kNumbers = kLanesOf<Sum>;
  static constexpr bool kWhole = Wide<T>::kWhole;
  static V<Sum> load_key(const T* from) { return Wide<T>::load_wide(from); }
  static V<Sum> add(V<Sum> key, const Query* q, V<Sum> sum) { return multiply_add<Sum>(key, load(q), sum); }
  static Sum as_sum(Query number) { return number; }
};
#if defined(REDBLUE_BF16_PAIRS)
// or L pairs of bfloat16 of both.
struct PairDots {
  using Query = bfloat16;
  static constexpr int kNumbers = 2 * kLanesOf<float>;
  static constexpr bool kWhole = true;
  static V<unsigned> load_key(const bfloat16* from) { return load_pairs(from); }
  static V<float> add(V<unsigned> key, const Query* q, V<float> sum) {
    return multiply_add_pairs(load_pairs(q), key, sum);
  }
  static float as_sum(Query number) { return widen(number); }
};
#endif

// Adds the products of the last columns, from c on, to the dot products of keys and queries. A function of its own, so
// that the vectors of dots_of_block stay in registers.
template <class D, int K, int L, class T, class Sum>
__attribute__((noinline)) void add_last_columns(long c, long columns, const T* const* from,
                                                const typename D::Query* q, long length, Sum* results) {
  for (; c < columns; c++)
    for (int x = 0; x < L; x++) results[x] += Sum(widen(from[x % K][c])) * D::as_sum(q[x / K * length + c]);
}

// scores[r][key] = q[r] . k[key] for R rows and L / R keys from `key` on: a vector of K serves all rows.
// lines: fetched for every vector of K's columns.
template <class T, int R, class D, class Sum, class Row, class Fetched>
inline void dots_of_block(long key, long last, long columns, const Row& k_row, const typename D::Query* q, long length,
                          Sum* scores, long cols, Fetched& ahead, long lines) {
  constexpr int L = kLanesOf<Sum>, K = L / R;
  const T* from[K];
  V<Sum> sums[L];
#pragma GCC unroll 16
  for (int k = 0; k < K; k++) from[k] = k_row(std::min(key + k, last));
#pragma GCC unroll 16
  for (int x = 0; x < L; x++) sums[x] = V<Sum>{};
  long c = 0;
  if constexpr (D::kWhole)
    for (; c + D::kNumbers <= columns; c += D::kNumbers) {
      decltype(D::load_key(from[0])) numbers[K];
#pragma GCC unroll 16
      for (int k = 0; k < K; k++) numbers[k] = D::load_key(from[k] + c);
      ahead.fetch(lines);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int k = 0; k < K; k++) sums[r * K + k] = D::add(numbers[k], q + r * length + c, sums[r * K + k]);
    }
  Sum results[L];
  store(results, sums_of_each<L, Sum>(sums));
  if (c < columns) add_last_columns<D, K, L>(c, columns, from, q, length, results);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) std::memcpy(scores + r * cols + key, results + r * K, K * sizeof(Sum));
}
template <class T, int R, class D, class Sum, class Row, class Fetched>
inline void dots_of_vector(long key, long last, long columns, const Row& k_row, const typename D::Query* q, long length,
                           Sum* scores, long cols, Fetched& ahead, long passes) {
  constexpr int L = kLanesOf<Sum>;
  constexpr long kLines = L / R * D::kNumbers / Fetched::kLine;
  const long lines = passes == 1 ? kLines : (kLines + passes - 1) / passes;
  for (long at = key; at < key + L; at += L / R)
    dots_of_block<T, R, D>(at, last, columns, k_row, q, length, scores, cols, ahead, lines);
}

// scores[r][key] = q[r] . k[key]; rows of `q` are `length` numbers apart; rows of `scores` are whole vectors, `cols`
// apart. The order of a row's sums depends on the number of rows alone, so that both passes round alike.
template <class T, class Sum, class Row, class Begin>
__attribute__((noinline)) void dots_of_row(long keys, long columns, const Row& k_row, const Sum* q, Sum* scores,
                                           Begin begin) {
  constexpr int L = kLanesOf<Sum>;
  for (long key = 0; key < keys; key += L) {
    auto&& ahead = begin(key);
    store(scores + key, dots_of<T, L>(key, keys - 1, columns, k_row, q, ahead));
  }
}
// begin(key): returns the object that prefetches while the L keys from `key` on are computed.
template <class T, class D, class Sum, class Row, class Begin>
__attribute__((noinline)) void dots_of_rows(long keys, long count, long columns, const Row& k_row,
                                            const typename D::Query* q, long length, Sum* scores, long cols,
                                            Begin begin) {
  constexpr int L = kLanesOf<Sum>, R = L < 8 ? 2 : 4;
  const long last = keys - 1, passes = count / R + count % R / 2 + count % 2;
  for (long key = 0; key < keys; key += L) {
    auto&& ahead = begin(key);
    long r = 0;
    const auto add = [&](auto rows) {
      dots_of_vector<T, rows(), D>(key, last, columns, k_row, q + r * length, length, scores + r * cols, cols, ahead,
                                passes);
      r += rows();
    };
    while (r + R <= count) add(std::integral_constant<int, R>());
    if (R > 2 && r + 2 <= count) add(std::integral_constant<int, 2>());
    if (r < count) add(std::integral_constant<int, 1>());
  }
}
// The queries of `dots`, at most kMost.
template <class T, class F>
class FewQueries {
  using Sum = typename F::Sum;
  static constexpr int L = kLanesOf<Sum>;

 public:
  static constexpr long kMost = L < 8 ? L : 8;
  FewQueries() = default;
  FewQueries(Arena& arena, long columns)
      : columns_(columns), length_((columns + L - 1) / L * L), wide_(arena.take<Sum>(kMost * length_)) {}
  // Packs `count` queries. row(r): the address of the r-th.
  template <class Row>
  void pack(Row row, long stride, long count) {
    count_ = count;
    pairs_ = F::kStep == 2 && count > 1 && columns_ % (2 * L) == 0;
    if (pairs_)
      pack_rows<T>(row, stride, count, columns_, reinterpret_cast<typename F::Number*>(wide_), length_);
    else
      pack_rows<T>(row, stride, count, columns_, wide_, length_);
  }
  // scores[r][key] = q[r] . k[key]; rows of `scores` are whole vectors, `cols` apart.
  template <class Row>
  void dots(long keys, const Row& k_row, Sum* scores, long cols) const {
    if (count_ == 1) return dots_of_row<T>(keys, columns_, k_row, wide_, scores, [](long) { return EachVector<T>(); });
    dots(keys, k_row, scores, cols, [&](long key) { return Trail<T, Row>(k_row, key, columns_); });
  }
  // The same beside prefetches of one's own.
  template <class Row, class Begin>
  void dots(long keys, const Row& k_row, Sum* scores, long cols, Begin begin) const {
    if (count_ == 1) return dots_of_row<T>(keys, columns_, k_row, wide_, scores, begin);
#if defined(REDBLUE_BF16_PAIRS)
    if constexpr (F::kStep == 2)
      if (pairs_) {
        const auto* const q = reinterpret_cast<const bfloat16*>(wide_);
        return dots_of_rows<T, PairDots>(keys, count_, columns_, k_row, q, length_, scores, cols, begin);
      }
#endif
    dots_of_rows<T, WideDots<T, Sum>>(keys, count_, columns_, k_row, wide_, length_, scores, cols, begin);
  }

 private:
  long columns_ = 0, length_ = 0, count_ = 0;
  bool pairs_ = false;
  Sum* wide_ = nullptr;  // or pairs
};

// One step of the online softmax for one row, as Formats::softmax, but with keys in the lanes. The caller pads the
// scores with -inf to whole vectors.
template <class Sum>
inline void softmax_of_row(long keys, Sum factor, Sum* scores, Sum& row_max, Sum& row_sum, Sum& shrink) {
  constexpr int L = kLanesOf<Sum>;
  constexpr Sum kLowest = -std::numeric_limits<Sum>::infinity();
  const V<Sum> scale = splat(factor * Sum(1.4426950408889634));
  V<Sum> tops = splat(row_max), sums = {};
  for (long key = 0; key < keys; key += L) tops = larger<Sum>(load(scores + key), tops);
  const Sum old = row_max;
  row_max = folded(tops, [&](V<Sum> a, V<Sum> b) { return larger<Sum>(a, b); });
  // 0 for a row that has attended nothing so far: exp(-inf - 0) = 0.
  const V<Sum> base = splat(row_max == kLowest ? Sum(0) : row_max);
  for (long key = 0; key < keys; key += L) {
    const V<Sum> weight = exp2<Sum>((load(scores + key) - base) * scale);
    sums += weight;
    store(scores + key, weight);
  }
  shrink = exp2<Sum>((splat(old) - base) * scale)[0];
  row_sum = row_sum * shrink + sum_of_lanes<Sum>(sums);
}

// The share of R rows in weighted_sum: a block of keys, first .. stop - 1, times their weights.
// lines: fetched for each key and pass over columns; 0: each vector fetches a later one, as dots_of does.
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
  long lines;

  Sum factor(int r) const { return factors ? factors[r] : Sum(1); }
  // Adds kAtOnce vectors of columns at a time while that many remain. Returns the first column not yet added.
  template <int kAtOnce>
  long add(long c) const {
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
          if (R == 1 && !ahead) __builtin_prefetch(later + x * L, 0, 0);
          numbers[x] = Wide<T>::load_wide(from + x * L);
        }
        if (ahead) ahead->fetch(lines);
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
// The same with products of pairs: of two keys at a time, and of weights as bfloat16.
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
  long lines;

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
        ahead->fetch(lines);
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
// Rounds weights to bfloat16, each row in the first half of its memory. Rows are `cols` apart, of whole vectors.
inline void round_weights(long keys, long count, float* p, long cols) {
  for (long r = 0; r < count; r++)
    for (long key = 0; key < keys; key += kLanesOf<float>)
      Wide<bfloat16>::store_narrow(reinterpret_cast<bfloat16*>(p + r * cols) + key, load(p + r * cols + key));
}
#endif
// Whether weighted sums of these columns are products of pairs.
template <class T>
constexpr bool takes_pairs([[maybe_unused]] long columns) {
#if defined(REDBLUE_BF16_PAIRS)
  return std::is_same_v<T, bfloat16> && columns % (2 * kLanesOf<float>) == 0;
#else
  return false;
#endif
}

// out[r] = out[r] factors[r] + sum over keys of p[r][key] v[key]. Keys are taken in blocks whose rows of V fit the L1
// cache; a block serves all rows and columns before the next one is read.
template <class T, class Sum, class Row>
__attribute__((noinline)) void weighted_sum_of_row(long keys, long columns, const Row& v_row, const Sum* p,
                                                   const Sum* factors, Sum* out) {
  constexpr int L = kLanesOf<Sum>;
  // One query that takes all columns at once needs no blocks. Otherwise it is fastest with larger blocks, and several
  // queries with smaller ones (by 5 and 10 %; measured, Zen 5).
  const bool one_pass = columns == 8 * L || columns == 4 * L || columns == L;
  const long block = one_pass ? keys : std::max<long>(1, 2 * kBytesAhead / (columns * long(sizeof(T))));
  for (long first = 0; first < keys; first += block) {
    const long stop = std::min(keys, first + block);
    using Share = WeightedRows<T, 1, Sum, Row, Trail<T, Row>>;
    Share{first, stop, columns, v_row, p, 0, out, 0, first ? nullptr : factors, nullptr, 0}.add_all();
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
  const long lines = ((pairs ? 2 : 1) * columns / (64 / long(sizeof(T))) + passes - 1) / passes;
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
                                              scaled, &ahead, lines}.add_all();
          r += rows();
          return;
        }
#endif
      WeightedRows<T, rows(), Sum, Row, Fetched>{first, stop, columns, v_row, p + r * cols, cols, out + r * length,
                                                 length, scaled, &ahead, lines}.add_all();
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
                          [&](long key) { return Trail<T, Row>(v_row, key, columns); });
}
