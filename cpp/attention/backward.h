// The backward pass: the schedule `flash_onepass`, and the dK and dV of `flash`. Included once inside each target
// region (vector/region.h).
template <class T, class F>
struct Backward : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Packed, typename Base::Side, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::kLanesAtOnce, Base::L, Base::padded, Base::rows_of, Base::S, Base::units, Base::up;
  using Tile = GradientTile<T, F>;

  // Computes the deltas of a panel. Sets its dQ to 0 if the panel attends nothing.
  static Moved deltas(const Call& call, std::int64_t stream, long r0, long count, Arena&) {
    const Stream s(call, stream);
    for (long r = r0; r < r0 + count; r++) Tile::store_delta(s, r);
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

  // Processes one block of keys of one stream: keys j0 .. j0 + count - 1 and their gradients stay in cache, queries are
  // streamed. Updates of dQ are added in WavefrontOrder, whichever thread computes them: an update of a row block waits
  // for the previous key block's update. Key blocks start in the same order, so the first unfinished block never waits.
  // If dQ has a separate pass (query_gradient.h), no block waits.
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
    // Whether the keys of short runs are copied next to each other. Pairs of keys are then neighbours in the copy.
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
    // For scattered keys, allocated on first use: copies of K and V, and the chunk's contributions to dK or dV.
    Packed *few_k = nullptr, *few_v = nullptr, *few_pairs = nullptr;
    Sum* shares = nullptr;
    long* list = nullptr;
    Ahead ahead_q, ahead_dout, nothing_ahead;
    Moved moved;

    Block(const Call& c, std::int64_t stream, long j0, long keys, Arena& from)
        : call(c), s(c, stream), arena(from), start(j0), count(keys), d(c.d), d_v(c.d_v),
          most(up(std::min<long>(keys, Tile::kKeysAtOnce), S)), copies(S == 2 && c.pattern.scattered),
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
          k_pairs(S == 1 ? k_tile : from.take<Packed>(up(count, S) * pair_length)),
          dk(from.take<Sum>(count * dk_length)), dv(from.take<Sum>(count * dv_length)),
          pack_scratch(from.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S)), tile(c, most, from),
          chunk(from, most), q_row(s.template row<const T>(c.q)), dout_row(s.template row<const T>(c.dout)),
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
      if (!dout_in_place)
        pack_pairs<F, T>(dout_from, call.dout.column, rows.count, d_v, dout_tile, dout_length, pack_scratch);
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

    // Adds the contributions of one panel of rows to dK and dV and, unless dQ has a separate pass, updates dQ.
    void add_panel(const BlockVisit& visit, const Rows& rows) {
      const PanelRows packed = pack_queries(rows);
      Tile::row_sums(s, rows, lse, delta);
      moved.reads += rows.count * (d + d_v + 2);
      prefetch_queries(rows.start + kLanesAtOnce);
      const std::int64_t panels = (call.stacked() + kLanesAtOnce - 1) / kLanesAtOnce,
                         panel = s.index * panels + visit.panel;
      Sum* const dq = call.dq_cols ? nullptr : static_cast<Sum*>(call.dq_panels) + panel * d * kLanesAtOnce;
      // The first update overwrites dQ. The last update writes the sum to the caller's array.
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
        unpack_panel<T>(dq, rows.lanes, rows.count, d, scales, s.template row<T>(call.dq).from(rows.start),
                        call.dq.column);
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

    // Adds weights (P or dS) times the panel's rows `of` (dO or Q) to `to` (dV or dK, one row per key).
    void add_products(const Rows& rows, bool scattered, const Unit* weights, const Packed* of, long of_length, Sum* to,
                      long length) {
      Base::each_stretch(chunk, scattered, [&](const Stretch& x) {
        product<F>(x.keys, length, units(rows.count), weights + x.at * (rows.lanes / S), rows.lanes / S, 1,
                   as_units(of), of_length, scattered ? shares : to + (x.j - start) * length, length,
                   scattered ? Start::kZero : Start::kSum, nullptr, ahead_dout);
      });
      if (scattered) add_rows(chunk, shares, start, to, length);
    }

    // Sets dq (d x lanes) to the product of K with the chunk's dS, or adds the product to dq, according to dq_start.
    void update_dq(const Rows& rows, const Side& pairs, Sum* dq, Start dq_start) {
      Base::each_stretch(chunk, pairs.by_place, [&](const Stretch& x) {
        product<F>(d, rows.lanes, units(x.keys), as_units(pairs.of(x)), 1, pairs.length,
                   tile.ds_panel + x.at / S * rows.lanes, rows.lanes, dq, rows.lanes, dq_start, nullptr, nothing_ahead);
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

  // Calls use(visit, row, rows), in ascending order, for each panel that attends any of the keys j0 .. j0 + count - 1.
  // For a band whose dQ has a separate pass, the first panel begins at the first row that attends these keys.
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
};
