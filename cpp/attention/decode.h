// The two products and the softmax for few queries (decoding), whose time is that of reading K and V once. Vectors lie
// along the features in the products, so that nothing is packed, and along the keys in the softmax. Included once
// inside each target region (vector/region.h).

// The prefetch distance: a sixth of the L1 cache (4 and 16 KB are as fast or slower; measured, Zen 5).
constexpr long kBytesAhead = 8192;

// The sums of neighbouring lanes: those of a in the first half, those of b in the second. Combining L vectors pairwise
// in this way gives one vector whose lanes are the sums of the L vectors, in order.
template <class T>
inline V<T> sums_of_pairs(V<T> a, V<T> b) {
  constexpr int L = kLanesOf<T>;
  V<std::conditional_t<sizeof(T) == 8, long long, int>> even, odd;
#pragma GCC unroll 16
  for (int lane = 0; lane < L; lane++) even[lane] = 2 * lane, odd[lane] = 2 * lane + 1;
  return shuffle(a, b, even) + shuffle(a, b, odd);
}

// Prefetches a row that comes later. A single query prefetches beside every vector, without
// keeping the line (5 % faster than prefetching into the L2 cache; measured, Zen 5). Several queries read the same rows
// in turn, and each prefetches a share of the coming rows: if the first query prefetched all of them, it would wait for
// memory, and memory would be idle during the other queries.
struct Share {
  long pass, passes;
  template <class T>
  void fetch(const T* later, long columns) const {
    constexpr long kLine = 64 / sizeof(T);
    for (long c = pass * kLine; c < columns; c += passes * kLine) __builtin_prefetch(later + c, 0, 3);
  }
};

// Rows of K or V for dots and weighted_sum: consecutive rows from `first` on or, if there is a list, the listed rows.
// later(x): the row to prefetch while row x is read, `ahead` numbers further on.
template <class T>
struct KeyRows {
  const T* base;
  std::int64_t step;
  long first;
  const long* list;
  std::int64_t ahead = 0;
  const T* operator()(long x) const { return base + (list ? list[x] : first + x) * step; }
  const T* later(long x) const { return (*this)(x) + ahead; }
};

// The same for rows that lie in pages, by their addresses; `ahead` rows more are listed than there are.
template <class T>
struct PagedRows {
  const T* const* rows;
  long ahead;
  const T* operator()(long x) const { return rows[x]; }
  const T* later(long x) const { return rows[x + ahead]; }
};

// q . k[key] for N keys from `key` on; each dot product is spread over L / N lanes of partial sums. Keys are read in
// memory order, so that the hardware prefetcher follows.
template <class T, int N, bool kAlone, class Sum, class Row>
inline V<Sum> dots_of(long key, long last, long columns, const Row& k_row, const Sum* q, const Share& share) {
  if constexpr (N > 1) {
    const V<Sum> first = dots_of<T, N / 2, kAlone>(key, last, columns, k_row, q, share);
    return sums_of_pairs<Sum>(first, dots_of<T, N / 2, kAlone>(key + N / 2, last, columns, k_row, q, share));
  } else {
    constexpr int L = kLanesOf<Sum>;
    const T *const from = k_row(std::min(key, last)), *const later = k_row.later(std::min(key, last));
    if (!kAlone) share.fetch(later, columns);
    V<Sum> sums[4] = {};
    long c = 0;
    if constexpr (Wide<T>::kWhole) {
      for (; c + 4 * L <= columns; c += 4 * L)
#pragma GCC unroll 4
        for (int y = 0; y < 4; y++) {
          if (kAlone) __builtin_prefetch(later + c + y * L, 0, 0);
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

// scores[r][key] = q[r] . k[key]; rows of `q` are `length` numbers apart; rows of `scores` are whole vectors, `cols`
// apart.
template <class T, bool kAlone, class Sum, class Row>
__attribute__((noinline)) void dots_of_rows(long keys, long count, long columns, const Row& k_row, const Sum* q,
                                            long length, Sum* scores, long cols) {
  constexpr int L = kLanesOf<Sum>;
  for (long key = 0; key < keys; key += L)
    for (long r = 0; r < (kAlone ? 1 : count); r++) {
      const Share share{r, kAlone ? 1 : count};
      store(scores + r * cols + key, dots_of<T, L, kAlone>(key, keys - 1, columns, k_row, q + r * length, share));
    }
}
template <class T, class Sum, class Row>
inline void dots(long keys, long count, long columns, const Row& k_row, const Sum* q, long length, Sum* scores,
                 long cols) {
  if (count == 1) return dots_of_rows<T, true>(keys, 1, columns, k_row, q, length, scores, cols);
  dots_of_rows<T, false>(keys, count, columns, k_row, q, length, scores, cols);
}

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
  for (int lane = 0; lane < L; lane++) row_max = std::max(row_max, tops[lane]);
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

// One row's share of weighted_sum: a block of keys, first .. stop - 1, times their weights.
template <class T, class Sum, class Row>
struct WeightedRow {
  static constexpr int L = kLanesOf<Sum>;
  long first, stop, columns;
  Row v_row;
  const Sum* weights;
  Sum* out;
  Sum factor;  // scales the previous contents of `out`
  Share share;

  // Adds kAtOnce vectors of columns at a time while that many remain. Returns the first column not yet added.
  template <int kAtOnce, bool kAlone>
  long add(long c) const {
    for (; c + kAtOnce * L <= columns; c += kAtOnce * L) {
      V<Sum> sums[kAtOnce];
#pragma GCC unroll 8
      for (int x = 0; x < kAtOnce; x++) sums[x] = V<Sum>{};
      for (long key = first; key < stop; key++) {
        const T *const from = v_row(key) + c, *const later = v_row.later(key) + c;
        if (!kAlone) share.fetch(later, kAtOnce * L);
        const V<Sum> weight = splat(weights[key]);
#pragma GCC unroll 8
        for (int x = 0; x < kAtOnce; x++) {
          if (kAlone) __builtin_prefetch(later + x * L, 0, 0);
          sums[x] = multiply_add<Sum>(Wide<T>::load_wide(from + x * L), weight, sums[x]);
        }
      }
#pragma GCC unroll 8
      for (int x = 0; x < kAtOnce; x++)
        store(out + c + x * L, multiply_add<Sum>(load(out + c + x * L), splat(factor), sums[x]));
    }
    return c;
  }
  void add_rest(long c) const {
    for (; c < columns; c++) {
      Sum sum = 0;
      for (long key = first; key < stop; key++) sum += weights[key] * Sum(widen(v_row(key)[c]));
      out[c] = out[c] * factor + sum;
    }
  }
};

// out[r] = out[r] factors[r] + sum over keys of p[r][key] v[key]. Keys are taken in blocks whose rows of V fit the L1
// cache; a block serves all rows and columns before the next one is read.
template <class T, bool kAlone, class Sum, class Row>
__attribute__((noinline)) void weighted_sum_of_rows(long keys, long count, long columns, const Row& v_row, const Sum* p,
                                                    long cols, const Sum* factors, Sum* out, long length) {
  constexpr int L = kLanesOf<Sum>, kMaxAtOnce = 8;
  // A single query that takes all columns at once needs no blocks. Otherwise a single query is fastest with larger
  // blocks and several queries with smaller ones (by 5 and 10 %; measured, Zen 5).
  const bool one_pass = kAlone && (columns == kMaxAtOnce * L || columns == 4 * L || columns == L);
  const long bytes = kAlone ? 2 * kBytesAhead : kBytesAhead;
  const long block = one_pass ? keys : std::max<long>(1, bytes / (columns * long(sizeof(T))));
  for (long first = 0; first < keys; first += block)
    for (long r = 0; r < (kAlone ? 1 : count); r++) {
      const Sum factor = first == 0 ? factors[r] : 1;
      const Share share{r, kAlone ? 1 : count};
      const long stop = std::min(keys, first + block);
      const WeightedRow<T, Sum, Row> row{first, stop, columns, v_row, p + r * cols, out + r * length, factor, share};
      long c = 0;
      if constexpr (Wide<T>::kWhole) {
        c = row.template add<kMaxAtOnce, kAlone>(c);
        c = row.template add<4, kAlone>(c);
        c = row.template add<1, kAlone>(c);
      }
      row.add_rest(c);
    }
}
template <class T, class Sum, class Row>
inline void weighted_sum(long keys, long count, long columns, const Row& v_row, const Sum* p, long cols,
                         const Sum* factors, Sum* out, long length) {
  if (count == 1) return weighted_sum_of_rows<T, true>(keys, 1, columns, v_row, p, cols, factors, out, length);
  weighted_sum_of_rows<T, false>(keys, count, columns, v_row, p, cols, factors, out, length);
}
