// The operations on a tile of scores between the two products: scale, softcap, ALiBi, bias, mask, dropout. Included
// once inside each target region (vector/region.h).
//
// A tile holds keys in rows and queries in lanes, so that maximum, sum and log-sum-exp of L rows are one vector:
// nothing is summed across lanes. (For few rows it is the other way round: decode.h.)

// The format of scores, and of the bias when it is added to them.
template <class Sum>
using Plain = std::conditional_t<sizeof(Sum) == 8, Float64, Float32>;

// Rows r0 .. r0 + count - 1 of one stream (stacked: row r is query r / group of head r % group) against keys.
struct Rows {
  long start, count, lanes;  // lanes: count, rounded up to whole vectors
};

template <class T>
inline T* at(const Array& array, std::int64_t offset) {
  return reinterpret_cast<T*>(array.data) + offset;
}

// The address of each row of one stream of an array. Rows of query heads are stacked: row r is query r / group of head
// r % group. One type for all arrays of a number type, so that packing is compiled once for each number type.
template <class T>
struct ArrayRows {
  T* base;
  std::int64_t step, group, head;  // group 1: the array has key heads, or one query head per key head
  long first = 0;

  T* operator()(long r) const {
    r += first;
    return group == 1 ? base + r * step : base + r / group * step + r % group * head;
  }
  // The same rows from `row` on, and `numbers` further on in each of them.
  ArrayRows from(long row, std::int64_t numbers = 0) const { return {base + numbers, step, group, head, first + row}; }
};

// The listed rows of an array.
template <class T>
struct ListedRows {
  ArrayRows<T> rows;
  const long* list;
  T* operator()(long r) const { return rows(list[r]); }
};

// One stream of a call: finds its part of each array.
struct Stream {
  const Call& call;
  std::int64_t index, lead[kMaxLead], kv_head;

  Stream(const Call& c, std::int64_t i) : call(c), index(i) {
    kv_head = i % c.kv_heads;
    i /= c.kv_heads;
    for (int l = c.leads - 1; l >= 0; l--) {
      lead[l] = i % c.lead_sizes[l];
      i /= c.lead_sizes[l];
    }
  }
  std::int64_t offset(const Array& array) const {
    std::int64_t sum = 0;
    for (int l = 0; l < call.leads; l++) sum += lead[l] * array.lead[l];
    return sum;
  }
  // Row r of an array with query heads: q, out, dout, dq, bias.
  template <class T>
  ArrayRows<T> row(const Array& array) const {
    return {at<T>(array, offset(array) + kv_head * call.group * array.head), array.row, call.group, array.head};
  }
  // Row r of an array with key/value heads: k, v, dk, dv.
  template <class T>
  ArrayRows<T> key(const Array& array) const {
    return {at<T>(array, offset(array) + kv_head * array.head), array.row, 1, 0};
  }
  // ALiBi: the slope of row r's head, and the key that lies at the position of row r's query (both ends aligned).
  template <class Sum>
  Sum slope(long r) const {
    return *at<const Sum>(call.alibi, offset(call.alibi) + (kv_head * call.group + r % call.group) * call.alibi.head);
  }
  std::int64_t own_key(long r) const { return r / call.group + call.n_k - call.n_q; }
  // The index of row r in arrays with one sum per row (lse, delta).
  std::int64_t number(long r) const {
    return offset(call.lse) + (kv_head * call.group + r % call.group) * call.lse.head + r / call.group * call.lse.row;
  }
  // The plane of the pattern that this stream uses.
  std::int64_t plane() const {
    const Array& planes = call.pattern.planes;
    return planes.data ? *at<const std::int64_t>(planes, offset(planes) + kv_head * planes.head) : 0;
  }
  // The keys that rows r .. r + count - 1 attend by the band alone, as a range that may be empty.
  std::pair<long, long> keys_of(long r, long count) const {
    const std::int64_t low = r / call.group + call.first, high = (r + count - 1) / call.group + call.end;
    const std::int64_t start = std::max<std::int64_t>(0, low), stop = std::min(call.n_k, high);
    return {start, std::max(start, stop)};
  }
  // Whether all of these rows attend all of the keys j .. j + keys - 1 by the band.
  bool holds(long r, long rows, long j, long keys) const {
    return (r + rows - 1) / call.group + call.first <= j && j + keys <= r / call.group + call.end;
  }
};

// For each lane, the range of keys that its row attends, relative to key j: masks partial tiles.
template <class Sum>
struct Band {
  Sum low[kNR * kLanesOf<Sum>], high[kNR * kLanesOf<Sum>];
  Band(const Stream& s, const Rows& rows, long j, long keys) {
    for (long lane = 0; lane < rows.lanes; lane++) {
      const std::int64_t query = (rows.start + std::min(lane, rows.count - 1)) / s.call.group;
      low[lane] = Sum(std::clamp<std::int64_t>(query + s.call.first - j, 0, keys));
      high[lane] = Sum(std::clamp<std::int64_t>(query + s.call.end - j, 0, keys));
    }
  }
};

// Whether scores need only a positive factor, which the softmax applies.
inline bool plain_scores(const Call& call) {
  return !call.softcap && !call.bias.data && !call.alibi.data && !call.sinks.data && call.scale > 0;
}
// The factor that the softmax applies to finished scores.
inline double factor_left(const Call& call) { return plain_scores(call) ? call.scale : 1; }

template <class Sum>
void load_bias(const Stream& s, const Rows& rows, long j, long keys, Sum* to, Sum* scratch) {
  const Call& call = s.call;
  const auto pack = [&](auto number) {
    using T = decltype(number);
    const auto row = s.row<const T>(call.bias);
    const std::int64_t from = j * call.bias.column;
    if constexpr (sizeof(Sum) == 8 || sizeof(T) != 8)
      pack_panel<Plain<Sum>, T>(row.from(rows.start, from), call.bias.column, rows.count,
                                rows.lanes, keys, to, scratch);
  };
  switch (call.bias_number) {
    case Number::kFloat32: return pack(float{});
    case Number::kFloat64: return pack(double{});
    case Number::kBfloat16: return pack(bfloat16{});
    case Number::kFloat16: return pack(float16{});
    case Number::kBool: return pack(Boolean{});
  }
}

// ALiBi: scores (keys x lanes) <- scores - slope |position of the query - position of the key|. The product is rounded
// before it is subtracted, so that no compiler's choice of fused operations can make the two passes differ.
template <class Sum>
void add_alibi(const Stream& s, const Rows& rows, long j, long keys, Sum* scores) {
  constexpr int L = kLanesOf<Sum>;
  for (long v = 0; v < rows.lanes; v += L) {
    V<Sum> slope, own;
    for (long lane = 0; lane < L; lane++) {
      const long r = rows.start + std::min(v + lane, rows.count - 1);
      slope[lane] = s.slope<Sum>(r);
      own[lane] = Sum(s.own_key(r) - j);
    }
    for (long key = 0; key < keys; key++) {
      Sum* const p = scores + key * rows.lanes + v;
      store(p, load(p) - rounded<Sum>(slope * magnitude<Sum>(own - splat(Sum(key)))));
    }
  }
}

// scores (keys x lanes) <- cap tanh(scale scores / cap) - alibi + bias; slopes, if not null, <- the derivative of cap
// tanh(x / cap).
template <class Sum>
void finish_scores(const Stream& s, const Rows& rows, long j, long keys, Sum* scores, Sum* slopes, Sum* bias, Sum* scratch) {
  constexpr int L = kLanesOf<Sum>;
  const Call& call = s.call;
  const V<Sum> scale = splat(Sum(call.scale)), one = splat(Sum(1));
  const long size = keys * rows.lanes;
  if (call.softcap) {
    const V<Sum> cap = splat(Sum(call.softcap)), part = splat(Sum(call.scale / call.softcap));
    for (long x = 0; x < size; x += L) {
      const V<Sum> bent = tanh<Sum>(load(scores + x) * part);
      store(scores + x, bent * cap);
      if (slopes) store(slopes + x, one - bent * bent);
    }
  } else {
    for (long x = 0; x < size; x += L) store(scores + x, load(scores + x) * scale);
  }
  if (call.alibi.data) add_alibi(s, rows, j, keys, scores);
  if (call.bias.data) {
    load_bias(s, rows, j, keys, bias, scratch);
    for (long x = 0; x < size; x += L) store(scores + x, load(scores + x) + load(bias + x));
  }
}

// Pairs of one query with listed keys or, if by_key, of one key with listed queries.
struct Pairs {
  const Stream& s;
  long own;
  bool by_key;
  const std::int32_t* list;  // keys, or queries
  long count, head;          // head: of the rows, among the query heads that share a key head

  long row(long x) const { return (by_key ? list[x] : own) * s.call.group + head; }
  long key(long x) const { return by_key ? own : list[x]; }
};

template <class Sum>
Sum bias_at(const Stream& s, long row, long key) {
  const std::int64_t at_key = key * s.call.bias.column;
  switch (s.call.bias_number) {
    case Number::kFloat32: return widen(s.row<const float>(s.call.bias)(row)[at_key]);
    case Number::kFloat64: return Sum(widen(s.row<const double>(s.call.bias)(row)[at_key]));
    case Number::kBfloat16: return widen(s.row<const bfloat16>(s.call.bias)(row)[at_key]);
    case Number::kFloat16: return widen(s.row<const float16>(s.call.bias)(row)[at_key]);
    case Number::kBool: return widen(s.row<const Boolean>(s.call.bias)(row)[at_key]);
  }
  return 0;
}

// As add_alibi of a tile; by queries and by keys, scores are rounded alike.
template <class Sum>
__attribute__((noinline)) void add_alibi(const Pairs& pairs, Sum* scores) {
  constexpr int L = kLanesOf<Sum>;
  const V<Sum> slope = splat(pairs.s.template slope<Sum>(pairs.head));
  for (long x = 0; x < pairs.count; x += L) {
    V<Sum> distance = V<Sum>{};
    for (long lane = 0; lane < std::min<long>(L, pairs.count - x); lane++)
      distance[lane] = Sum(std::abs(pairs.s.own_key(pairs.row(x + lane)) - pairs.key(x + lane)));
    store(scores + x, load(scores + x) - rounded<Sum>(slope * distance));
  }
}

// Turns the products of pairs into scores: scale, softcap, ALiBi and bias. slopes <- the derivative of the softcap, if
// there is one.
template <class Sum>
__attribute__((noinline)) void finish_scores(const Pairs& pairs, Sum* scores, Sum* slopes) {
  constexpr int L = kLanesOf<Sum>;
  const Call& call = pairs.s.call;
  if (plain_scores(call)) return;
  const V<Sum> scale = splat(Sum(call.scale)), one = splat(Sum(1));
  const V<Sum> cap = splat(Sum(call.softcap)), part = splat(Sum(call.scale / call.softcap));
  for (long x = 0; x < pairs.count; x += L) {
    if (call.softcap) {
      const V<Sum> bent = tanh<Sum>(load(scores + x) * part);
      store(scores + x, bent * cap);
      store(slopes + x, one - bent * bent);
    } else {
      store(scores + x, load(scores + x) * scale);
    }
  }
  if (call.alibi.data) add_alibi(pairs, scores);
  if (call.bias.data)
    for (long x = 0; x < pairs.count; x++) scores[x] += bias_at<Sum>(pairs.s, pairs.row(x), pairs.key(x));
}

// tile (keys x lanes) <- `nothing` where the row does not attend the key.
template <class Sum>
void mask_tile(const Stream& s, const Rows& rows, long j, long keys, Sum* tile, Sum nothing) {
  constexpr int L = kLanesOf<Sum>;
  const Band<Sum> band(s, rows, j, keys);
  for (long v = 0; v < rows.lanes; v += L) {
    const V<Sum> low = load(band.low + v), high = load(band.high + v);
    for (long key = 0; key < keys; key++) {
      const V<Sum> x = splat(Sum(key));
      Sum* const p = tile + key * rows.lanes + v;
      store(p, (x >= low) & (x < high) ? load(p) : splat(nothing));
    }
  }
}

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
// row, key / 4), so the result depends on neither tiles nor threads.
template <class Sum>
void dropout_tile(const Stream& s, const Rows& rows, long j, long keys, Sum* tile) {
  constexpr int U = kLanesOf<unsigned>;
  const Call& call = s.call;
  const Sum kept = Sum(1 / (1 - call.dropout));
  const auto least = static_cast<std::uint64_t>(call.dropout * 4294967296.0);  // the least word whose probability is kept
  for (long v = 0; v < rows.lanes; v += U)
    for (long quarter = j / 4; quarter * 4 < j + keys; quarter++) {
      V<unsigned> words[4] = {};
      for (int lane = 0; lane < U; lane++) {
        const std::uint64_t row = s.number(rows.start + std::min(v + lane, rows.count - 1));
        words[0][lane] = unsigned(row);
        words[1][lane] = unsigned(row >> 32);
      }
      words[2] = splat(unsigned(quarter));
      philox(words, call.seed);
      for (long x = 0; x < 4; x++) {
        const long key = quarter * 4 + x - j;
        if (key < 0 || key >= keys) continue;
        for (int lane = 0; lane < U && v + lane < rows.lanes; lane++)
          tile[key * rows.lanes + v + lane] = words[x][lane] >= least ? kept : 0;
      }
    }
}
