// The backward pass: the schedule `flash_onepass`, the dK and dV of `flash`, and the bias's gradient. Included once inside
// each target region of isa.cpp.
template <class T, class F>
struct Backward : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Packed, typename Base::Side, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::kLanesAtOnce, Base::kLowest, Base::L, Base::padded, Base::rows_of, Base::S, Base::units, Base::up;
  static constexpr long kKeysAtOnce = 96;  // of a tile's; 24 to 144 are equally fast (measured, Zen 5)

  // One tile: the keys of a chunk against at most kLanesAtOnce rows. P and dS in the formats of what follows.
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

    // p <- P (as dropped), ds <- dS. lse: +inf where the row attends nothing.
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

    // p <- scores, rounded as forward's: where they are large, e to their difference from lse would magnify another rounding.
    void scores_of_few(const Stream& s, const Rows& rows, const Chunk& chunk) {
      const long d = s.call.d, q_length = up(d, L);
      const auto q_row = s.row<const T>(s.call.q);
      const auto k_row = s.key<const T>(s.call.k);
      pack_rows<T>(q_row.from(rows.start), s.call.q.column, rows.count, d, few_q, q_length);
      std::fill_n(p, chunk.rows * rows.lanes, Sum(0));
      for (long i = 0; i < chunk.parts_count; i++) {
        const Part& part = chunk.parts[i];
        const long length = up(part.keys, L);
        dots<T>(part.keys, rows.count, d, KeyRows<T>{k_row.base, k_row.step, part.j, nullptr}, few_q, q_length, few_scores, length, 0);
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
          // Rounded as lse was: where one score outweighs all others, its weight is 1.
          const V<Sum> weight = exp<Sum>(rounded<Sum>(load(p + from + x) * factor) - base);
          const V<Sum> dp = load(ds + from + x);
          V<Sum> gradient, used = weight;
          if (drops) {  // fused by name: whether the compiler would fuse them depends on how it splits the loop
            const V<Sum> kept = load(extra + x);
            used *= kept;
            gradient = weight * multiply_add<Sum>(dp, kept, -row_delta);
          } else {
            gradient = weight * (dp - row_delta);
          }
          store(p + from + x, used);
          if (slopes) gradient *= load(slopes + from + x);
          store(ds + from + x, gradient);
        }
      }
      // What a row does not attend has no gradient, even where dP is infinite or NaN.
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

  // A row's sum of dout * out, less the gradient of its lse.
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

  // The deltas of a panel, and dQ = 0 where it attends nothing.
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

  // Rows of `to`, one per key from j0 on, += the rows of a chunk's tile.
  static void add_rows(const Chunk& chunk, const Sum* from, long j0, Sum* to, long length) {
    for (long i = 0; i < chunk.parts_count; i++) {
      const Part& part = chunk.parts[i];
      const Sum* const source = from + part.at * length;
      Sum* const target = to + (part.j - j0) * length;
      for (long x = 0; x < part.keys * length; x += L) store(target + x, load(target + x) + load(source + x));
    }
  }

  // One block of keys of one stream: keys j0 .. j0 + count - 1 stay with their gradients, queries stream by. The shares
  // of dQ are added in the order of Turns, whichever thread has them: a block of rows waits for the block of keys before.
  // Blocks of keys are begun in that order, so the first one begun never waits. Where dQ has a pass of its own (queries.h),
  // there is nothing to wait for.
  static Moved run(const Call& call, std::int64_t stream, long j0, long count, Arena& arena) {
    const Stream s(call, stream);
    const long d = call.d, d_v = call.d_v, rows_total = call.stacked(), at_once = std::min<long>(count, kKeysAtOnce);
    const long most = up(at_once, S);
    // Where runs of keys are short, those of a chunk are copied together; pairs of keys then are neighbours in the copy.
    const bool copies = S == 2 && call.pattern.scattered;
    const long unit = copies ? 1 : S;
    const bool k_in_place = Base::in_place(call.k, d), v_in_place = Base::in_place(call.v, d_v);
    const bool pairs = Base::in_place_pairs(call.k), stacked = call.group > 1;
    const bool q_in_place = !stacked && Base::in_place_pairs(call.q) && d % L == 0;
    const bool dout_in_place = !stacked && Base::in_place_pairs(call.dout) && d_v % L == 0;
    const long q_length = q_in_place ? call.q.row : padded(d), dout_length = dout_in_place ? call.dout.row : padded(d_v);
    const long k_length = k_in_place ? call.k.row : padded(d), v_length = v_in_place ? call.v.row : padded(d_v);
    const long pair_length = pairs ? call.k.row : padded(d), dk_length = up(d, L), dv_length = up(d_v, L);
    Unit* const q_panel = arena.take<Unit>(units(d) * kLanesAtOnce);
    Unit* const dout_panel = arena.take<Unit>(units(d_v) * kLanesAtOnce);
    Packed* const q_tile = q_in_place ? nullptr : arena.take<Packed>(kLanesAtOnce * q_length);
    Packed* const dout_tile = dout_in_place ? nullptr : arena.take<Packed>(kLanesAtOnce * dout_length);
    Packed* const k_tile = k_in_place ? nullptr : arena.take<Packed>(count * k_length);
    Packed* const v_tile = v_in_place ? nullptr : arena.take<Packed>(count * v_length);
    Packed* const k_pairs = S == 1 ? k_tile : arena.take<Packed>(up(count, S) * pair_length);
    Sum* const dk = arena.take<Sum>(count * dk_length);
    Sum* const dv = arena.take<Sum>(count * dv_length);
    Sum lse[kLanesAtOnce], delta[kLanesAtOnce], scales[kLanesAtOnce];
    std::fill_n(scales, kLanesAtOnce, Sum(call.scale));
    Packed* const pack_scratch = arena.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S);
    Tile tile(call, most, arena);
    Chunk chunk(arena, most);
    // Of scattered keys: copies of K and V, shares of dK and dV, taken once somebody needs them
    Packed *few_k = nullptr, *few_v = nullptr, *few_pairs = nullptr;
    Sum* shares = nullptr;
    long* list = nullptr;
    Moved moved;

    const auto q_row = s.row<const T>(call.q), dout_row = s.row<const T>(call.dout);
    const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
    const auto dq_row = s.row<T>(call.dq);
    const auto pack_k_pairs = [&](auto row, long keys, Packed* to) {
      pack_pairs<F, T>(row, call.k.column, keys, d, to, padded(d), pack_scratch);
    };
    if (!k_in_place) pack_rows<T>(k_row.from(j0), call.k.column, count, d, k_tile, k_length);
    if (!v_in_place) pack_rows<T>(v_row.from(j0), call.v.column, count, d_v, v_tile, v_length);
    if constexpr (S == 2) pack_k_pairs(k_row.from(j0), count, k_pairs);
    const Side block_k{k_in_place ? reinterpret_cast<const Packed*>(k_row(j0)) : k_tile, k_length, j0, false};
    const Side block_v{v_in_place ? reinterpret_cast<const Packed*>(v_row(j0)) : v_tile, v_length, j0, false};
    const Side block_pairs = S == 1 ? block_k : Side{k_pairs, pair_length, j0, false};
    std::memset(static_cast<void*>(dk), 0, count * dk_length * sizeof(Sum));
    std::memset(static_cast<void*>(dv), 0, count * dv_length * sizeof(Sum));
    moved.reads += count * (d + d_v);

    const std::int64_t blocks = (rows_total + kLanesAtOnce - 1) / kLanesAtOnce;
    each_meeting(s, j0, count, [&](const Meeting& meeting, long r0, long rows_count) {
      const Rows rows = rows_of(r0, rows_count);
      const auto q_from = q_row.from(r0);
      const auto dout_from = dout_row.from(r0);
      const long lanes = rows.lanes;
      pack_panel<F, T>(q_from, call.q.column, rows.count, lanes, d, q_panel, pack_scratch);
      pack_panel<F, T>(dout_from, call.dout.column, rows.count, lanes, d_v, dout_panel, pack_scratch);
      if (!q_in_place) pack_pairs<F, T>(q_from, call.q.column, rows.count, d, q_tile, q_length, pack_scratch);
      if (!dout_in_place) pack_pairs<F, T>(dout_from, call.dout.column, rows.count, d_v, dout_tile, dout_length, pack_scratch);
      const Packed* const q_rows = q_in_place ? reinterpret_cast<const Packed*>(q_row(r0)) : q_tile;
      const Packed* const dout_rows = dout_in_place ? reinterpret_cast<const Packed*>(dout_row(r0)) : dout_tile;
      row_sums(s, rows, lse, delta);
      moved.reads += rows.count * (d + d_v + 2);

      const long next = r0 + kLanesAtOnce, coming = stacked ? 0 : std::min(kLanesAtOnce, rows_total - next);
      Ahead ahead_q, ahead_dout;
      Base::add_ahead(ahead_q, call.q, q_row, next, coming, d);
      Base::add_ahead(ahead_dout, call.dout, dout_row, next, coming, d_v);
      Ahead nothing_ahead;
      const std::int64_t block = stream * blocks + meeting.panel;
      Sum* const dq_panel = call.dq_cols ? nullptr : static_cast<Sum*>(call.dq_panels) + block * d * kLanesAtOnce;
      // The first share of dQ finds nothing there yet, the last one leaves it in the caller's array.
      Start dq_start = meeting.first ? Start::kZero : Start::kSum;
      bool waits = !meeting.first;
      Walk walk(s, rows, j0, j0 + count);
      for (long key = walk.next(j0); key < j0 + count;) {
        key = chunk.fill(walk, key, j0 + count, most, unit, j0);
        const bool scattered = copies || (S == 1 && chunk.scattered());
        Side k_side = block_k, v_side = block_v, pair_side = block_pairs;
        if (scattered) {
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
          if constexpr (S == 2) pack_k_pairs(ListedRows<const T>{k_row, list}, chunk.rows, few_pairs);
          k_side = {few_k, padded(d), 0, true};
          pair_side = {few_pairs, padded(d), 0, true};
          v_side = {few_v, padded(d_v), 0, true};
        }
        tile.compute(s, rows, chunk, k_side, v_side, q_panel, dout_panel, lse, delta, ahead_q);
        tile.pack(chunk.rows, lanes);
        const auto add_share = [&](const Unit* weights, const Packed* of, long of_length, Sum* to, long length) {
          Base::each_stretch(chunk, scattered, [&](const Stretch& x) {
            product<F>(x.keys, length, units(rows.count), weights + x.at * (lanes / S), lanes / S, 1, as_units(of), of_length,
                       scattered ? shares : to + (x.j - j0) * length, length, scattered ? Start::kZero : Start::kSum,
                       nullptr, ahead_dout);
          });
          if (scattered) add_rows(chunk, shares, j0, to, length);
        };
        add_share(tile.p_rows, dout_rows, dout_length, dv, dv_length);
        add_share(tile.ds_rows, q_rows, q_length, dk, dk_length);
        if (call.dq_cols) continue;
        if (waits) call.progress->wait(block, meeting.before);
        waits = false;
        Base::each_stretch(chunk, pair_side.by_place, [&](const Stretch& x) {
          product<F>(d, lanes, units(x.keys), as_units(pair_side.of(x)), 1, pair_side.length, tile.ds_panel + x.at / S * lanes,
                     lanes, dq_panel, lanes, dq_start, nullptr, nothing_ahead);
          dq_start = Start::kSum;
        });
      }
      if (call.dq_cols) return;
      moved.reads += meeting.first ? 0 : rows.count * d;
      moved.writes += rows.count * d;
      if (meeting.last)
        unpack_panel<T>(dq_panel, lanes, rows.count, d, scales, dq_row.from(r0), call.dq.column);
      call.progress->reach(block, meeting.before + 1);
    });

    const auto dk_row = s.key<T>(call.dk), dv_row = s.key<T>(call.dv);
    for (long r = 0; r < count; r++) {
      unpack_row(dk + r * dk_length, d, Sum(call.scale), dk_row(j0 + r), call.dk.column);
      unpack_row(dv + r * dv_length, d_v, Sum(1), dv_row(j0 + r), call.dv.column);
    }
    moved.writes += count * (d + d_v);
    return moved;
  }

  // use(meeting, row, rows) for the panels of rows that attend some of the keys j0 .. j0 + count - 1, ascending. Where they
  // share no dQ with other keys, a band's panels begin at the first row that does.
  template <class Use>
  static void each_meeting(const Stream& s, long j0, long count, Use use) {
    const Call& call = s.call;
    const std::int64_t number = j0 / call.cols;
    if (call.meetings) {
      for (const Meeting& meeting : call.meetings->of(s.plane(), number)) {
        const long r0 = meeting.panel * kLanesAtOnce;
        use(meeting, r0, std::min<long>(kLanesAtOnce, call.stacked() - r0));
      }
      return;
    }
    const std::int64_t low = call.group * (j0 - call.end + 1), high = call.group * (j0 + count - call.first);
    const std::int64_t rows = call.stacked(), stop = std::min(rows, high);
    if (call.dq_cols) {
      for (long r0 = std::max<std::int64_t>(0, low); r0 < stop && call.first < call.end; r0 += kLanesAtOnce)
        use(Meeting{0, 0, true, true}, r0, std::min<long>(kLanesAtOnce, stop - r0));
      return;
    }
    for (std::int64_t panel = std::max<std::int64_t>(0, low) / kLanesAtOnce; panel * kLanesAtOnce < stop; panel++) {
      const long r0 = panel * kLanesAtOnce;
      const auto [live, end] = s.keys_of(r0, std::min<std::int64_t>(kLanesAtOnce, rows - r0));
      if (std::max<long>(live, j0) >= std::min<long>(end, j0 + count)) continue;
      const std::int64_t low = live / call.cols, high = (end - 1) / call.cols;
      const std::int64_t before = call.turns.before(number, low, high);
      use(Meeting{panel, before, before == 0, before == high - low}, r0, std::min<long>(kLanesAtOnce, rows - r0));
    }
  }

  // One piece of the bias's gradient: queries r0 .. and keys j0 .., the sum of dS over the `count` streams (of an unstacked
  // call) that share it, and over all queries or keys where it is broadcast along them. P and dS are computed once more.
  static Moved bias_gradient(const Call& call, const std::int64_t* streams, long count, Piece piece, Arena& arena) {
    const long d = call.d, d_v = call.d_v, at_once = std::min<long>(piece.keys, kKeysAtOnce);
    const bool k_in_place = Base::in_place(call.k, d), v_in_place = Base::in_place(call.v, d_v);
    const long k_length = k_in_place ? call.k.row : padded(d), v_length = v_in_place ? call.v.row : padded(d_v);
    Unit* const q_panel = arena.take<Unit>(units(d) * kLanesAtOnce);
    Unit* const dout_panel = arena.take<Unit>(units(d_v) * kLanesAtOnce);
    Packed* const k_tile = k_in_place ? nullptr : arena.take<Packed>(at_once * k_length);
    Packed* const v_tile = v_in_place ? nullptr : arena.take<Packed>(at_once * v_length);
    Packed* const pack_scratch = arena.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S);
    Sum lse[kLanesAtOnce], delta[kLanesAtOnce];
    Tile tile(call, at_once, arena);
    Chunk chunk(arena, at_once);
    long* const list = arena.take<long>(at_once);
    tile.slopes = nullptr;  // the bias is added after the softcap
    const long sum_rows = call.dbias.row ? piece.rows : 1, sum_keys = call.dbias.column ? piece.keys : 1;
    Sum* const sums = arena.take<Sum>(sum_rows * sum_keys);
    std::fill_n(sums, sum_rows * sum_keys, Sum(0));
    Ahead nothing_ahead;
    for (long i = 0; i < count; i++) {
      const Stream s(call, streams[i]);
      const auto q_row = s.row<const T>(call.q), dout_row = s.row<const T>(call.dout);
      const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
      for (long r0 = piece.row; r0 < piece.row + piece.rows; r0 += kLanesAtOnce) {
        const Rows rows = rows_of(r0, std::min(kLanesAtOnce, piece.row + piece.rows - r0));
        Walk walk(s, rows, piece.key, piece.key + piece.keys);
        long key = walk.next(piece.key);
        if (key == Walk::kNone) continue;
        pack_panel<F, T>(q_row.from(r0), call.q.column, rows.count, rows.lanes, d, q_panel, pack_scratch);
        pack_panel<F, T>(dout_row.from(r0), call.dout.column, rows.count, rows.lanes, d_v, dout_panel,
                         pack_scratch);
        row_sums(s, rows, lse, delta);
        while (key < piece.key + piece.keys) {
          key = chunk.fill(walk, key, piece.key + piece.keys, at_once, 1, 0);
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
                sums[(call.dbias.row ? r0 - piece.row + r : 0) * sum_keys + (call.dbias.column ? part.j - piece.key + x : 0)] +=
                    tile.ds[(part.at + x) * rows.lanes + r];
          }
        }
      }
    }
    Sum* const to = at<Sum>(call.dbias, Stream(call, streams[0]).offset(call.dbias)) +
                    Stream(call, streams[0]).kv_head * call.dbias.head;
    for (long r = 0; r < sum_rows; r++)
      for (long x = 0; x < sum_keys; x++)
        to[(piece.row + r) * call.dbias.row + (piece.key + x) * call.dbias.column] = sums[r * sum_keys + x];
    return {};
  }
};
