// One stream of a call: the addresses of its rows, and the keys that each row attends. Included once inside each target
// region (vector/region.h).
//
// A tile of scores holds keys in rows and queries in lanes, so that the maxima, sums and log-sum-exps of L queries are
// vectors, and nothing is summed across lanes. (decode.h holds few queries in rows and keys in lanes.)

// Rows start .. start + count - 1 of one stream. Rows are stacked: row r is query r / group of head r % group.
struct Rows {
  long start, count, lanes;  // lanes: count, rounded up to whole vectors
};

template <class T>
inline T* at(const Array& array, std::int64_t offset) {
  return reinterpret_cast<T*>(array.data) + offset;
}

// The address of each row of one stream of an array. Rows of query heads are stacked. All arrays of a number type share
// this type, so that packing is compiled once for each number type.
template <class T>
struct ArrayRows {
  T* base;
  std::int64_t step, group, head;  // group 1: the array has key heads, or one query head per key head
  long first = 0;

  T* operator()(long r) const {
    r += first;
    return group == 1 ? base + r * step : base + r / group * step + r % group * head;
  }
  // The same rows from `row` on, each from its number `numbers` on.
  ArrayRows from(long row, std::int64_t numbers = 0) const { return {base + numbers, step, group, head, first + row}; }
};

// The rows at listed addresses.
template <class T>
struct AddressedRows {
  T* const* addresses;
  T* operator()(long r) const { return addresses[r]; }
};

// The listed rows of an array.
template <class T>
struct ListedRows {
  ArrayRows<T> rows;
  const long* list;
  T* operator()(long r) const { return rows(list[r]); }
};

// One stream of a call. Locates its part of each array.
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
  // The rows of an array with query heads: q, out, dout, dq, bias.
  template <class T>
  ArrayRows<T> row(const Array& array) const {
    return {at<T>(array, offset(array) + kv_head * call.group * array.head), array.row, call.group, array.head};
  }
  // The rows of an array with key/value heads: k, v, dk, dv.
  template <class T>
  ArrayRows<T> key(const Array& array) const {
    return {at<T>(array, offset(array) + kv_head * array.head), array.row, 1, 0};
  }
  // The index of row r in arrays with one sum per row (lse, delta).
  std::int64_t number(long r) const {
    return offset(call.lse) + (kv_head * call.group + r % call.group) * call.lse.head + r / call.group * call.lse.row;
  }
  // The plane of the pattern that this stream uses.
  std::int64_t plane() const {
    const Array& planes = call.pattern.planes;
    return planes.data ? *at<const std::int64_t>(planes, offset(planes) + kv_head * planes.head) : 0;
  }
  // The keys that the band allows for any of the rows r .. r + count - 1, as a range that may be empty.
  std::pair<long, long> keys_of(long r, long count) const {
    const std::int64_t low = r / call.group + call.first, high = (r + count - 1) / call.group + call.end;
    const std::int64_t start = std::max<std::int64_t>(0, low), stop = std::min(call.n_k, high);
    return {start, std::max(start, stop)};
  }
  // Whether the band allows all keys j .. j + keys - 1 for all of these rows.
  bool holds(long r, long rows, long j, long keys) const {
    return (r + rows - 1) / call.group + call.first <= j && j + keys <= r / call.group + call.end;
  }
};

// Maps the rows and keys of a stream to their positions in the whole problem, of which the call may be a part.
// kHasPositions: whether the call has positions; a call without positions is the whole problem. Positions are int64:
// n_q, n_k and heads of the whole problem, the index of the call's first head, then the position of each query, then
// the position of each key.
template <bool kHasPositions>
struct Places {
  const Stream& s;

  const std::int64_t* numbers() const { return reinterpret_cast<const std::int64_t*>(s.call.positions.data); }
  std::int64_t query(long i) const {
    if constexpr (kHasPositions) return numbers()[4 + i];
    return i;
  }
  std::int64_t key(long j) const {
    if constexpr (kHasPositions) return numbers()[4 + s.call.n_q + j];
    return j;
  }
  // The key at the position of row r's query. The last query and the last key of the whole problem are aligned.
  std::int64_t own_key(long r) const {
    const std::int64_t n_q = kHasPositions ? numbers()[0] : s.call.n_q, n_k = kHasPositions ? numbers()[1] : s.call.n_k;
    return query(r / s.call.group) + n_k - n_q;
  }
  // The index of row r among the rows of all heads of all batch entries.
  std::uint64_t number(long r) const {
    const std::int64_t index = s.number(r);
    if constexpr (!kHasPositions) return index;
    const std::int64_t head = index / s.call.n_q, entry = head / s.call.heads;
    return (entry * numbers()[2] + numbers()[3] + head % s.call.heads) * numbers()[0] + query(index % s.call.n_q);
  }
};

// Calls use(places), so that loops in `use` need not check for positions.
template <class Use>
void with_places(const Stream& s, Use&& use) {
  s.call.positions.data ? use(Places<true>{s}) : use(Places<false>{s});
}

// Lists the addresses of `count` consecutive paged rows of K or V, from key `first` on.
template <class T>
void list_paged_rows(const Pages& pages, const ArrayRows<T>& rows, std::int64_t page_step, long first, long count,
                     T** to) {
  while (count > 0) {
    const long within = first % pages.size, run = std::min<long>(count, pages.size - within);
    T* const start = rows.base + pages.table[first / pages.size] * page_step + within * rows.step;
    for (long x = 0; x < run; x++) to[x] = start + x * rows.step;
    first += run, count -= run, to += run;
  }
}

// Pairs of one query with listed keys, or, if by_key, of one key with listed queries.
struct Pairs {
  const Stream& s;
  long own;
  bool by_key;
  const std::int32_t* list;  // of keys or queries
  long count, head;          // head: the rows' head among the query heads that share a key head

  long row(long x) const { return (by_key ? list[x] : own) * s.call.group + head; }
  long key(long x) const { return by_key ? own : list[x]; }
};

// The range of keys that each lane's row attends, counted from key j. The ranges mask partial tiles.
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
