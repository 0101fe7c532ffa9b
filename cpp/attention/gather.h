// The schedule `gather`: attention over single pairs of rows and keys, for masks so sparse that tiles would be mostly
// empty. Included once inside each target region (vector/region.h).
//
// Forward and dQ process one row at a time against the list of its keys, dK and dV one key at a time against the list
// of its rows, so that no sum has two writers. Vectors lie along the features in the products and along the list
// otherwise.
template <class T, class F>
struct Gather : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Sum;
  using Base::kLog2E, Base::kLowest, Base::L, Base::up;
  static constexpr long kAhead = 8;  // prefetch distance, in rows

  // Buffers for the pairs of one row with its keys, or of one key with its rows. own_*: the row or key itself; sum_*:
  // its results; the others have one number per partner.
  struct Lists {
    Sum *scores, *other, *slopes, *extra, *own_a, *own_b, *sum_a, *sum_b;
    Lists(const Call& call, long longest, Arena& arena) {
      const long size = up(longest, L) + L, width = up(std::max(call.d, call.d_v), L);
      for (Sum** list : {&scores, &other, &slopes, &extra}) *list = arena.take<Sum>(size);
      for (Sum** list : {&own_a, &own_b, &sum_a, &sum_b}) *list = arena.take<Sum>(width);
    }
  };

  // Rows of K or V, or the queries of one head, `step` numbers apart.
  struct Side {
    const T* base;
    std::int64_t step;
  };
  static Side keys_of(const Stream& s, const Array& array) { return {s.key<const T>(array).base, array.row}; }
  static Side queries_of(const ArrayRows<const T>& rows, long head) {
    return {rows.base + head * rows.head, rows.step};
  }

  // The listed rows. Reading a row prefetches a later row.
  struct Partners {
    Side side;
    const std::int32_t* list;
    long count, bytes;
    const T* operator()(long x) const {
      const char* const coming =
          reinterpret_cast<const char*>(side.base + list[std::min(x + kAhead, count - 1)] * side.step);
      for (long byte = 0; byte < bytes; byte += 64) __builtin_prefetch(coming + byte, 0, 3);
      return side.base + list[x] * side.step;
    }
    const T* later(long x) const { return side.base + list[x] * side.step; }  // operator() has prefetched already
  };
  // to[x] <- own . the x-th listed row. stride: of the listed rows' features in their array. other: the same for `own`
  // if the results are scores; otherwise 1. The order of summation depends on both strides, because the passes by query
  // and by key exchange the two arrays and must round scores alike.
  __attribute__((noinline)) static void dot(const Pairs& pairs, Side side, long stride, long other, long columns,
                                            const Sum* own, Sum* to) {
    if (stride == 1 && other == 1) {
      const Partners partners{side, pairs.list, pairs.count, columns * long(sizeof(T))};
      return dots_of_row<T>(pairs.count, columns, partners, own, to, [](long) { return EachVector<T>(); });
    }
    for (long x = 0; x < pairs.count; x++) {
      const T* const from = side.base + pairs.list[x] * side.step;
      Sum sum = 0;
      for (long c = 0; c < columns; c++) sum = in_order(sum + Sum(widen(from[c * stride])) * own[c]);
      to[x] = sum;
    }
  }
  // to <- to + sum over x of weights[x] times the x-th listed row.
  __attribute__((noinline)) static void add(const Pairs& pairs, Side side, long stride, long columns,
                                            const Sum* weights, Sum* to) {
    static constexpr Sum one[1] = {1};
    if (stride == 1) {
      for (long first = 0; first < pairs.count; first += kLongest) {
        const Partners partners{side, pairs.list + first, pairs.count - first, columns * long(sizeof(T))};
        weighted_sum_of_row<T>(std::min(kLongest, pairs.count - first), columns, partners, weights + first, one, to);
      }
      return;
    }
    for (long x = 0; x < pairs.count; x++) {
      const T* const from = side.base + pairs.list[x] * side.step;
      for (long c = 0; c < columns; c++) to[c] += weights[x] * Sum(widen(from[c * stride]));
    }
  }

  // to[x] <- 0 if the pair is dropped, otherwise 1 / (1 - dropout); draws the same random words as dropout_tile.
  template <bool kHasPositions>
  __attribute__((noinline)) static void draw(const Pairs& pairs, const Places<kHasPositions>& places, Sum* to) {
    constexpr int U = kLanesOf<unsigned>;
    const Call& call = pairs.s.call;
    const Sum kept = Sum(1 / (1 - call.dropout));
    const auto least = static_cast<std::uint64_t>(call.dropout * 4294967296.0);
    for (long x = 0; x < pairs.count; x += U) {
      const long here = std::min<long>(U, pairs.count - x);
      V<unsigned> words[4] = {};
      for (long lane = 0; lane < here; lane++) {
        const std::uint64_t row = places.number(pairs.row(x + lane));
        words[0][lane] = unsigned(row);
        words[1][lane] = unsigned(row >> 32);
        words[2][lane] = unsigned(places.key(pairs.key(x + lane)) >> 2);
      }
      philox(words, call.seed);
      for (long lane = 0; lane < here; lane++)
        to[x + lane] = words[places.key(pairs.key(x + lane)) & 3][lane] >= least ? kept : 0;
    }
  }
  static void draw(const Pairs& pairs, Sum* to) {
    with_places(pairs.s, [&](const auto& places) { draw(pairs, places, to); });
  }

  // The forward pass of queries first .. stop - 1 of one stream.
  static Moved forward(const Call& call, std::int64_t stream, std::int64_t first, std::int64_t stop, Arena& arena) {
    const Stream s(call, stream);
    const Edges::Lists edges = call.edges.of_queries(s.plane());
    Lists lists(call, edges.longest(first, stop), arena);
    const auto q_row = s.row<const T>(call.q);
    const Side k_side = keys_of(s, call.k), v_side = keys_of(s, call.v);
    const auto out_row = s.row<T>(call.out);
    const Sum factor = Sum(factor_left(call));
    Moved moved;
    for (std::int64_t i = first; i < stop; i++)
      for (long head = 0; head < call.group; head++) {
        const Pairs pairs{s, long(i), false, edges.list(i), edges.count(i), head};
        const long r = pairs.row(0);
        pack_row<T>(q_row(r), call.q.column, call.d, lists.own_a, up(call.d, L));
        dot(pairs, k_side, call.k.column, call.q.column, call.d, lists.own_a, lists.scores);
        finish_scores(pairs, lists.scores, lists.slopes);
        const Sum sink = call.sinks.data ? at<const Sum>(call.sinks, 0)[s.kv_head * call.group + head] : kLowest;
        Sum top = sink;
        for (long x = 0; x < pairs.count; x++) top = larger_of(lists.scores[x], top);
        const Sum base = top == kLowest ? 0 : top;
        for (long x = pairs.count; x % L; x++) lists.scores[x] = kLowest;
        V<Sum> sums = V<Sum>{};
        for (long x = 0; x < pairs.count; x += L) {
          const V<Sum> weight = exp2<Sum>((load(lists.scores + x) - splat(base)) * splat(factor * kLog2E));
          sums += weight;
          store(lists.scores + x, weight);
        }
        const Sum sum = sum_of_lanes<Sum>(sums) + (sink == kLowest ? 0 : std::exp((sink - base) * factor));
        if (call.dropout > 0) {
          draw(pairs, lists.extra);
          for (long x = 0; x < pairs.count; x++) lists.scores[x] *= lists.extra[x];
        }
        std::fill_n(lists.sum_a, up(call.d_v, L), Sum(0));
        add(pairs, v_side, call.v.column, call.d_v, lists.scores, lists.sum_a);
        Results<T, F>::finish_row(s, r, top, sum, lists.sum_a, out_row(r));
        moved.reads += call.d + pairs.count * (call.d + call.d_v);
        moved.writes += call.d_v + 1;
      }
    return moved;
  }
  // The larger of both; a if a is NaN.
  static Sum larger_of(Sum a, Sum b) { return b >= a ? b : a; }

  // scores <- P after dropout, other <- dS. On entry scores holds q . k and other holds dO . v.
  __attribute__((noinline)) static void differentiate(const Pairs& pairs, const Lists& lists) {
    const Call& call = pairs.s.call;
    finish_scores(pairs, lists.scores, lists.slopes);
    if (call.dropout > 0) draw(pairs, lists.extra);
    const Sum *all_lse = at<const Sum>(call.lse, 0), *all_delta = at<const Sum>(call.delta, 0);
    const V<Sum> factor = splat(Sum(factor_left(call)));
    for (long x = 0; x < pairs.count; x += L) {
      const long here = std::min<long>(L, pairs.count - x);
      V<Sum> lse = splat(-kLowest), delta = V<Sum>{};
      for (long lane = 0; lane < here; lane++) {
        const auto number = pairs.s.number(pairs.row(x + lane));
        lse[lane] = all_lse[number] == kLowest ? -kLowest : all_lse[number];
        delta[lane] = all_delta[number];
      }
      const V<Sum> weight = exp<Sum>(rounded<Sum>(load(lists.scores + x) * factor) - lse);
      V<Sum> dp = load(lists.other + x), used = weight;
      if (call.dropout > 0) {
        used *= load(lists.extra + x);
        dp *= load(lists.extra + x);
      }
      V<Sum> gradient = weight * (dp - delta);
      if (call.softcap) gradient *= load(lists.slopes + x);
      store(lists.scores + x, used);
      store(lists.other + x, gradient);
    }
  }

  // Deltas and dQ of queries first .. stop - 1.
  static Moved query_gradients(const Call& call, std::int64_t stream, std::int64_t first, std::int64_t stop,
                               Arena& arena) {
    const Stream s(call, stream);
    const Edges::Lists edges = call.edges.of_queries(s.plane());
    Lists lists(call, edges.longest(first, stop), arena);
    const auto q_row = s.row<const T>(call.q), dout_row = s.row<const T>(call.dout);
    const Side k_side = keys_of(s, call.k), v_side = keys_of(s, call.v);
    const auto dq_row = s.row<T>(call.dq);
    Moved moved;
    for (std::int64_t i = first; i < stop; i++)
      for (long head = 0; head < call.group; head++) {
        const Pairs pairs{s, long(i), false, edges.list(i), edges.count(i), head};
        const long r = pairs.row(0);
        pack_row<T>(q_row(r), call.q.column, call.d, lists.own_a, up(call.d, L));
        pack_row<T>(dout_row(r), call.dout.column, call.d_v, lists.own_b, up(call.d_v, L));
        dot(pairs, k_side, call.k.column, call.q.column, call.d, lists.own_a, lists.scores);
        dot(pairs, v_side, call.v.column, 1, call.d_v, lists.own_b, lists.other);
        GradientTile<T, F>::store_delta(s, r);
        differentiate(pairs, lists);
        std::fill_n(lists.sum_a, up(call.d, L), Sum(0));
        add(pairs, k_side, call.k.column, call.d, lists.other, lists.sum_a);
        unpack_row(lists.sum_a, call.d, Sum(call.scale), dq_row(r), call.dq.column);
        moved.reads += call.d + 2 * call.d_v + 1 + pairs.count * (call.d + call.d_v);
        moved.writes += call.d + 1;
      }
    return moved;
  }

  // dK and dV of keys first .. stop - 1. All deltas must have been computed.
  static Moved key_gradients(const Call& call, std::int64_t stream, std::int64_t first, std::int64_t stop,
                             Arena& arena) {
    const Stream s(call, stream);
    const Edges::Lists edges = call.edges.of_keys(s.plane());
    Lists lists(call, edges.longest(first, stop), arena);
    const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
    const auto dk_row = s.key<T>(call.dk), dv_row = s.key<T>(call.dv);
    const auto q_rows = s.row<const T>(call.q), dout_rows = s.row<const T>(call.dout);
    Moved moved;
    for (std::int64_t j = first; j < stop; j++) {
      pack_row<T>(k_row(j), call.k.column, call.d, lists.own_a, up(call.d, L));
      pack_row<T>(v_row(j), call.v.column, call.d_v, lists.own_b, up(call.d_v, L));
      std::fill_n(lists.sum_a, up(call.d, L), Sum(0));
      std::fill_n(lists.sum_b, up(call.d_v, L), Sum(0));
      for (long head = 0; head < call.group; head++) {
        const Pairs pairs{s, long(j), true, edges.list(j), edges.count(j), head};
        const Side q_side = queries_of(q_rows, head), dout_side = queries_of(dout_rows, head);
        dot(pairs, q_side, call.q.column, call.k.column, call.d, lists.own_a, lists.scores);
        dot(pairs, dout_side, call.dout.column, 1, call.d_v, lists.own_b, lists.other);
        differentiate(pairs, lists);
        add(pairs, q_side, call.q.column, call.d, lists.other, lists.sum_a);
        add(pairs, dout_side, call.dout.column, call.d_v, lists.scores, lists.sum_b);
        moved.reads += pairs.count * (call.d + call.d_v + 2);
      }
      unpack_row(lists.sum_a, call.d, Sum(call.scale), dk_row(j), call.dk.column);
      unpack_row(lists.sum_b, call.d_v, Sum(1), dv_row(j), call.dv.column);
      moved.reads += call.d + call.d_v;
      moved.writes += call.d + call.d_v;
    }
    return moved;
  }
};
