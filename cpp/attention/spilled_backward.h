// The backward passes of `hybrid` and `small_cache`, and the function of each phase. Included once inside each target
// region (vector/region.h).
template <class T, class F>
struct SpilledBackward : Spilled<T, F> {
  using Base = Spilled<T, F>;
  using typename Base::Extra, typename Base::Packed, typename Base::Scores, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::keep, Base::L, Base::padded, Base::panel, Base::rows_at, Base::S, Base::units, Base::up;

  // Runs one block of a phase: rows or keys first .. first + count - 1.
  static Moved phase(const Call& call, const Spill& spill, Phase phase, long first, long count, Arena& arena) {
    const SpillTiles& t = spill.tiles;
    switch (phase) {
      case Phase::kScores: return Base::scores(call, spill, first, count, arena);
      case Phase::kOutputs: return Base::by_rows(call, spill, true, first, count, arena);
      case Phase::kDeltas: return deltas(call, spill, first, count);
      case Phase::kWeights: return weights(call, spill, first, count, arena);
      case Phase::kValues: {
        const Gradient dv{call.dout, call.dv, spill.dv, long(call.d_v), long(t.dv_cols), call.dropout > 0};
        return by_keys(call, spill, dv, first, count, arena);
      }
      case Phase::kProducts: return products(call, spill, first, count, arena);
      case Phase::kBoth: return both(call, spill, first, count, arena);
      case Phase::kQueries: return Base::by_rows(call, spill, false, first, count, arena);
      case Phase::kKeys: {
        const Gradient dk{call.q, call.dk, spill.dk, long(call.d), long(t.dk_cols), false};
        return by_keys(call, spill, dk, first, count, arena);
      }
    }
    return {};
  }

  static Moved deltas(const Call& call, const Spill& spill, long r0, long count) {
    const Stream s(call, spill.stream);
    for (long r = r0; r < r0 + count; r++) GradientTile<T, F>::store_delta(s, r);
    return {2 * count * call.d_v, count};
  }

  // Computes P of rows r0 .. r0 + count - 1, before dropout.
  static Moved weights(const Call& call, const Spill& spill, long r0, long count, Arena& arena) {
    const Stream s(call, spill.stream);
    const bool stays = spill.tiles.stays;
    const long lanes = spill.lanes, cols = stays ? spill.depth : long(spill.tiles.cols),
               most = std::min<long>(cols, call.n_k);
    // Scores are summed over the same slices as in forward. Other slices would round differently, and exp(score - lse)
    // magnifies the difference for large scores.
    Scores product(s, spill, call.q, call.k, call.d, spill.depth, r0, count, most, stays, arena);
    const Extra extra(call, spill, product.groups, most, arena);
    Sum *const lse = arena.take<Sum>(product.groups * lanes), *const delta = arena.take<Sum>(lanes);
    for (long g = 0; g < product.groups; g++)
      GradientTile<T, F>::row_sums(s, rows_at(spill, r0 + g * lanes, count - g * lanes), lse + g * lanes, delta);
    const V<Sum> factor = splat(Sum(factor_left(call)));
    Moved moved{count * (stays ? call.d + 1 : 1), 0};
    Base::mark(s, spill, r0, count);
    for (long j = 0; j < call.n_k; j += cols) {
      const long keys = std::min<long>(cols, call.n_k - j), stride = Extra::stride(spill, most);
      if (!spill.meets(r0, count, j, keys)) continue;
      Sum* const tile = extra.scores(spill, r0, j);
      product.compute(j, keys, tile, stride);
      for (long g = 0; g < product.groups; g++) {
        const Rows rows = rows_at(spill, r0 + g * lanes, count - g * lanes);
        Sum* const p = tile + g * stride;
        extra.finish(s, rows, j, keys, p, Base::slopes_at(spill, rows.start, j));
        for (long v = 0; v < lanes; v += L) {
          const V<Sum> base = load(lse + g * lanes + v);
          // Rounded as in the computation of lse, so that a dominant score has weight exactly 1.
          for (long x = v; x < keys * lanes; x += lanes)
            store(p + x, exp<Sum>(rounded<Sum>(load(p + x) * factor) - base));
        }
        keep(p, panel(spill, rows.start, j), keys * lanes);
      }
      moved.reads += product.moved(keys);
      moved.writes += count * keys * (spill.slopes ? 2 : 1);
    }
    return moved;
  }

  // p <- scale dS, computed from P in p and dO V^T in `tile` (keys x lanes).
  static void differentiate(const Stream& s, const Rows& rows, long j, long keys, Sum* tile, Packed* p,
                            const Sum* delta, const Sum* slopes, Sum* kept) {
    const Call& call = s.call;
    const bool drops = call.dropout > 0;
    if (drops) dropout_tile<Sum>(s, rows, j, keys, kept);
    const V<Sum> scale = splat(Sum(call.scale));
    for (long v = 0; v < rows.lanes; v += L) {
      const V<Sum> of_row = load(delta + v);
      for (long x = v; x < keys * rows.lanes; x += rows.lanes) {
        V<Sum> dp = load(tile + x);
        if (drops) dp *= load(kept + x);
        V<Sum> gradient = Wide<Packed>::load_wide(p + x) * (dp - of_row) * scale;
        if (slopes) gradient *= load(slopes + x);
        store(tile + x, gradient);
      }
    }
    // Keys that a row does not attend have no gradient, even if dP is infinite or NaN.
    Base::mask(s, rows, j, keys, tile, Sum(0));
    keep(tile, p, keys * rows.lanes);
  }

  // Replaces P by dS in rows r0 .. r0 + count - 1.
  static Moved products(const Call& call, const Spill& spill, long r0, long count, Arena& arena) {
    const Stream s(call, spill.stream);
    const long lanes = spill.lanes, cols = spill.tiles.cols, most = std::min<long>(cols, call.n_k);
    Scores product(s, spill, call.dout, call.v, call.d_v, spill.depth, r0, count, most, false, arena);
    Sum* const tile = arena.take<Sum>(product.groups * most * lanes);
    Sum* const kept = arena.take<Sum>(call.dropout > 0 ? most * lanes : 0);
    Sum *const lse = arena.take<Sum>(lanes), *const delta = arena.take<Sum>(product.groups * lanes);
    for (long g = 0; g < product.groups; g++)
      GradientTile<T, F>::row_sums(s, rows_at(spill, r0 + g * lanes, count - g * lanes), lse, delta + g * lanes);
    Moved moved{count, 0};
    for (long j = 0; j < call.n_k; j += cols) {
      const long keys = std::min<long>(cols, call.n_k - j);
      if (!spill.meets(r0, count, j, keys)) continue;
      product.compute(j, keys, tile, keys * lanes);
      for (long g = 0; g < product.groups; g++) {
        const Rows rows = rows_at(spill, r0 + g * lanes, count - g * lanes);
        differentiate(s, rows, j, keys, tile + g * keys * lanes, panel(spill, rows.start, j), delta + g * lanes,
                      Base::slopes_at(spill, rows.start, j), kept);
      }
      moved.reads += product.moved(keys) + count * keys * (spill.slopes ? 2 : 1);
      moved.writes += count * keys;
    }
    return moved;
  }

  // dK or dV, to which every chunk of rows adds.
  struct Gradient {
    const Array &other, &to;  // the other factor of the product (Q or dO), and the gradient's array
    void* kept;               // sums of earlier chunks, in rows of `features`; null: `to` holds them
    long features, cols;
    bool drops;  // whether dropout applies to the first factor, P

    // Loads the sums of `keys` keys and `width` features, from `key` and `f` on, into a tile (keys x length).
    void fetch(const Stream& s, long key, long keys, long f, long width, Sum* tile, long length) const {
      const Sum* const sums = static_cast<const Sum*>(kept);
      const auto row = s.template key<const T>(to);
      if (sums)
        pack_rows<Sum>(ArrayRows<const Sum>{sums + key * features + f, features, 1, 0}, 1, keys, width, tile, length);
      else
        pack_rows<T>(row.from(key, f * to.column), to.column, keys, width, tile, length);
    }
    void put(const Stream& s, bool last, long key, long keys, long f, long width, const Sum* tile, long length) const {
      const auto row = s.template key<T>(to);
      for (long r = 0; r < keys; r++)
        if (kept && !last)
          unpack_row(tile + r * length, width, Sum(1), static_cast<Sum*>(kept) + (key + r) * features + f, 1);
        else
          unpack_row(tile + r * length, width, Sum(1), row(key + r) + f * to.column, to.column);
    }
    // Handles keys to which this chunk adds nothing: the last chunk writes their sums, or zeros, to the array.
    Moved rest(const Stream& s, const Spill& spill, long key, long keys, Arena& arena) const {
      if (!spill.last) return {};
      const bool begun = spill.has_begun(key, keys);
      if (begun && !kept) return {};
      const long length = up(features, L);
      Sum* const row = arena.take<Sum>(length);
      for (long r = 0; r < keys; r++) {
        if (begun)
          fetch(s, key + r, 1, 0, features, row, length);
        else
          std::fill_n(row, length, Sum(0));
        put(s, true, key + r, 1, 0, features, row, length);
      }
      return {0, begun ? 0 : keys * features};
    }
  };

  // The rows of the other factor, read in place or packed.
  struct Streamed {
    const Array& array;
    const bool in_place;
    const long most;
    Packed *const packed, *const scratch;

    Streamed(const Call& call, const Array& a, long depth, long cols, long features, Arena& from)
        : array(a), in_place(call.group == 1 && Base::in_place_pairs(a) && cols % L == 0 && features % L == 0),
          most(up(cols, L)), packed(in_place ? nullptr : from.take<Packed>(up(depth, S) * most)),
          scratch(from.take<Packed>(2 * most)) {}
    // Returns rows first .. first + rows - 1 from feature f on. Sets `length` to the length of a row in units.
    const Packed* take(const Stream& s, long first, long rows, long f, long width, long& length) const {
      const auto row = s.template row<const T>(array);
      length = in_place ? array.row : up(width, L);
      if (in_place) return reinterpret_cast<const Packed*>(row(first)) + f;
      pack_pairs<F, T>(row.from(first, f * array.column), array.column, rows, width, packed, length, scratch);
      return packed;
    }
  };

  // Copies P of one panel and applies dropout to the copy.
  static const Packed* dropped(const Stream& s, const Rows& rows, long key, long keys, const Packed* p, Packed* copy,
                               Sum* kept) {
    dropout_tile<Sum>(s, rows, key, keys, kept);
    for (long x = 0; x < keys * rows.lanes; x += L)
      Wide<Packed>::store_narrow(copy + x, Wide<Packed>::load_wide(p + x) * load(kept + x));
    return copy;
  }

  // Computes keys j0 .. j0 + count - 1 of P^T dO or dS^T Q.
  static Moved by_keys(const Call& call, const Spill& spill, const Gradient& gradient, long j0, long count,
                       Arena& arena) {
    const Stream s(call, spill.stream);
    if (!spill.meets(spill.row, spill.rows, j0, count)) return gradient.rest(s, spill, j0, count, arena);
    const long lanes = spill.lanes, depth = spill.depth, features = gradient.features,
               most = std::min(gradient.cols, features);
    const bool begun = spill.has_begun(j0, count);
    Sum* const tile = arena.take<Sum>(count * up(most, L));
    const Streamed streamed(call, gradient.other, depth, most, features, arena);
    Packed* const copy = arena.take<Packed>(gradient.drops ? count * lanes : 0);
    Sum* const kept = arena.take<Sum>(gradient.drops ? count * lanes : 0);
    Ahead nothing_ahead;
    Moved moved;
    for (long f = 0; f < features; f += most) {
      const long width = std::min(most, features - f), length = up(width, L);
      if (begun)
        gradient.fetch(s, j0, count, f, width, tile, length);
      else
        std::fill_n(tile, count * length, Sum(0));
      for (long first = spill.row; first < spill.row + spill.rows; first += depth) {
        const long rows = std::min<long>(depth, spill.row + spill.rows - first);
        if (!spill.meets(first, rows, j0, count)) continue;
        long other_length;
        const Packed* const other = streamed.take(s, first, rows, f, width, other_length);
        moved.reads += rows * width;
        Base::each_run(spill, first, rows, j0, j0 + count, [&](long key, long keys) {
          for (long r = 0; r < rows; r += lanes) {
            const Rows of_panel = rows_at(spill, first + r, rows - r);
            const Packed* p = panel(spill, of_panel.start, key);
            if (gradient.drops) p = dropped(s, of_panel, key, keys, p, copy, kept);
            product<F>(keys, length, units(of_panel.count), as_units(p), lanes / S, 1,
                       as_units(other) + r / S * other_length, other_length, tile + (key - j0) * length, length,
                       Start::kSum, nullptr, nothing_ahead);
          }
          moved.reads += rows * keys;
        });
      }
      gradient.put(s, spill.last, j0, count, f, width, tile, length);
      moved.reads += begun ? count * width : 0;
      moved.writes += count * width;
    }
    return moved;
  }

  // Computes dV of keys j0 .. j0 + count - 1, and replaces P by dS. The keys and their dV stay in cache, rows are
  // streamed.
  static Moved both(const Call& call, const Spill& spill, long j0, long count, Arena& arena) {
    const Stream s(call, spill.stream);
    const Gradient gradient{call.dout, call.dv, spill.dv, long(call.d_v), long(call.d_v), call.dropout > 0};
    if (!spill.meets(spill.row, spill.rows, j0, count)) {
      Moved moved = gradient.rest(s, spill, j0, count, arena);
      moved.reads += moved.writes;  // V has as many words as dV; the schedule reads V before it looks for rows
      return moved;
    }
    KeyBlock block(s, spill, gradient, j0, count, arena);
    for (long first = spill.row; first < spill.row + spill.rows; first += spill.depth) {
      const long rows = std::min<long>(spill.depth, spill.row + spill.rows - first);
      if (spill.meets(first, rows, j0, count)) block.add_slice(first, rows);
    }
    gradient.put(s, spill.last, j0, count, 0, call.d_v, block.dv, block.length);
    return block.moved;
  }

  // The state of `both`.
  struct KeyBlock {
    const Stream& s;
    const Call& call;
    const Spill& spill;
    const Gradient& gradient;
    const long start, stop, lanes, depth, d_v, length;  // start, stop: of the keys; length: of a row of dv
    const bool in_place;
    const long v_length, at_once;  // at_once: rows of `tile`
    Sum* const dv;
    Packed* const packed;
    Unit* const panels;
    Packed* const pack_scratch;
    const Streamed streamed;
    Sum *const tile, *const lse, *const delta;
    Packed* const copy;
    Sum* const kept;
    const Packed* v;
    Ahead nothing_ahead;
    Moved moved;

    KeyBlock(const Stream& stream, const Spill& sp, const Gradient& g, long j0, long count, Arena& arena)
        : s(stream), call(stream.call), spill(sp), gradient(g), start(j0), stop(j0 + count), lanes(sp.lanes),
          depth(sp.depth), d_v(call.d_v), length(up(d_v, L)), in_place(Base::in_place(call.v, d_v)),
          v_length(in_place ? call.v.row : padded(d_v)), at_once(std::min(depth, count)),
          dv(arena.take<Sum>(count * length)), packed(in_place ? nullptr : arena.take<Packed>(count * v_length)),
          panels(arena.take<Unit>(units(d_v) * depth)), pack_scratch(arena.take<Packed>(L * padded(d_v) + 2 * L * S)),
          streamed(call, call.dout, depth, d_v, d_v, arena), tile(arena.take<Sum>(at_once * lanes)),
          lse(arena.take<Sum>(lanes)), delta(arena.take<Sum>(depth)),
          copy(arena.take<Packed>(g.drops ? count * lanes : 0)), kept(arena.take<Sum>(g.drops ? count * lanes : 0)) {
      const bool begun = spill.has_begun(start, count);
      const auto v_row = s.template key<const T>(call.v);
      if (!in_place) pack_rows<T>(v_row.from(start), call.v.column, count, d_v, packed, v_length);
      v = in_place ? reinterpret_cast<const Packed*>(v_row(start)) : packed;
      if (begun)
        gradient.fetch(s, start, count, 0, d_v, dv, length);
      else
        std::fill_n(dv, count * length, Sum(0));
      moved = {count * d_v * (begun ? 2 : 1), count * d_v};
    }

    // Adds the contributions of a slice of rows.
    void add_slice(long first, long rows) {
      long other_length;
      const Packed* const other = streamed.take(s, first, rows, 0, d_v, other_length);
      const auto dout_row = s.template row<const T>(call.dout);
      for (long r = 0; r < rows; r += lanes) {
        const Rows of_panel = rows_at(spill, first + r, rows - r);
        pack_panel<F, T>(dout_row.from(of_panel.start), call.dout.column, of_panel.count, lanes, d_v,
                         panels + units(d_v) * r, pack_scratch);
        GradientTile<T, F>::row_sums(s, of_panel, lse, delta + r);
      }
      moved.reads += rows * (d_v + 1);
      Base::each_run(spill, first, rows, start, stop, [&](long key, long keys) {
        for (long r = 0; r < rows; r += lanes)
          add_run(rows_at(spill, first + r, rows - r), key, keys, as_units(other) + r / S * other_length, other_length,
                  r);
        moved.reads += rows * keys * (spill.slopes ? 2 : 1);
        moved.writes += rows * keys;
      });
    }

    // Adds the contributions of a run of keys and one panel, which begins at row r of the slice. dout: the panel's rows
    // of dO.
    void add_run(const Rows& rows, long key, long keys, const Unit* dout, long dout_length, long r) {
      Packed* const p = panel(spill, rows.start, key);
      const Packed* const weights = gradient.drops ? dropped(s, rows, key, keys, p, copy, kept) : p;
      product<F>(keys, length, units(rows.count), as_units(weights), lanes / S, 1, dout, dout_length,
                 dv + (key - start) * length, length, Start::kSum, nullptr, nothing_ahead);
      for (long x = 0; x < keys; x += at_once) {
        const long some = std::min(at_once, keys - x);
        product<F>(some, lanes, units(d_v), as_units(v + (key - start + x) * v_length), v_length / S, 1,
                   panels + units(d_v) * r, lanes, tile, lanes, Start::kZero, nullptr, nothing_ahead);
        differentiate(s, rows, key + x, some, tile, p + x * lanes, delta + r,
                      Base::slopes_at(spill, rows.start, key + x), kept);
      }
    }
  };
};
