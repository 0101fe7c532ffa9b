// Scores and softmax of few queries (decoding). Reading K and V once bounds the time. weighted_sum.h has the second
// product, P V. Vectors lie along the features in the products, so that nothing is packed, and along the keys in the
// softmax. Included once inside each target region (vector/region.h).

// One step in summing the lanes of each of L vectors. a and b each hold partial sums of N vectors; the result holds
// partial sums of all 2 N. After the steps for N = 1, 2, .. L / 2, lane i is the sum of the i-th vector. Steps with
// small N shuffle lanes within blocks of 16 bytes, which is cheapest; later steps move whole blocks.
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
    if constexpr (kWithin) {  // the first and the second half of the groups; groups of a and b alternate
      first[lane] = group % 2 * L + base + group / 2 * kSize;
      second[lane] = first[lane] + kHalf * kSize;
    } else {  // the even and the odd groups; groups of a precede groups of b
      first[lane] = group / kHalf * L + base + group % kHalf * 2 * kSize;
      second[lane] = first[lane] + kSize;
    }
  }
  return shuffle(a, b, first) + shuffle(a, b, second);
}

// Dot products q . k[key] for N keys from `key` on; each result is L / N lanes of partial sums. Keys are read in memory
// order, which helps the hardware prefetcher.
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

// Sums the lanes of each of N vectors. The result has L / N partial sums of each; for N = L, lane i is the sum of
// vector i.
template <int N, class Sum>
inline V<Sum> sums_of_each(const V<Sum>* x) {
  if constexpr (N == 1) return *x;
  else return sums_of_groups<Sum, N / 2>(sums_of_each<N / 2, Sum>(x), sums_of_each<N / 2, Sum>(x + N / 2));
}

// Dot products with K widened to sums: L numbers per multiply-add.
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
// Dot products of pairs of bfloat16: L pairs per multiply-add.
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

// Adds the products of the last columns, from c on, to the dot products of keys and queries. Not inlined, so that the
// vectors of dots_of_block stay in registers.
template <class D, int K, int L, class T, class Sum>
__attribute__((noinline)) void add_last_columns(long c, long columns, const T* const* from,
                                                const typename D::Query* q, long length, Sum* results) {
  for (; c < columns; c++)
    for (int x = 0; x < L; x++) results[x] += Sum(widen(from[x % K][c])) * D::as_sum(q[x / K * length + c]);
}

// scores[r][key] = q[r] . k[key] for R rows and L / R keys from `key` on: a vector of K serves all rows.
// pace: how often to prefetch; a step is one vector of K's columns.
template <class T, int R, class D, class Sum, class Row, class Fetched>
inline void dots_of_block(long key, long last, long columns, const Row& k_row, const typename D::Query* q, long length,
                          Sum* scores, long cols, Fetched& ahead, Pace pace) {
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
      if (pace.fetches(c / D::kNumbers)) ahead.fetch(pace.lines);
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
  const Pace pace = Pace::of(L / R * D::kNumbers, Fetched::kLine * passes);
  for (long at = key; at < key + L; at += L / R)
    dots_of_block<T, R, D>(at, last, columns, k_row, q, length, scores, cols, ahead, pace);
}

// scores[r][key] = q[r] . k[key]; rows of `q` are `length` numbers apart; rows of `scores` are whole vectors, `cols`
// apart. The order of summation depends only on the number of rows, so that both passes round alike.
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
// At most kMost packed queries, for dot products with keys.
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
    dots(keys, k_row, scores, cols, [&](long key) { return Trail<T, Row>(k_row, key, keys - 1, columns_); });
  }
  // As above; begin(key) returns the object that prefetches.
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
  Sum* wide_ = nullptr;  // the packed queries: widened numbers, or pairs of bfloat16
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
  // 0 for a row without attended keys so far: exp(-inf - 0) = 0.
  const V<Sum> base = splat(row_max == kLowest ? Sum(0) : row_max);
  for (long key = 0; key < keys; key += L) {
    const V<Sum> weight = exp2<Sum>((load(scores + key) - base) * scale);
    sums += weight;
    store(scores + key, weight);
  }
  shrink = exp2<Sum>((splat(old) - base) * scale)[0];
  row_sum = row_sum * shrink + sum_of_lanes<Sum>(sums);
}
