// The backward pass: the schedule `flash_onepass`, the dK and dV of `flash`, and the bias's gradient. Included once
// inside each target region (vector/region.h).
template <class T, class F>
struct Backward : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Packed, typename Base::Side, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::kLanesAtOnce, Base::kLowest, Base::L, Base::padded, Base::rows_of, Base::S, Base::units, Base::up;
  static constexpr long kKeysAtOnce = 96;  // rows of a tile of scores; 24 to 144 are equally fast (measured, Zen 5)

  // P and dS of the keys of a chunk and at most kLanesAtOnce rows, in the formats of the next products.
  struct Tile {
    Sum *p, *ds, *slopes, *extra, *bias_scratch;
    Unit *p_rows, *ds_rows, *ds_panel;  // p_rows, ds_rows: units along the rows; ds_panel: along the keys
    Sum *few_q = nullptr, *few_scores = nullptr;

    Tile(const Call& call, long keys, Arena& arena) {
      const long size = up(keys, S) * kLanesAtOnce;
      p = arena.take<Sum>(size);
      ds = arena.take<Sum>(size);
      slopes = call.softcap ? arena.take<Sum>(size) : nullptr;
      extra = call.bias.data || call.dropout > 0 ? arena.take<Sum>(size) : nullptr;
      bias_scratch = call.bias.data ? arena.take<Sum>(L * up(keys, L)) : nullptr;
      if (call.few) {
        few_q = arena.take<Sum>(Base::kFew * up(call.d, L));
        few_scores = arena.take<Sum>(Base::kFew * up(keys, L));
      }
      if constexpr (S == 1) {
        p_rows = p;
        ds_rows = ds_panel = ds;
      } else {
        p_rows = arena.take<Unit>(size / S);
        ds_rows = arena.take<Unit>(size / S);
        ds_panel = arena.take<Unit>(size / S);
      }
    }

    // p <- P after dropout, ds <- dS. lse: +inf for rows that attend nothing.
    void compute(const Stream& s, const Rows& rows, const Chunk& chunk, const Side& k, const Side& v, const Unit* q_panel,
                 const Unit* dout_panel, const Sum* lse, const Sum* delta, Ahead& ahead) {
      const Call& call = s.call;
      const long lanes = rows.lanes;
      if (call.few)
        scores_of_few(s, rows, chunk);
      else
        Base::each_stretch(chunk, k.by_place, [&](const Stretch& x) {
          product<F>(x.keys, lanes, units(call.d), as_units(k.of(x)), k.length / S, 1, q_panel, lanes, p + x.at * lanes,
                     lanes, Start::kZero, nullptr, ahead);
        });
      Base::each_stretch(chunk, v.by_place, [&](const Stretch& x) {
        product<F>(x.keys, lanes, units(call.d_v), as_units(v.of(x)), v.length / S, 1, dout_panel, lanes, ds + x.at * lanes,
                   lanes, Start::kZero, nullptr, ahead);
      });
      Base::finish_chunk(s, rows, chunk, p, slopes, extra, bias_scratch);
      for (long i = 0; i < chunk.parts_count; i++) differentiate(s, rows, chunk.parts[i], lse, delta);
      Base::fill_gaps(chunk, lanes, p, 0);
      Base::fill_gaps(chunk, lanes, ds, 0);
    }

    // p <- scores, rounded as in forward: exp(score - lse) would magnify a different rounding of large scores.
    void scores_of_few(const Stream& s, const Rows& rows, const Chunk& chunk) {
      const long d = s.call.d, q_length = up(d, L);
      const auto q_row = s.row<const T>(s.call.q);
      const auto k_row = s.key<const T>(s.call.k);
      pack_rows<T>(q_row.from(rows.start), s.call.q.column, rows.count, d, few_q, q_length);
      std::fill_n(p, chunk.rows * rows.lanes, Sum(0));
      for (long i = 0; i < chunk.parts_count; i++) {
        const Part& part = chunk.parts[i];
        const long length = up(part.keys, L);
        const KeyRows<T> keys{k_row.base, k_row.step, part.j, nullptr};
        dots<T>(part.keys, rows.count, d, keys, few_q, q_length, few_scores, length, 0);
        for (long key = 0; key < part.keys; key++)
          for (long r = 0; r < rows.count; r++) p[(part.at + key) * rows.lanes + r] = few_scores[r * length + key];
      }
    }

    void differentiate(const Stream& s, const Rows& rows, const Part& part, const Sum* lse, const Sum* delta) {
      const Call& call = s.call;
      const long lanes = rows.lanes, from = part.at * lanes;
      const bool drops = call.dropout > 0;
      if (drops) dropout_tile<Sum>(s, rows, part.j, part.keys, extra);
      const V<Sum> factor = splat(Sum(factor_left(call)));
      for (long lane = 0; lane < lanes; lane += L) {
        const V<Sum> base = load(lse + lane), row_delta = load(delta + lane);
        for (long x = lane; x < part.keys * lanes; x += lanes) {
          // Rounded as for lse, so that a score that outweighs all others has weight 1.
          const V<Sum> weight = exp<Sum>(rounded<Sum>(load(p + from + x) * factor) - base);
          V<Sum> dp = load(ds + from + x), used = weight;
          if (drops) {  // rounded: whether a compiler fuses the product with the difference depends on how it splits the loop
            const V<Sum> kept = load(extra + x);
            used *= kept;
            dp = rounded<Sum>(dp * kept);
          }
          store(p + from + x, used);
          V<Sum> gradient = weight * (dp - row_delta);
          if (slopes) gradient *= load(slopes + from + x);
          store(ds + from + x, gradient);
        }
      }
      // Keys that a row does not attend have no gradient, even if dP is infinite or NaN.
      mask_part<Sum>(s, rows, part, ds + from, 0);
    }

    void pack(long keys, long lanes) {
      if constexpr (S == 2) {
        Base::to_panels(p, keys, lanes, nullptr, reinterpret_cast<Packed*>(p_rows));
        Base::to_panels(ds, keys, lanes, ds_panel, reinterpret_cast<Packed*>(ds_rows));
      }
    }
  };

  static void row_sums(const Stream& s, const Rows& rows, Sum* lse, Sum* delta) {
    const Sum *all_lse = at<const Sum>(s.call.lse, 0), *all_delta = at<const Sum>(s.call.delta, 0);
    for (long lane = 0; lane < rows.lanes; lane++) {
      const auto number = s.number(rows.start + std::min(lane, rows.count - 1));
      lse[lane] = all_lse[number] == kLowest || lane >= rows.count ? -kLowest : all_lse[number];
      delta[lane] = all_delta[number];
    }
  }

  // Stores the delta of row r: the sum of dout * out, less the gradient of lse.
  static void store_delta(const Stream& s, long r) {
    const Call& call = s.call;
    const T *const a = s.row<const T>(call.out)(r), *const b = s.row<const T>(call.dout)(r);
    V<Sum> sums = V<Sum>{};
    Sum sum = 0;
    long c = 0;
    if constexpr (Wide<T>::kWhole)
      if (call.out.column == 1 && call.dout.column == 1)
        for (; c + L <= call.d_v; c += L) sums = multiply_add<Sum>(Wide<T>::load_wide(a + c), Wide<T>::load_wide(b + c), sums);
    for (; c < call.d_v; c++) sum += Sum(widen(a[c * call.out.column])) * widen(b[c * call.dout.column]);
    const auto number = s.number(r);
    at<Sum>(call.delta, 0)[number] =
        sum + sum_of_lanes<Sum>(sums) - (call.dlse.data ? at<const Sum>(call.dlse, 0)[number] : 0);
  }

  // The deltas of a panel; sets dQ to 0 if the panel attends nothing.
  static Moved deltas(const Call& call, std::int64_t stream, long r0, long count, Arena&) {
    const Stream s(call, stream);
    for (long r = r0; r < r0 + count; r++) store_delta(s, r);
    Moved moved{2 * count * call.d_v, count};
    if (Walk(s, rows_of(r0, count), 0, call.n_k).next(0) != Walk::kNone) return moved;
    const auto dq = s.row<T>(call.dq);
    for (long r = r0; r < r0 + count; r++)
      for (long c = 0; c < call.d; c++) narrow(Sum(0), dq(r)[c * call.dq.column]);
    moved.writes += count * call.d;
    return moved;
  }

  // Adds the rows of a chunk's tile to rows of `to`, which has one row per key from j0 on.
  static void add_rows(const Chunk& chunk, const Sum* from, long j0, Sum* to, long length) {
    for (long i = 0; i < chunk.parts_count; i++) {
      const Part& part = chunk.parts[i];
      const Sum* const source = from + part.at * length;
      Sum* const target = to + (part.j - j0) * length;
      for (long x = 0; x < part.keys * length; x += L) store(target + x, load(target + x) + load(source + x));
    }
  }

  // One block of keys of one stream: keys j0 .. j0 + count - 1 stay with their gradients, queries stream by. The
  // updates of dQ are added in WavefrontOrder, whichever thread computes them: a row block waits for the key block
  // before. Key blocks are started in that order, so the first one started never waits. Nothing waits if dQ has a pass
  // of its own (query_gradient.h).
  static Moved run(const Call& call, std::int64_t stream, long j0, long count, Arena& arena) {
    Block block(call, stream, j0, count, arena);
    block.pack_keys();
    each_visit(block.s, j0, count,
               [&](const BlockVisit& visit, long row, long rows) { block.add_panel(visit, rows_of(row, rows)); });
    block.finish();
    return block.moved;
  }

  // The state of `run`.
  struct Block {
    const Call& call;
    const Stream s;
    Arena& arena;
    const long start, count, d, d_v, most;  // start: the first key; most: rows of a tile of scores
    // Whether the keys of short runs are copied next to each other, so that pairs of keys are neighbours in the copy.
    const bool copies;
    const bool k_in_place, v_in_place, q_in_place, dout_in_place;
    const long q_length, dout_length, k_length, v_length, pair_length, dk_length, dv_length;  // of a row, in numbers
    Unit *const q_panel, *const dout_panel;
    Packed *const q_tile, *const dout_tile, *const k_tile, *const v_tile, *const k_pairs;
    Sum *const dk, *const dv;
    Packed* const pack_scratch;
    Tile tile;
    Chunk chunk;
    const ArrayRows<const T> q_row, dout_row, k_row, v_row;
    Sum lse[kLanesAtOnce], delta[kLanesAtOnce], scales[kLanesAtOnce];
    // For scattered keys, allocated when first needed: copies of K and V, and the chunk's contributions to dK or dV.
    Packed *few_k = nullptr, *few_v = nullptr, *few_pairs = nullptr;
    Sum* shares = nullptr;
    long* list = nullptr;
    Ahead ahead_q, ahead_dout, nothing_ahead;
    Moved moved;

    Block(const Call& c, std::int64_t stream, long j0, long keys, Arena& from)
        : call(c), s(c, stream), arena(from), start(j0), count(keys), d(c.d), d_v(c.d_v),
          most(up(std::min<long>(keys, kKeysAtOnce), S)), copies(S == 2 && c.pattern.scattered),
          k_in_place(Base::in_place(c.k, c.d)), v_in_place(Base::in_place(c.v, c.d_v)),
          q_in_place(c.group == 1 && Base::in_place_pairs(c.q) && c.d % L == 0),
          dout_in_place(c.group == 1 && Base::in_place_pairs(c.dout) && c.d_v % L == 0),
          q_length(q_in_place ? c.q.row : padded(d)), dout_length(dout_in_place ? c.dout.row : padded(d_v)),
          k_length(k_in_place ? c.k.row : padded(d)), v_length(v_in_place ? c.v.row : padded(d_v)),
          pair_length(Base::in_place_pairs(c.k) ? c.k.row : padded(d)), dk_length(up(d, L)), dv_length(up(d_v, L)),
          q_panel(from.take<Unit>(units(d) * kLanesAtOnce)), dout_panel(from.take<Unit>(units(d_v) * kLanesAtOnce)),
          q_tile(q_in_place ? nullptr : from.take<Packed>(kLanesAtOnce * q_length)),
          dout_tile(dout_in_place ? nullptr : from.take<Packed>(kLanesAtOnce * dout_length)),
          k_tile(k_in_place ? nullptr : from.take<Packed>(count * k_length)),
          v_tile(v_in_place ? nullptr : from.take<Packed>(count * v_length)),
          k_pairs(S == 1 ? k_tile : from.take<Packed>(up(count, S) * pair_length)), dk(from.take<Sum>(count * dk_length)),
          dv(from.take<Sum>(count * dv_length)), pack_scratch(from.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S)),
          tile(c, most, from), chunk(from, most), q_row(s.template row<const T>(c.q)), dout_row(s.template row<const T>(c.dout)),
          k_row(s.template key<const T>(c.k)), v_row(s.template key<const T>(c.v)) {
      std::fill_n(scales, kLanesAtOnce, Sum(call.scale));
      std::memset(static_cast<void*>(dk), 0, count * dk_length * sizeof(Sum));
      std::memset(static_cast<void*>(dv), 0, count * dv_length * sizeof(Sum));
      moved.reads += count * (d + d_v);
    }

    // Packs K and V, unless products can read them in place.
    void pack_keys() {
      if (!k_in_place) pack_rows<T>(k_row.from(start), call.k.column, count, d, k_tile, k_length);
      if (!v_in_place) pack_rows<T>(v_row.from(start), call.v.column, count, d_v, v_tile, v_length);
      if constexpr (S == 2) pack_k_pairs(k_row.from(start), count, k_pairs, pair_length);
    }
    template <class Row>
    void pack_k_pairs(Row row, long keys, Packed* to, long length) {
      pack_pairs<F, T>(row, call.k.column, keys, d, to, length, pack_scratch);
    }

    // The rows of Q and dO that the products for dK and dV read.
    struct PanelRows {
      const Packed *q, *dout;
    };
    PanelRows pack_queries(const Rows& rows) {
      const auto q_from = q_row.from(rows.start), dout_from = dout_row.from(rows.start);
      pack_panel<F, T>(q_from, call.q.column, rows.count, rows.lanes, d, q_panel, pack_scratch);
      pack_panel<F, T>(dout_from, call.dout.column, rows.count, rows.lanes, d_v, dout_panel, pack_scratch);
      if (!q_in_place) pack_pairs<F, T>(q_from, call.q.column, rows.count, d, q_tile, q_length, pack_scratch);
      if (!dout_in_place) pack_pairs<F, T>(dout_from, call.dout.column, rows.count, d_v, dout_tile, dout_length, pack_scratch);
      return {q_in_place ? reinterpret_cast<const Packed*>(q_row(rows.start)) : q_tile,
              dout_in_place ? reinterpret_cast<const Packed*>(dout_row(rows.start)) : dout_tile};
    }
    // Prefetches the queries of the next panel.
    void prefetch_queries(long next) {
      const long coming = call.group > 1 ? 0 : std::min<long>(kLanesAtOnce, call.stacked() - next);
      ahead_q.clear();
      ahead_dout.clear();
      Base::add_ahead(ahead_q, call.q, q_row, next, coming, d);
      Base::add_ahead(ahead_dout, call.dout, dout_row, next, coming, d_v);
    }

    // Adds the contributions of one panel of rows to dK and dV and, unless dQ has a pass of its own, updates dQ.
    void add_panel(const BlockVisit& visit, const Rows& rows) {
      const PanelRows packed = pack_queries(rows);
      row_sums(s, rows, lse, delta);
      moved.reads += rows.count * (d + d_v + 2);
      prefetch_queries(rows.start + kLanesAtOnce);
      const std::int64_t panels = (call.stacked() + kLanesAtOnce - 1) / kLanesAtOnce, panel = s.index * panels + visit.panel;
      Sum* const dq = call.dq_cols ? nullptr : static_cast<Sum*>(call.dq_panels) + panel * d * kLanesAtOnce;
      // The first update of dQ overwrites; the last one writes the sum to the caller's array.
      Start dq_start = visit.first ? Start::kZero : Start::kSum;
      bool waits = !visit.first;
      Walk walk(s, rows, start, start + count);
      for (long key = walk.next(start); key < start + count;) {
        key = chunk.fill(walk, key, start + count, most, copies ? 1 : S, start);
        const bool scattered = copies || (S == 1 && chunk.scattered());
        const Sides sides = scattered ? copied_sides() : block_sides();
        tile.compute(s, rows, chunk, sides.k, sides.v, q_panel, dout_panel, lse, delta, ahead_q);
        tile.pack(chunk.rows, rows.lanes);
        add_products(rows, scattered, tile.p_rows, packed.dout, dout_length, dv, dv_length);
        add_products(rows, scattered, tile.ds_rows, packed.q, q_length, dk, dk_length);
        if (call.dq_cols) continue;
        if (waits) call.progress->wait(panel, visit.before);
        waits = false;
        update_dq(rows, sides.pairs, dq, dq_start);
        dq_start = Start::kSum;
      }
      if (call.dq_cols) return;
      moved.reads += visit.first ? 0 : rows.count * d;
      moved.writes += rows.count * d;
      if (visit.last)
        unpack_panel<T>(dq, rows.lanes, rows.count, d, scales, s.template row<T>(call.dq).from(rows.start), call.dq.column);
      call.progress->reach(panel, visit.before + 1);
    }

    // The rows of K and V that products read; pairs: K, interleaved along the keys.
    struct Sides {
      Side k, v, pairs;
    };
    Sides block_sides() const {
      const Side k{k_in_place ? reinterpret_cast<const Packed*>(k_row(start)) : k_tile, k_length, start, false};
      const Side v{v_in_place ? reinterpret_cast<const Packed*>(v_row(start)) : v_tile, v_length, start, false};
      return {k, v, S == 1 ? k : Side{k_pairs, pair_length, start, false}};
    }
    // Copies the chunk's scattered keys next to each other.
    Sides copied_sides() {
      if (!list) {
        list = arena.take<long>(most);
        few_k = arena.take<Packed>(most * padded(d));
        few_v = arena.take<Packed>(most * padded(d_v));
        few_pairs = S == 1 ? few_k : arena.take<Packed>(up(most, S) * padded(d));
        shares = arena.take<Sum>(most * std::max(dk_length, dv_length));
      }
      chunk.list(list);
      pack_rows<T>(ListedRows<const T>{k_row, list}, call.k.column, chunk.rows, d, few_k, padded(d));
      pack_rows<T>(ListedRows<const T>{v_row, list}, call.v.column, chunk.rows, d_v, few_v, padded(d_v));
      if constexpr (S == 2) pack_k_pairs(ListedRows<const T>{k_row, list}, chunk.rows, few_pairs, padded(d));
      return {{few_k, padded(d), 0, true}, {few_v, padded(d_v), 0, true}, {few_pairs, padded(d), 0, true}};
    }

    // to (dK or dV, a row per key) += weights (P or dS) times the rows `of` (Q or dO) of the panel.
    void add_products(const Rows& rows, bool scattered, const Unit* weights, const Packed* of, long of_length, Sum* to,
                      long length) {
      Base::each_stretch(chunk, scattered, [&](const Stretch& x) {
        product<F>(x.keys, length, units(rows.count), weights + x.at * (rows.lanes / S), rows.lanes / S, 1, as_units(of), of_length,
                   scattered ? shares : to + (x.j - start) * length, length, scattered ? Start::kZero : Start::kSum, nullptr,
                   ahead_dout);
      });
      if (scattered) add_rows(chunk, shares, start, to, length);
    }

    // dq (d x lanes) <- or += the products of K with dS of the chunk.
    void update_dq(const Rows& rows, const Side& pairs, Sum* dq, Start dq_start) {
      Base::each_stretch(chunk, pairs.by_place, [&](const Stretch& x) {
        product<F>(d, rows.lanes, units(x.keys), as_units(pairs.of(x)), 1, pairs.length, tile.ds_panel + x.at / S * rows.lanes,
                   rows.lanes, dq, rows.lanes, dq_start, nullptr, nothing_ahead);
        dq_start = Start::kSum;
      });
    }

    // Writes dK and dV.
    void finish() {
      const auto dk_row = s.template key<T>(call.dk), dv_row = s.template key<T>(call.dv);
      for (long r = 0; r < count; r++) {
        unpack_row(dk + r * dk_length, d, Sum(call.scale), dk_row(start + r), call.dk.column);
        unpack_row(dv + r * dv_length, d_v, Sum(1), dv_row(start + r), call.dv.column);
      }
      moved.writes += count * (d + d_v);
    }
  };

  // Calls use(visit, row, rows) for the panels that attend some of the keys j0 .. j0 + count - 1, in ascending order.
  // If dQ has a pass of its own, the first panel of a band begins at the first row that attends these keys.
  template <class Use>
  static void each_visit(const Stream& s, long j0, long count, Use use) {
    const Call& call = s.call;
    const std::int64_t number = j0 / call.cols;
    if (call.visits) {
      for (const BlockVisit& visit : call.visits->of(s.plane(), number)) {
        const long r0 = visit.panel * kLanesAtOnce;
        use(visit, r0, std::min<long>(kLanesAtOnce, call.stacked() - r0));
      }
      return;
    }
    const std::int64_t low = call.group * (j0 - call.end + 1), high = call.group * (j0 + count - call.first);
    const std::int64_t rows = call.stacked(), stop = std::min(rows, high);
    if (call.dq_cols) {
      for (long r0 = std::max<std::int64_t>(0, low); r0 < stop && call.first < call.end; r0 += kLanesAtOnce)
        use(BlockVisit{0, 0, true, true}, r0, std::min<long>(kLanesAtOnce, stop - r0));
      return;
    }
    for (std::int64_t panel = std::max<std::int64_t>(0, low) / kLanesAtOnce; panel * kLanesAtOnce < stop; panel++) {
      const long r0 = panel * kLanesAtOnce;
      const auto [live, end] = s.keys_of(r0, std::min<std::int64_t>(kLanesAtOnce, rows - r0));
      if (std::max<long>(live, j0) >= std::min<long>(end, j0 + count)) continue;
      const std::int64_t low = live / call.cols, high = (end - 1) / call.cols;
      const std::int64_t before = call.order.before(number, low, high);
      use(BlockVisit{panel, before, before == 0, before == high - low}, r0, std::min<long>(kLanesAtOnce, rows - r0));
    }
  }

  // One piece of the bias's gradient: queries piece.row .. and keys piece.key .., the sum of dS over the `count`
  // streams (of an unstacked call) that share it, and over all queries or keys if the bias is broadcast along them. P
  // and dS are recomputed.
  static Moved bias_gradient(const Call& call, const std::int64_t* streams, long count, Piece piece, Arena& arena) {
    BiasBlock block(call, piece, arena);
    for (long i = 0; i < count; i++) block.add_stream(Stream(call, streams[i]));
    block.store_sums(Stream(call, streams[0]));
    return {};
  }

  // The state of `bias_gradient`.
  struct BiasBlock {
    const Call& call;
    const Piece piece;
    const long d, d_v, at_once;  // at_once: rows of a tile of scores
    const bool k_in_place, v_in_place;
    const long k_length, v_length;
    Unit *const q_panel, *const dout_panel;
    Packed *const k_tile, *const v_tile, *const pack_scratch;
    Tile tile;
    Chunk chunk;
    long* const list;
    const long sum_rows, sum_keys;  // 1 where the bias is broadcast
    Sum* const sums;
    Sum lse[kLanesAtOnce], delta[kLanesAtOnce];
    Ahead nothing_ahead;

    BiasBlock(const Call& c, Piece part, Arena& arena)
        : call(c), piece(part), d(c.d), d_v(c.d_v), at_once(std::min<long>(part.keys, kKeysAtOnce)),
          k_in_place(Base::in_place(c.k, c.d)), v_in_place(Base::in_place(c.v, c.d_v)),
          k_length(k_in_place ? c.k.row : padded(d)), v_length(v_in_place ? c.v.row : padded(d_v)),
          q_panel(arena.take<Unit>(units(d) * kLanesAtOnce)), dout_panel(arena.take<Unit>(units(d_v) * kLanesAtOnce)),
          k_tile(k_in_place ? nullptr : arena.take<Packed>(at_once * k_length)),
          v_tile(v_in_place ? nullptr : arena.take<Packed>(at_once * v_length)),
          pack_scratch(arena.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S)), tile(c, at_once, arena),
          chunk(arena, at_once), list(arena.take<long>(at_once)), sum_rows(c.dbias.row ? part.rows : 1),
          sum_keys(c.dbias.column ? part.keys : 1), sums(arena.take<Sum>(sum_rows * sum_keys)) {
      tile.slopes = nullptr;  // the bias is added after the softcap
      std::fill_n(sums, sum_rows * sum_keys, Sum(0));
    }

    void add_stream(const Stream& s) {
      const long stop = piece.key + piece.keys;
      const auto q_row = s.template row<const T>(call.q), dout_row = s.template row<const T>(call.dout);
      for (long r0 = piece.row; r0 < piece.row + piece.rows; r0 += kLanesAtOnce) {
        const Rows rows = rows_of(r0, std::min(kLanesAtOnce, piece.row + piece.rows - r0));
        Walk walk(s, rows, piece.key, stop);
        long key = walk.next(piece.key);
        if (key == Walk::kNone) continue;
        pack_panel<F, T>(q_row.from(r0), call.q.column, rows.count, rows.lanes, d, q_panel, pack_scratch);
        pack_panel<F, T>(dout_row.from(r0), call.dout.column, rows.count, rows.lanes, d_v, dout_panel, pack_scratch);
        row_sums(s, rows, lse, delta);
        while (key < stop) {
          key = chunk.fill(walk, key, stop, at_once, 1, 0);
          add_chunk(s, rows);
        }
      }
    }

    void add_chunk(const Stream& s, const Rows& rows) {
      const auto k_row = s.template key<const T>(call.k), v_row = s.template key<const T>(call.v);
      if (!k_in_place || !v_in_place) chunk.list(list);
      if (!k_in_place) pack_rows<T>(ListedRows<const T>{k_row, list}, call.k.column, chunk.rows, d, k_tile, k_length);
      if (!v_in_place) pack_rows<T>(ListedRows<const T>{v_row, list}, call.v.column, chunk.rows, d_v, v_tile, v_length);
      const Side k{k_in_place ? reinterpret_cast<const Packed*>(k_row(0)) : k_tile, k_length, 0, !k_in_place};
      const Side v{v_in_place ? reinterpret_cast<const Packed*>(v_row(0)) : v_tile, v_length, 0, !v_in_place};
      tile.compute(s, rows, chunk, k, v, q_panel, dout_panel, lse, delta, nothing_ahead);
      for (long i = 0; i < chunk.parts_count; i++) {
        const Part& part = chunk.parts[i];
        for (long r = 0; r < rows.count; r++)
          for (long x = 0; x < part.keys; x++)
            sums[(call.dbias.row ? rows.start - piece.row + r : 0) * sum_keys +
                 (call.dbias.column ? part.j - piece.key + x : 0)] += tile.ds[(part.at + x) * rows.lanes + r];
      }
    }

    void store_sums(const Stream& s) const {
      Sum* const to = at<Sum>(call.dbias, s.offset(call.dbias)) + s.kv_head * call.dbias.head;
      for (long r = 0; r < sum_rows; r++)
        for (long x = 0; x < sum_keys; x++)
          to[(piece.row + r) * call.dbias.row + (piece.key + x) * call.dbias.column] = sums[r * sum_keys + x];
    }
  };
};
