// Dropout: the random factors of a tile of probabilities. Included once inside each target region (vector/region.h).

// Returns the low halves of the products a * b; sets `high` to the high halves.
inline V<unsigned> multiply_words(V<unsigned> a, unsigned b, V<unsigned>& high) {
  V<unsigned> low;
  for (int lane = 0; lane < kLanesOf<unsigned>; lane++) {
    const std::uint64_t both = std::uint64_t(a[lane]) * b;
    low[lane] = unsigned(both);
    high[lane] = unsigned(both >> 32);
  }
  return low;
}

// Philox 4x32-10 (Salmon et al., SC 2011): four random words per counter, for one counter per lane.
inline void philox(V<unsigned> (&counter)[4], std::uint64_t seed) {
  unsigned key[2] = {unsigned(seed), unsigned(seed >> 32)};
  for (int round = 0; round < 10; round++) {
    V<unsigned> high0, high1;
    const V<unsigned> low0 = multiply_words(counter[0], 0xD2511F53u, high0);
    const V<unsigned> low1 = multiply_words(counter[2], 0xCD9E8D57u, high1);
    counter[0] = high1 ^ counter[1] ^ splat(key[0]);
    counter[1] = low1;
    counter[2] = high0 ^ counter[3] ^ splat(key[1]);
    counter[3] = low0;
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
}

// tile (keys x lanes) <- 0 where the probability is dropped, otherwise 1 / (1 - dropout). The counter is (number of the
// row, key / 4) in the whole problem, so the result depends on neither tiles nor threads.
template <class Sum, bool kHasPositions>
void dropout_tile(const Stream& s, const Places<kHasPositions>& places, const Rows& rows, long j, long keys,
                  Sum* tile) {
  constexpr int U = kLanesOf<unsigned>;
  const Call& call = s.call;
  const Sum kept = Sum(1 / (1 - call.dropout));
  // Probabilities with a smaller random word are dropped.
  const auto least = static_cast<std::uint64_t>(call.dropout * 4294967296.0);
  for (long v = 0; v < rows.lanes; v += U) {
    V<unsigned> low, high, words[4];
    for (int lane = 0; lane < U; lane++) {
      const std::uint64_t row = places.number(rows.start + std::min(v + lane, rows.count - 1));
      low[lane] = unsigned(row);
      high[lane] = unsigned(row >> 32);
    }
    for (long key = 0; key < keys; key++) {
      const std::int64_t place = places.key(j + key), quarter = place >> 2;
      if (!key || quarter != places.key(j + key - 1) >> 2) {
        words[0] = low, words[1] = high, words[2] = splat(unsigned(quarter)), words[3] = splat(0u);
        philox(words, call.seed);
      }
      for (int lane = 0; lane < U && v + lane < rows.lanes; lane++)
        tile[key * rows.lanes + v + lane] = words[place & 3][lane] >= least ? kept : 0;
    }
  }
}
template <class Sum>
void dropout_tile(const Stream& s, const Rows& rows, long j, long keys, Sum* tile) {
  with_places(s, [&](const auto& places) { dropout_tile<Sum>(s, places, rows, j, keys, tile); });
}
