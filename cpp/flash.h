// FlashAttention: the schedule `flash` forward, `flash_onepass` backward. Included once inside each target region.
//
// In the lanes of a vector lie queries, in the rows of a tile keys (scores) or features (outputs): S^T = K Q^T and
// O^T = V^T P^T are both of tile.h's form, with Q^T and P^T as panels, and K and V broadcast from their own rows.

// T: the arrays' numbers; F: the format they are packed in.
template <class T, class F>
struct Flash {
  using Sum = typename F::Sum;
  using Packed = typename F::Number;
  using Unit = typename F::Unit;
  static constexpr int L = kLanesOf<Sum>, S = F::kStep;
  static constexpr long kLanesAtOnce = kNR * L;
  static constexpr long kKeysAtOnce = 96;  // backward, of a tile's; 24 to 144 are equally fast (measured, Zen 5)
  static constexpr long kRowsAhead = 32;
  static constexpr long kFew = L < 8 ? L : 8;  // rows, up to which vectors along the features read K and V faster
  static constexpr Sum kLog2E = Sum(1.4426950408889634);
  static constexpr Sum kLowest = -std::numeric_limits<Sum>::infinity();

  static long up(long count, long multiple) { return (count + multiple - 1) / multiple * multiple; }
  static long units(long count) { return (count + S - 1) / S; }
  // Rows of packed panels start in different cache sets, whatever d is.
  static long padded(long columns) { return up(columns, S * L) + (columns % (1024 / sizeof(Packed)) ? 0 : S * L); }
  static const Unit* as_units(const Packed* p) { return reinterpret_cast<const Unit*>(p); }
  // Whether rows of an array can be broadcast from where they lie; pairs: as pack_pairs would lay them.
  static bool in_place(const Array& array, long columns) {
    return std::is_same_v<T, Packed> && array.column == 1 && columns % S == 0 && array.row % S == 0;
  }
  static bool in_place_pairs(const Array& array) { return std::is_same_v<T, Packed> && S == 1 && array.column == 1; }
  template <class Row>
  static Ahead ahead_of(const Array& array, Row row, long first, long rows, long columns) {
    if (rows <= 0 || array.column != 1) return {};
    return {reinterpret_cast<const char*>(row(first)), rows, long(array.row * sizeof(T)), long(columns * sizeof(T)), 0};
  }

  // The log-sum-exp of a row from its maximum and its sum.
  static Sum log_sum(const Call& call, Sum top, Sum sum) {
    return Sum(double(top) * Sum(factor_left(call)) + std::log(double(sum)));  // the factor as backward has it
  }

  static Rows rows_of(long start, long count) { return {start, count, up(count, L)}; }

  // P in the formats of the products that follow. by_keys: units are neighbours along keys; by_rows: along rows.
  static void to_panels(const Sum* p, long keys, long lanes, Unit* by_keys, Packed* by_rows) {
    if constexpr (S == 2) {
#if REDBLUE_REGION == REDBLUE_AVX512_BF16
      for (long key = 0; key < keys; key += 2)
        for (long v = 0; v < lanes; v += L) {
          const V<Sum> even = load(p + key * lanes + v);
          const V<Sum> odd = key + 1 < keys ? load(p + (key + 1) * lanes + v) : V<Sum>{};
          const auto half_even = bits<__m256i>(_mm512_cvtneps_pbh(even)), half_odd = bits<__m256i>(_mm512_cvtneps_pbh(odd));
          if (by_rows) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(by_rows + key * lanes + v), half_even);
            if (key + 1 < keys) _mm256_storeu_si256(reinterpret_cast<__m256i*>(by_rows + (key + 1) * lanes + v), half_odd);
          }
          if (by_keys)
            store(by_keys + key / 2 * lanes + v,
                  bits<V<unsigned>>(_mm512_or_si512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half_odd), 16),
                                                    _mm512_cvtepu16_epi32(half_even))));
        }
#endif
    }
  }

  // One block of rows of one stream against a range of keys. partial: null where these are all keys; else unfinished
  // results go there, (maximum, sum, d_v features) per stacked row, for `merge`.
  static Moved forward(const Call& call, std::int64_t stream, Piece piece, void* partial, Room& room) {
    if (piece.rows <= kFew && call.q.column == 1 && call.k.column == 1 && call.v.column == 1 && Wide<T>::kWhole)
      return forward_few(call, stream, piece, partial, room);
    const long r0 = piece.row, count = piece.rows;
    const Stream s(call, stream);
    const long d = call.d, d_v = call.d_v, groups = (count + kLanesAtOnce - 1) / kLanesAtOnce;
    const long cols = up(std::min(call.cols, call.n_k), S);
    Moved moved;
    const bool k_in_place = in_place(call.k, d), v_in_place = in_place_pairs(call.v);
    const long k_length = k_in_place ? call.k.row : padded(d), v_length = v_in_place ? call.v.row : padded(d_v);
    Unit* const q_panels = room.take<Unit>(groups * units(d) * kLanesAtOnce);
    Sum* const out_panels = room.take<Sum>(groups * d_v * kLanesAtOnce);
    Sum* const row_max = room.take<Sum>(groups * kLanesAtOnce);
    Sum* const row_sum = room.take<Sum>(groups * kLanesAtOnce);
    Sum* const factors = room.take<Sum>(kLanesAtOnce);
    Packed* const k_tile = k_in_place ? nullptr : room.take<Packed>(cols * k_length);
    Packed* const v_tile = v_in_place ? nullptr : room.take<Packed>(cols * v_length);
    Sum* const scores = room.take<Sum>(cols * kLanesAtOnce);
    Unit* const p_panel = S == 1 ? reinterpret_cast<Unit*>(scores) : room.take<Unit>(units(cols) * kLanesAtOnce);
    Sum* const extra = call.bias.data || call.dropout > 0 ? room.take<Sum>(cols * kLanesAtOnce) : nullptr;
    Packed* const pack_room = room.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S);
    Sum* const sum_room = call.bias.data ? room.take<Sum>(L * up(cols, L)) : nullptr;

    const auto q_row = s.row<const T>(call.q);
    const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
    const auto group_rows = [&](long g) {
      return rows_of(r0 + g * kLanesAtOnce, std::min(kLanesAtOnce, count - g * kLanesAtOnce));
    };
    for (long g = 0; g < groups; g++) {
      const Rows rows = group_rows(g);
      pack_panel<F, T>([&](long r) { return q_row(rows.start + r); }, call.q.column, rows.count, rows.lanes, d,
                       q_panels + g * units(d) * kLanesAtOnce, pack_room);
      for (long lane = 0; lane < kLanesAtOnce; lane++) {
        const long r = rows.start + std::min(lane, rows.count - 1);
        const Sum sink = first_score(s, r, piece);
        row_max[g * kLanesAtOnce + lane] = sink;
        row_sum[g * kLanesAtOnce + lane] = sink == kLowest ? 0 : 1;
      }
    }
    std::memset(static_cast<void*>(out_panels), 0, groups * d_v * kLanesAtOnce * sizeof(Sum));
    moved.reads += count * d;

    const auto [live, live_end] = live_keys(s, piece);
    for (long j0 = live; j0 < live_end; j0 += call.cols) {
      const long tile_keys = std::min<long>(call.cols, live_end - j0);
      if (!k_in_place) pack_rows<T>([&](long r) { return k_row(j0 + r); }, call.k.column, tile_keys, d, k_tile, k_length);
      if (!v_in_place)
        pack_pairs<F, T>([&](long r) { return v_row(j0 + r); }, call.v.column, tile_keys, d_v, v_tile, v_length, pack_room);
      const Packed* const k_rows = k_in_place ? reinterpret_cast<const Packed*>(k_row(j0)) : k_tile;
      const Packed* const v_rows = v_in_place ? reinterpret_cast<const Packed*>(v_row(j0)) : v_tile;
      moved.reads += tile_keys * (d + d_v);
      const long next = j0 + tile_keys, coming = std::min<long>(call.cols, live_end - next);
      Ahead ahead_k = ahead_of(call.k, k_row, next, coming, d), ahead_v = ahead_of(call.v, v_row, next, coming, d_v);
      for (long g = 0; g < groups; g++) {
        const Rows rows = group_rows(g);
        const auto [first, end] = s.keys_of(rows.start, rows.count);
        // Only the keys that this group attends; starting at whole units.
        const long from = std::max(0L, first - j0) / S * S, to = std::min(tile_keys, end - j0), keys = to - from;
        if (keys <= 0) continue;
        const long lanes = rows.lanes, j = j0 + from;
        product<F>(keys, lanes, units(d), as_units(k_rows + from * k_length), k_length / S, 1,
                   q_panels + g * units(d) * kLanesAtOnce, lanes, scores, lanes, Start::kZero, nullptr, ahead_k);
        finish_tile(s, rows, j, keys, scores, nullptr, extra, sum_room);
        softmax(keys, lanes, Sum(factor_left(call)), scores, row_max + g * kLanesAtOnce, row_sum + g * kLanesAtOnce, factors);
        if (call.dropout > 0) drop(s, rows, j, keys, scores, extra);
        if constexpr (S == 2) to_panels(scores, keys, lanes, p_panel, nullptr);
        product<F>(d_v, lanes, units(keys), as_units(v_rows) + from / S * v_length, 1, v_length, p_panel, lanes,
                   out_panels + g * d_v * kLanesAtOnce, lanes, Start::kScaled, factors, ahead_v);
      }
    }

    if (partial) {
      Sum* const rows_of_stream = static_cast<Sum*>(partial) + stream * call.stacked() * (d_v + 2);
      for (long g = 0; g < groups; g++) {
        const Rows rows = group_rows(g);
        for (long lane = 0; lane < rows.count; lane++) {
          Sum* const to = rows_of_stream + (rows.start + lane) * (d_v + 2);
          to[0] = row_max[g * kLanesAtOnce + lane];
          to[1] = row_sum[g * kLanesAtOnce + lane];
          for (long c = 0; c < d_v; c++) to[2 + c] = out_panels[g * d_v * kLanesAtOnce + c * rows.lanes + lane];
        }
      }
      moved.writes += count * (d_v + 2);
      return moved;
    }
    const auto out_row = s.row<T>(call.out);
    Sum* const lse = at<Sum>(call.lse, 0);
    for (long g = 0; g < groups; g++) {
      const Rows rows = group_rows(g);
      for (long lane = 0; lane < rows.count; lane++) {
        const Sum sum = row_sum[g * kLanesAtOnce + lane];
        factors[lane] = sum == 0 ? 0 : 1 / sum;
        lse[s.number(rows.start + lane)] = log_sum(call, row_max[g * kLanesAtOnce + lane], sum);
      }
      for (long lane = rows.count; lane < kLanesAtOnce; lane++) factors[lane] = 0;
      unpack_panel<T>(out_panels + g * d_v * kLanesAtOnce, rows.lanes, rows.count, d_v, factors,
                      [&](long r) { return out_row(rows.start + r); }, call.out.column);
    }
    moved.writes += count * (d_v + 1);
    return moved;
  }

  // What a row's maximum starts from: its head's sink, which the first piece of the keys counts.
  static Sum first_score(const Stream& s, long r, const Piece& piece) {
    const bool has = s.call.sinks.data && piece.key == 0;
    return has ? at<const Sum>(s.call.sinks, 0)[s.kv_head * s.call.group + r % s.call.group] : kLowest;
  }
  static std::pair<long, long> live_keys(const Stream& s, const Piece& piece) {
    const auto [live, live_end] = s.keys_of(piece.row, piece.rows);
    const long start = std::max(live, piece.key), stop = std::min(live_end, piece.key + piece.keys);
    return {start, std::max(start, stop)};
  }

  // The same for so few rows that vectors lie along the features: decode.h.
  static Moved forward_few(const Call& call, std::int64_t stream, Piece piece, void* partial, Room& room) {
    const Stream s(call, stream);
    const long d = call.d, d_v = call.d_v, cols = std::min(call.cols, call.n_k);
    const long q_length = up(d, L), out_length = up(d_v, L);
    const Rows rows = rows_of(piece.row, piece.rows);
    Sum* const q = room.take<Sum>(rows.count * q_length);
    Sum* const out = room.take<Sum>(rows.count * out_length);
    Sum* const scores = room.take<Sum>(cols * rows.lanes);
    Sum* const extra = call.bias.data || call.dropout > 0 ? room.take<Sum>(cols * rows.lanes) : nullptr;
    Sum* const sum_room = call.bias.data ? room.take<Sum>(L * up(cols, L)) : nullptr;
    Sum row_max[kLanesAtOnce], row_sum[kLanesAtOnce], factors[kLanesAtOnce];
    const auto q_row = s.row<const T>(call.q);
    const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
    pack_rows<T>([&](long r) { return q_row(rows.start + r); }, call.q.column, rows.count, d, q, q_length);
    std::fill_n(out, rows.count * out_length, Sum(0));
    std::fill_n(scores, cols * rows.lanes, Sum(0));  // of lanes without a row, too
    for (long lane = 0; lane < rows.lanes; lane++) {
      row_max[lane] = first_score(s, rows.start + std::min(lane, rows.count - 1), piece);
      row_sum[lane] = row_max[lane] == kLowest ? 0 : 1;
    }
    Moved moved{rows.count * d, 0};
    const auto [live, live_end] = live_keys(s, piece);
    for (long j = live; j < live_end; j += cols) {
      const long keys = std::min(cols, live_end - j);
      dots<T>(keys, rows.count, d, [&](long key) { return k_row(j + key); }, q, q_length, scores, rows.lanes,
              kRowsAhead * call.k.row);
      finish_tile(s, rows, j, keys, scores, nullptr, extra, sum_room);
      softmax(keys, rows.lanes, Sum(factor_left(call)), scores, row_max, row_sum, factors);
      if (call.dropout > 0) drop(s, rows, j, keys, scores, extra);
      weighted_sum<T>(keys, rows.count, d_v, [&](long key) { return v_row(j + key); }, scores, rows.lanes, factors, out,
                      out_length, kRowsAhead * call.v.row);
      moved.reads += keys * (d + d_v);
    }
    const auto out_row = s.row<T>(call.out);
    for (long r = 0; r < rows.count; r++) {
      if (partial) {
        Sum* const to = static_cast<Sum*>(partial) + (stream * call.stacked() + rows.start + r) * (d_v + 2);
        to[0] = row_max[r];
        to[1] = row_sum[r];
        std::copy_n(out + r * out_length, d_v, to + 2);
      } else {
        finish_row(s, rows.start + r, row_max[r], row_sum[r], out + r * out_length, out_row(rows.start + r));
      }
    }
    moved.writes += rows.count * (d_v + (partial ? 2 : 1));
    return moved;
  }

  static void finish_row(const Stream& s, long r, Sum top, Sum sum, const Sum* weighted, T* out) {
    at<Sum>(s.call.lse, 0)[s.number(r)] = log_sum(s.call, top, sum);
    unpack_row(weighted, s.call.d_v, sum == 0 ? Sum(0) : 1 / sum, out, s.call.out.column);
  }

  // The pieces' results for rows r0 .. of one stream, put together in their order.
  static Moved merge(const Call& call, std::int64_t stream, long r0, long count, const void* partials, long pieces,
                     Room& room) {
    const Stream s(call, stream);
    const long width = call.d_v + 2, piece_size = call.streams() * call.stacked() * width;
    Sum* const weighted = room.take<Sum>(call.d_v);
    const auto out_row = s.row<T>(call.out);
    for (long r = r0; r < r0 + count; r++) {
      const Sum* const first = static_cast<const Sum*>(partials) + (stream * call.stacked() + r) * width;
      Sum top = kLowest, sum = 0;
      for (long p = 0; p < pieces; p++) top = std::max(top, first[p * piece_size]);
      std::fill_n(weighted, call.d_v, Sum(0));
      for (long p = 0; p < pieces; p++) {
        const Sum* const part = first + p * piece_size;
        const Sum factor = part[0] == kLowest ? 0 : std::exp((part[0] - top) * Sum(factor_left(call)));
        sum += part[1] * factor;
        for (long c = 0; c < call.d_v; c++) weighted[c] += part[2 + c] * factor;
      }
      finish_row(s, r, top, sum, weighted, out_row(r));
    }
    return {pieces * count * width, count * (call.d_v + 1)};
  }

  // Scores as softmax takes them, options and mask applied.
  static void finish_tile(const Stream& s, const Rows& rows, long j, long keys, Sum* scores, Sum* slopes, Sum* extra,
                          Sum* sum_room) {
    if (!plain_scores(s.call)) finish_scores<Sum>(s, rows, j, keys, scores, slopes, extra, sum_room);
    if (!s.holds(rows.start, rows.count, j, keys)) mask_tile<Sum>(s, rows, j, keys, scores, kLowest);
  }
  static void drop(const Stream& s, const Rows& rows, long j, long keys, Sum* p, Sum* extra) {
    dropout_tile<Sum>(s, rows, j, keys, extra);
    for (long x = 0; x < keys * rows.lanes; x += L) store(p + x, load(p + x) * load(extra + x));
  }

  // One tile's step of the online softmax: scores <- e^(factor (score - the new maximum)); row_max and row_sum follow, and
  // `factors` is what earlier sums shrink by. The maximum is of scores without the factor, so that the largest weight is
  // exactly 1, however large scores are.
  static void softmax(long keys, long lanes, Sum factor, Sum* scores, Sum* row_max, Sum* row_sum, Sum* factors) {
    const V<Sum> scale = splat(factor * kLog2E), lowest = splat(kLowest);
    for (long v = 0; v < lanes; v += L) {
      V<Sum> tops[4] = {lowest, lowest, lowest, lowest};
      long key = 0;
      for (; key + 4 <= keys; key += 4)
#pragma GCC unroll 4
        for (int x = 0; x < 4; x++) tops[x] = larger<Sum>(load(scores + (key + x) * lanes + v), tops[x]);
      for (; key < keys; key++) tops[0] = larger<Sum>(load(scores + key * lanes + v), tops[0]);
      const V<Sum> old = load(row_max + v);
      const V<Sum> top = larger<Sum>(larger<Sum>(larger<Sum>(tops[0], tops[1]), larger<Sum>(tops[2], tops[3])), old);
      const V<Sum> base = top == lowest ? V<Sum>{} : top;  // a row that attends nothing so far: exp(-inf - 0) = 0
      const V<Sum> shrink = exp2<Sum>((old - base) * scale);
      V<Sum> sums[2] = {};
      for (key = 0; key + 2 <= keys; key += 2)
#pragma GCC unroll 2
        for (int x = 0; x < 2; x++) {
          Sum* const p = scores + (key + x) * lanes + v;
          const V<Sum> weight = exp2<Sum>((load(p) - base) * scale);
          sums[x] += weight;
          store(p, weight);
        }
      if (key < keys) {
        Sum* const p = scores + key * lanes + v;
        const V<Sum> weight = exp2<Sum>((load(p) - base) * scale);
        sums[0] += weight;
        store(p, weight);
      }
      store(row_max + v, top);
      store(row_sum + v, multiply_add<Sum>(load(row_sum + v), shrink, sums[0] + sums[1]));
      store(factors + v, shrink);
    }
  }

  // Backward. One tile: keys j .. j + keys - 1 against at most kLanesAtOnce rows. P and dS in the formats of what follows.
  struct Tile {
    Sum *p, *ds, *slopes, *extra, *room;
    Unit *p_rows, *ds_rows, *ds_panel;  // p_rows, ds_rows: units along the rows; ds_panel: along the keys

    Tile(const Call& call, long keys, Room& room) {
      const long size = up(keys, S) * kLanesAtOnce;
      p = room.take<Sum>(size);
      ds = room.take<Sum>(size);
      slopes = call.softcap ? room.take<Sum>(size) : nullptr;
      extra = call.bias.data || call.dropout > 0 ? room.take<Sum>(size) : nullptr;
      this->room = call.bias.data ? room.take<Sum>(L * up(keys, L)) : nullptr;
      if constexpr (S == 1) {
        p_rows = p;
        ds_rows = ds_panel = ds;
      } else {
        p_rows = room.take<Unit>(size / S);
        ds_rows = room.take<Unit>(size / S);
        ds_panel = room.take<Unit>(size / S);
      }
    }

    // p <- P (as dropped), ds <- dS. lse: +inf where the row attends nothing.
    void compute(const Stream& s, const Rows& rows, long j, long keys, const Packed* k, long k_length, const Packed* v,
                 long v_length, const Unit* q_panel, const Unit* dout_panel, const Sum* lse, const Sum* delta,
                 Ahead& ahead) {
      const Call& call = s.call;
      const long lanes = rows.lanes;
      product<F>(keys, lanes, units(call.d), as_units(k), k_length / S, 1, q_panel, lanes, p, lanes, Start::kZero,
                 nullptr, ahead);
      product<F>(keys, lanes, units(call.d_v), as_units(v), v_length / S, 1, dout_panel, lanes, ds, lanes, Start::kZero,
                 nullptr, ahead);
      const bool partial = !s.holds(rows.start, rows.count, j, keys);
      finish_tile(s, rows, j, keys, p, slopes, extra, room);
      const bool drops = call.dropout > 0;
      if (drops) dropout_tile<Sum>(s, rows, j, keys, extra);
      const V<Sum> factor = splat(Sum(factor_left(call)));
      for (long lane = 0; lane < lanes; lane += L) {
        const V<Sum> base = load(lse + lane), row_delta = load(delta + lane);
        for (long x = lane; x < keys * lanes; x += lanes) {
          // Rounded as lse was: where one score outweighs all others, its weight is 1.
          const V<Sum> weight = exp<Sum>(rounded<Sum>(load(p + x) * factor) - base);
          V<Sum> dp = load(ds + x);
          store(p + x, weight);
          if (drops) {
            const V<Sum> kept = load(extra + x);
            store(p + x, weight * kept);
            dp *= kept;
          }
          V<Sum> gradient = weight * (dp - row_delta);
          if (slopes) gradient *= load(slopes + x);
          store(ds + x, gradient);
        }
      }
      // What a row does not attend has no gradient, even where dP is infinite or NaN.
      if (partial) mask_tile<Sum>(s, rows, j, keys, ds, 0);
    }

    void pack(long keys, long lanes) {
      if constexpr (S == 2) {
        to_panels(p, keys, lanes, nullptr, reinterpret_cast<Packed*>(p_rows));
        to_panels(ds, keys, lanes, ds_panel, reinterpret_cast<Packed*>(ds_rows));
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

  // Row sums of dout * out, less the gradient of lse; and dQ = 0 where the whole block attends nothing.
  static Moved deltas(const Call& call, std::int64_t stream, long r0, long count, Room&) {
    const Stream s(call, stream);
    const auto out = s.row<const T>(call.out), dout = s.row<const T>(call.dout);
    for (long r = r0; r < r0 + count; r++) {
      const T *a = out(r), *b = dout(r);
      V<Sum> sums = V<Sum>{};
      Sum sum = 0;
      long c = 0;
      if constexpr (Wide<T>::kWhole)
        if (call.out.column == 1 && call.dout.column == 1)
          for (; c + L <= call.d_v; c += L)
            sums = multiply_add<Sum>(Wide<T>::load_wide(a + c), Wide<T>::load_wide(b + c), sums);
      for (; c < call.d_v; c++) sum += Sum(widen(a[c * call.out.column])) * widen(b[c * call.dout.column]);
      const auto number = s.number(r);
      at<Sum>(call.delta, 0)[number] =
          sum + sum_of_lanes<Sum>(sums) - (call.dlse.data ? at<const Sum>(call.dlse, 0)[number] : 0);
    }
    Moved moved{2 * count * call.d_v, count};
    const auto [live, live_end] = s.keys_of(r0, count);
    if (live < live_end) return moved;
    const auto dq = s.row<T>(call.dq);
    for (long r = r0; r < r0 + count; r++)
      for (long c = 0; c < call.d; c++) narrow(Sum(0), dq(r)[c * call.dq.column]);
    moved.writes += count * call.d;
    return moved;
  }

  // One block of keys of one stream: keys j0 .. j0 + count - 1 stay with their gradients, queries stream by. The shares
  // of dQ are added in the order of the keys, whichever thread has them: a block of rows waits for the block of keys
  // before. Blocks of keys are begun in that order, so the first one begun never waits.
  static Moved backward(const Call& call, std::int64_t stream, long j0, long count, Room& room) {
    const Stream s(call, stream);
    const long d = call.d, d_v = call.d_v, rows_total = call.stacked(), at_once = std::min<long>(count, kKeysAtOnce);
    const bool k_in_place = in_place(call.k, d), v_in_place = in_place(call.v, d_v), pairs = in_place_pairs(call.k);
    const bool stacked = call.group > 1;
    const bool q_in_place = !stacked && in_place_pairs(call.q) && d % L == 0;
    const bool dout_in_place = !stacked && in_place_pairs(call.dout) && d_v % L == 0;
    const long q_length = q_in_place ? call.q.row : padded(d), dout_length = dout_in_place ? call.dout.row : padded(d_v);
    const long k_length = k_in_place ? call.k.row : padded(d), v_length = v_in_place ? call.v.row : padded(d_v);
    const long pair_length = pairs ? call.k.row : padded(d), dk_length = up(d, L), dv_length = up(d_v, L);
    Unit* const q_panel = room.take<Unit>(units(d) * kLanesAtOnce);
    Unit* const dout_panel = room.take<Unit>(units(d_v) * kLanesAtOnce);
    Packed* const q_tile = q_in_place ? nullptr : room.take<Packed>(kLanesAtOnce * q_length);
    Packed* const dout_tile = dout_in_place ? nullptr : room.take<Packed>(kLanesAtOnce * dout_length);
    Packed* const k_tile = k_in_place ? nullptr : room.take<Packed>(count * k_length);
    Packed* const v_tile = v_in_place ? nullptr : room.take<Packed>(count * v_length);
    Packed* const k_pairs = S == 1 ? k_tile : room.take<Packed>(up(count, S) * pair_length);
    Sum* const dk = room.take<Sum>(count * dk_length);
    Sum* const dv = room.take<Sum>(count * dv_length);
    Sum lse[kLanesAtOnce], delta[kLanesAtOnce], scales[kLanesAtOnce];
    std::fill_n(scales, kLanesAtOnce, Sum(call.scale));
    Packed* const pack_room = room.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S);
    Tile tile(call, at_once, room);
    Moved moved;

    const auto q_row = s.row<const T>(call.q), dout_row = s.row<const T>(call.dout);
    const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
    const auto dq_row = s.row<T>(call.dq);
    if (!k_in_place) pack_rows<T>([&](long r) { return k_row(j0 + r); }, call.k.column, count, d, k_tile, k_length);
    if (!v_in_place) pack_rows<T>([&](long r) { return v_row(j0 + r); }, call.v.column, count, d_v, v_tile, v_length);
    if constexpr (S == 2)
      pack_pairs<F, T>([&](long r) { return k_row(j0 + r); }, call.k.column, count, d, k_pairs, pair_length, pack_room);
    const Packed* const k_rows = k_in_place ? reinterpret_cast<const Packed*>(k_row(j0)) : k_tile;
    const Packed* const v_rows = v_in_place ? reinterpret_cast<const Packed*>(v_row(j0)) : v_tile;
    const Packed* const k_units = S == 1 ? k_rows : k_pairs;
    const long unit_length = S == 1 ? k_length : pair_length;
    std::memset(static_cast<void*>(dk), 0, count * dk_length * sizeof(Sum));
    std::memset(static_cast<void*>(dv), 0, count * dv_length * sizeof(Sum));
    moved.reads += count * (d + d_v);

    // The rows that attend some of these keys.
    const std::int64_t low = call.group * (j0 - call.end + 1), high = call.group * (j0 + count - call.first);
    const long first = std::max<std::int64_t>(0, low), stop = std::min<std::int64_t>(rows_total, high);
    const std::int64_t blocks = (rows_total + kLanesAtOnce - 1) / kLanesAtOnce;
    for (long r0 = first / kLanesAtOnce * kLanesAtOnce; r0 < stop; r0 += kLanesAtOnce) {
      const Rows rows = rows_of(r0, std::min(kLanesAtOnce, rows_total - r0));
      const auto [live, live_end] = s.keys_of(r0, rows.count);
      if (std::max(live, j0) >= std::min(live_end, j0 + count)) continue;
      const auto q_from = [&](long r) { return q_row(r0 + r); };
      const auto dout_from = [&](long r) { return dout_row(r0 + r); };
      const long lanes = rows.lanes;
      pack_panel<F, T>(q_from, call.q.column, rows.count, lanes, d, q_panel, pack_room);
      pack_panel<F, T>(dout_from, call.dout.column, rows.count, lanes, d_v, dout_panel, pack_room);
      if (!q_in_place) pack_pairs<F, T>(q_from, call.q.column, rows.count, d, q_tile, q_length, pack_room);
      if (!dout_in_place) pack_pairs<F, T>(dout_from, call.dout.column, rows.count, d_v, dout_tile, dout_length, pack_room);
      const Packed* const q_rows = q_in_place ? reinterpret_cast<const Packed*>(q_row(r0)) : q_tile;
      const Packed* const dout_rows = dout_in_place ? reinterpret_cast<const Packed*>(dout_row(r0)) : dout_tile;
      row_sums(s, rows, lse, delta);
      moved.reads += rows.count * (d + d_v + 2);

      const long next = r0 + kLanesAtOnce, coming = stacked ? 0 : std::min(kLanesAtOnce, rows_total - next);
      Ahead ahead_q = ahead_of(call.q, q_row, next, coming, d), ahead_dout = ahead_of(call.dout, dout_row, next, coming, d_v);
      Ahead nothing_ahead;
      const std::int64_t block = stream * blocks + r0 / kLanesAtOnce;
      Sum* const dq_panel = static_cast<Sum*>(call.dq_panels) + block * d * kLanesAtOnce;
      // The first share of dQ finds nothing there yet, the last one leaves it in the caller's array.
      const bool first_share = live >= j0, last_share = live_end <= j0 + count;
      Start dq_start = first_share ? Start::kZero : Start::kSum;
      bool waits = !first_share;
      for (long x = 0; x < count; x += at_once) {
        const long from = std::max(x, std::max(0L, live - j0) / S * S);
        const long to = std::min(std::min(x + at_once, count), live_end - j0), keys = to - from;
        if (keys <= 0) continue;
        tile.compute(s, rows, j0 + from, keys, k_rows + from * k_length, k_length, v_rows + from * v_length, v_length,
                     q_panel, dout_panel, lse, delta, ahead_q);
        tile.pack(keys, lanes);
        product<F>(keys, dv_length, units(rows.count), tile.p_rows, lanes / S, 1, as_units(dout_rows), dout_length,
                   dv + from * dv_length, dv_length, Start::kSum, nullptr, ahead_dout);
        product<F>(keys, dk_length, units(rows.count), tile.ds_rows, lanes / S, 1, as_units(q_rows), q_length,
                   dk + from * dk_length, dk_length, Start::kSum, nullptr, ahead_dout);
        if (waits) call.progress->wait(block, j0 / call.cols);
        waits = false;
        product<F>(d, lanes, units(keys), as_units(k_units) + from / S * unit_length, 1, unit_length, tile.ds_panel, lanes,
                   dq_panel, lanes, dq_start, nullptr, nothing_ahead);
        dq_start = Start::kSum;
      }
      moved.reads += first_share ? 0 : rows.count * d;
      moved.writes += rows.count * d;
      if (last_share)
        unpack_panel<T>(dq_panel, lanes, rows.count, d, scales, [&](long r) { return dq_row(r0 + r); }, call.dq.column);
      call.progress->reach(block, j0 / call.cols + 1);
    }

    const auto dk_row = s.key<T>(call.dk), dv_row = s.key<T>(call.dv);
    for (long r = 0; r < count; r++) {
      unpack_row(dk + r * dk_length, d, Sum(call.scale), dk_row(j0 + r), call.dk.column);
      unpack_row(dv + r * dv_length, d_v, Sum(1), dv_row(j0 + r), call.dv.column);
    }
    moved.writes += count * (d + d_v);
    return moved;
  }

  // One piece of the bias's gradient: queries r0 .. and keys j0 .., the sum of dS over the `count` streams (of an unstacked
  // call) that share it, and over all queries or keys where it is broadcast along them. P and dS are computed once more.
  static Moved bias_gradient(const Call& call, const std::int64_t* streams, long count, Piece piece, Room& room) {
    const long d = call.d, d_v = call.d_v, at_once = std::min<long>(piece.keys, kKeysAtOnce);
    const bool k_in_place = in_place(call.k, d), v_in_place = in_place(call.v, d_v);
    const long k_length = k_in_place ? call.k.row : padded(d), v_length = v_in_place ? call.v.row : padded(d_v);
    Unit* const q_panel = room.take<Unit>(units(d) * kLanesAtOnce);
    Unit* const dout_panel = room.take<Unit>(units(d_v) * kLanesAtOnce);
    Packed* const k_tile = k_in_place ? nullptr : room.take<Packed>(at_once * k_length);
    Packed* const v_tile = v_in_place ? nullptr : room.take<Packed>(at_once * v_length);
    Packed* const pack_room = room.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S);
    Sum lse[kLanesAtOnce], delta[kLanesAtOnce];
    Tile tile(call, at_once, room);
    tile.slopes = nullptr;  // the bias is added after the softcap
    const long sum_rows = call.dbias.row ? piece.rows : 1, sum_keys = call.dbias.column ? piece.keys : 1;
    Sum* const sums = room.take<Sum>(sum_rows * sum_keys);
    std::fill_n(sums, sum_rows * sum_keys, Sum(0));
    Ahead nothing_ahead;
    for (long i = 0; i < count; i++) {
      const Stream s(call, streams[i]);
      const auto q_row = s.row<const T>(call.q), dout_row = s.row<const T>(call.dout);
      const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
      for (long r0 = piece.row; r0 < piece.row + piece.rows; r0 += kLanesAtOnce) {
        const Rows rows = rows_of(r0, std::min(kLanesAtOnce, piece.row + piece.rows - r0));
        const auto [live, live_end] = s.keys_of(r0, rows.count);
        const long first = std::max(live, piece.key), end = std::min(live_end, piece.key + piece.keys);
        if (first >= end) continue;
        pack_panel<F, T>([&](long r) { return q_row(r0 + r); }, call.q.column, rows.count, rows.lanes, d, q_panel, pack_room);
        pack_panel<F, T>([&](long r) { return dout_row(r0 + r); }, call.dout.column, rows.count, rows.lanes, d_v, dout_panel,
                         pack_room);
        row_sums(s, rows, lse, delta);
        for (long j = first; j < end; j += at_once) {
          const long keys = std::min(at_once, end - j);
          if (!k_in_place) pack_rows<T>([&](long x) { return k_row(j + x); }, call.k.column, keys, d, k_tile, k_length);
          if (!v_in_place) pack_rows<T>([&](long x) { return v_row(j + x); }, call.v.column, keys, d_v, v_tile, v_length);
          tile.compute(s, rows, j, keys, k_in_place ? reinterpret_cast<const Packed*>(k_row(j)) : k_tile, k_length,
                       v_in_place ? reinterpret_cast<const Packed*>(v_row(j)) : v_tile, v_length, q_panel, dout_panel, lse,
                       delta, nothing_ahead);
          for (long r = 0; r < rows.count; r++)
            for (long x = 0; x < keys; x++)
              sums[(call.dbias.row ? r0 - piece.row + r : 0) * sum_keys + (call.dbias.column ? j - piece.key + x : 0)] +=
                  tile.ds[x * rows.lanes + r];
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
