// The two products for few queries, where reading K and V once is all the work: vectors lie along the features, as the
// arrays do, and nothing is packed. What lies `ahead` numbers further on is fetched in advance. Included once inside each target region of isa.cpp.

// scores[key][lane] = q[lane] . k[key] for the `count` rows of `q`, each `length` sums wide. L keys at a time: their L
// vectors of partial sums are transposed, so that adding vectors adds the lanes.
template <class T, class Sum, class Row>
inline void dots(long keys, long count, long columns, Row k_row, const Sum* q, long length, Sum* scores, long lanes,
                 long ahead) {
  constexpr int L = kLanesOf<Sum>;
  alignas(kVectorBytes) Sum partial[L * L], turned[L * L];
  for (long key = 0; key < keys; key += L) {
    const long here = keys - key < L ? keys - key : L;
    for (long r = 0; r < count; r++) {
      const Sum* const row = q + r * length;
      for (long x = here; x < L; x++) store(partial + x * L, V<Sum>{});
      for (long x = 0; x < here; x++) {
        // Key after key, as they lie in memory, so that the machine's own prefetcher keeps up.
        const T* const from = k_row(key + x);
        V<Sum> sums[4] = {};
        long c = 0;
        if constexpr (Wide<T>::kWhole) {
          for (; c + 4 * L <= columns; c += 4 * L)
#pragma GCC unroll 4
            for (int y = 0; y < 4; y++) {
              if (r == 0) __builtin_prefetch(from + c + y * L + ahead, 0, 2);
              sums[y] = multiply_add<Sum>(Wide<T>::load_wide(from + c + y * L), load(row + c + y * L), sums[y]);
            }
          for (; c + L <= columns; c += L) sums[0] = multiply_add<Sum>(Wide<T>::load_wide(from + c), load(row + c), sums[0]);
        }
        V<Sum> sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        Sum tail = 0;
        for (; c < columns; c++) tail += Sum(widen(from[c])) * row[c];
        sum[0] += tail;
        store(partial + x * L, sum);
      }
      transpose(partial, L, turned, L);
      V<Sum> total = load(turned);
      for (long i = 1; i < L; i++) total += load(turned + i * L);
      for (long i = 0; i < here; i++) scores[(key + i) * lanes + r] = total[i];
    }
  }
}

// out[lane] = out[lane] factors[lane] + sum over keys of p[key][lane] v[key].
template <class T, class Sum, class Row>
inline void weighted_sum(long keys, long count, long columns, Row v_row, const Sum* p, long lanes, const Sum* factors,
                         Sum* out, long length, long ahead) {
  constexpr int L = kLanesOf<Sum>;
  for (long r = 0; r < count; r++) {
    Sum* const row = out + r * length;
    long c = 0;
    if constexpr (Wide<T>::kWhole) {
      const auto columns_at_once = [&](auto width) {
        constexpr int kAtOnce = decltype(width)::value;
        for (; c + kAtOnce * L <= columns; c += kAtOnce * L) {
          V<Sum> sums[kAtOnce];
#pragma GCC unroll 8
          for (int x = 0; x < kAtOnce; x++) sums[x] = V<Sum>{};
          for (long key = 0; key < keys; key++) {
            const T* const from = v_row(key) + c;
            const V<Sum> weight = splat(p[key * lanes + r]);
#pragma GCC unroll 8
            for (int x = 0; x < kAtOnce; x++) {
              if (r == 0) __builtin_prefetch(from + x * L + ahead, 0, 2);
              sums[x] = multiply_add<Sum>(Wide<T>::load_wide(from + x * L), weight, sums[x]);
            }
          }
#pragma GCC unroll 8
          for (int x = 0; x < kAtOnce; x++)
            store(row + c + x * L, multiply_add<Sum>(load(row + c + x * L), splat(factors[r]), sums[x]));
        }
      };
      columns_at_once(std::integral_constant<int, 8>{});
      columns_at_once(std::integral_constant<int, 4>{});
      columns_at_once(std::integral_constant<int, 1>{});
    }
    for (; c < columns; c++) {
      Sum sum = 0;
      for (long key = 0; key < keys; key++) sum += p[key * lanes + r] * Sum(widen(v_row(key)[c]));
      row[c] = row[c] * factors[r] + sum;
    }
  }
}
