// The two products for few queries, where reading K and V once is all the work: vectors lie along the features, as the
// arrays do, and nothing is packed. What lies `ahead` numbers further on is fetched in advance. Included once inside each target region of isa.cpp.

// The sums of neighbours: the first half of the lanes from a, the second from b. L vectors combined so, two by two, are one
// whose lanes are the vectors' own sums, in order.
template <class T>
inline V<T> sums_of_pairs(V<T> a, V<T> b) {
  constexpr int L = kLanesOf<T>;
  V<std::conditional_t<sizeof(T) == 8, long long, int>> even, odd;
#pragma GCC unroll 16
  for (int lane = 0; lane < L; lane++) even[lane] = 2 * lane, odd[lane] = 2 * lane + 1;
  return shuffle(a, b, even) + shuffle(a, b, odd);
}

// q . k[key] for N keys from `key` on, each in N lanes' worth of partial sums. Key after key, as they lie in memory, so
// that the machine's own prefetcher keeps up.
template <class T, class Sum, int N, bool kFetch, class Row>
inline V<Sum> dots_of(long key, long last, long columns, const Row& k_row, const Sum* q, long ahead) {
  if constexpr (N > 1) {
    const V<Sum> first = dots_of<T, Sum, N / 2, kFetch>(key, last, columns, k_row, q, ahead);
    return sums_of_pairs<Sum>(first, dots_of<T, Sum, N / 2, kFetch>(key + N / 2, last, columns, k_row, q, ahead));
  } else {
    constexpr int L = kLanesOf<Sum>;
    const T *const from = k_row(std::min(key, last)), *const next = from + ahead;
    V<Sum> sums[4] = {};
    long c = 0;
    if constexpr (Wide<T>::kWhole) {
      for (; c + 4 * L <= columns; c += 4 * L)
#pragma GCC unroll 4
        for (int y = 0; y < 4; y++) {
          if (kFetch) __builtin_prefetch(next + c + y * L, 0, 2);
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

// scores[key][lane] = q[lane] . k[key] for the `count` rows of `q`, each `length` sums wide.
template <class T, class Sum, class Row>
inline void dots(long keys, long count, long columns, const Row& k_row, const Sum* q, long length, Sum* scores, long lanes,
                 long ahead) {
  constexpr int L = kLanesOf<Sum>;
  for (long key = 0; key < keys; key += L)
    for (long r = 0; r < count; r++) {
      const V<Sum> total = r == 0 ? dots_of<T, Sum, L, true>(key, keys - 1, columns, k_row, q, ahead)
                                  : dots_of<T, Sum, L, false>(key, keys - 1, columns, k_row, q + r * length, 0);
      for (long i = 0; i < std::min<long>(L, keys - key); i++) scores[(key + i) * lanes + r] = total[i];
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
      const auto columns_at_once = [&](auto width, auto fetch) {
        constexpr int kAtOnce = decltype(width)::value;
        for (; c + kAtOnce * L <= columns; c += kAtOnce * L) {
          V<Sum> sums[kAtOnce];
#pragma GCC unroll 8
          for (int x = 0; x < kAtOnce; x++) sums[x] = V<Sum>{};
          for (long key = 0; key < keys; key++) {
            const T *const from = v_row(key) + c, *const next = from + ahead;
            const V<Sum> weight = splat(p[key * lanes + r]);
#pragma GCC unroll 8
            for (int x = 0; x < kAtOnce; x++) {
              if (fetch) __builtin_prefetch(next + x * L, 0, 2);
              sums[x] = multiply_add<Sum>(Wide<T>::load_wide(from + x * L), weight, sums[x]);
            }
          }
#pragma GCC unroll 8
          for (int x = 0; x < kAtOnce; x++)
            store(row + c + x * L, multiply_add<Sum>(load(row + c + x * L), splat(factors[r]), sums[x]));
        }
      };
      const auto all = [&](auto fetch) {
        columns_at_once(std::integral_constant<int, 8>{}, fetch);
        columns_at_once(std::integral_constant<int, 4>{}, fetch);
        columns_at_once(std::integral_constant<int, 1>{}, fetch);
      };
      r == 0 ? all(std::true_type{}) : all(std::false_type{});
    }
    for (; c < columns; c++) {
      Sum sum = 0;
      for (long key = 0; key < keys; key++) sum += p[key * lanes + r] * Sum(widen(v_row(key)[c]));
      row[c] = row[c] * factors[r] + sum;
    }
  }
}
