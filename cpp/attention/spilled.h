// The schedules `hybrid` and `small_cache`: P is written to memory, tile by tile. Included once inside each target region
// of isa.cpp; which blocks there are and who does them: spilled.cpp.
//
// P of a chunk of rows, and later dS in its place, lies in panels [panel][key][lane], as packed: products broadcast it
// along keys (dV, dK) or load it along lanes (O, dQ). Rows and keys count by slices of `depth`: what no row of a slice
// attends in a slice of keys is neither written nor read. So the words are those of the schedule for a mask that is
// widened to whole slices.
template <class T, class F>
struct Spilled : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Packed, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::kLowest, Base::L, Base::padded, Base::S, Base::units, Base::up;

  static Packed* panel(const Spill& spill, long row, long key) {
    return static_cast<Packed*>(spill.p) + ((row - spill.row) / spill.lanes * spill.keys + key) * spill.lanes;
  }
  static Rows rows_at(const Spill& spill, long row, long count) {
    return {row, std::min<long>(spill.lanes, count), long(spill.lanes)};
  }
  static Sum* slopes_at(const Spill& spill, long row, long key) {
    return spill.slopes ? static_cast<Sum*>(spill.slopes) + (panel(spill, row, key) - static_cast<Packed*>(spill.p)) : nullptr;
  }
  static void keep(const Sum* from, Packed* to, long count) {
    if (static_cast<const void*>(from) == to) return;
    for (long x = 0; x < count; x += L) Wide<Packed>::store_narrow(to + x, load(from + x));
  }

  // Which slices of keys these rows attend, in the spill's map.
  static void mark(const Stream& s, const Spill& spill, long r0, long count) {
    const long depth = spill.depth;
    std::uint8_t* const first = spill.live + (r0 - spill.row) / depth * spill.slices;
    std::memset(first, 0, (count + depth - 1) / depth * spill.slices);
    for (long r = 0; r < count; r += spill.lanes) {
      const Rows rows = rows_at(spill, r0 + r, count - r);
      std::uint8_t* const live = first + r / depth * spill.slices;
      Walk walk(s, rows, 0, s.call.n_k);
      for (long key = walk.next(0); key < s.call.n_k;) {
        const long stop = key + walk.part(key, s.call.n_k).keys;
        std::memset(live + key / depth, 1, (stop - 1) / depth + 1 - key / depth);
        key = walk.next(stop);
      }
    }
  }
  // use(key, keys) for each run of slices, from `key` up to `stop`, that some of these rows attend.
  template <class Use>
  static void each_run(const Spill& spill, long row, long rows, long key, long stop, Use use) {
    const auto from = [&](bool live) {
      while (key < stop && spill.meets(row, rows, key, 1) != live) key = (key / spill.depth + 1) * spill.depth;
      return key = std::min(key, stop);
    };
    while (from(true) < stop) {
      const long first = key;
      use(first, from(false) - first);
    }
  }

  // tile (keys x lanes) <- `nothing` where a row does not attend a key.
  static void mask(const Stream& s, const Rows& rows, long j, long keys, Sum* tile, Sum nothing) {
    Walk walk(s, rows, j, j + keys);
    long done = j;
    for (long key = walk.next(j); key < j + keys; key = walk.next(done)) {
      const Part part = walk.part(key, j + keys);
      std::fill_n(tile + (done - j) * rows.lanes, (key - done) * rows.lanes, nothing);
      mask_part<Sum>(s, rows, part, tile + (key - j) * rows.lanes, nothing);
      done = key + part.keys;
    }
    std::fill_n(tile + (done - j) * rows.lanes, (j + keys - done) * rows.lanes, nothing);
  }

  // Tiles of left right^T, summed over slices of features: rows of `left` in lanes, keys in rows. The left rows stay,
  // packed once, or stream by as those on the right do.
  struct Scores {
    const Stream& s;
    const Array &left, &right;
    const long features, slice, row, count, lanes, groups;
    const bool stays, in_place;
    Unit* const panels;
    Packed *const packed, *const pack_scratch;
    Ahead nothing_ahead;

    Scores(const Stream& stream, const Spill& spill, const Array& l, const Array& r, long f, long depth, long first, long rows,
           long keys, bool stay, Arena& arena)
        : s(stream), left(l), right(r), features(f), slice(std::min(depth, f)), row(first), count(rows), lanes(spill.lanes),
          groups((rows + lanes - 1) / lanes), stays(stay), in_place(Base::in_place(r, f)),
          panels(arena.take<Unit>(groups * units(stay ? f : slice) * lanes)),
          packed(in_place ? nullptr : arena.take<Packed>(keys * up(slice, S * L))),
          pack_scratch(arena.take<Packed>(L * padded(stay ? f : slice) + 2 * L * S)) {
      if (stays) pack(0, features);
    }
    void pack(long f, long width) {
      const auto at = s.template row<const T>(left);
      for (long g = 0; g < groups; g++)
        pack_panel<F, T>(at.from(row + g * lanes, f * left.column), left.column,
                         std::min(lanes, count - g * lanes), lanes, width, panels + g * units(stays ? features : slice) * lanes,
                         pack_scratch);
    }
    // tile + g * stride <- the keys x lanes of panel g.
    void compute(long key, long keys, Sum* tile, long stride) {
      const auto at = s.template key<const T>(right);
      for (long f = 0; f < features; f += slice) {
        const long width = std::min(slice, features - f), length = in_place ? right.row : up(width, S * L);
        if (!stays) pack(f, width);
        if (!in_place)
          pack_rows<T>(at.from(key, f * right.column), right.column, keys, width, packed, length);
        const Packed* const from = in_place ? reinterpret_cast<const Packed*>(at(key)) + f : packed;
        for (long g = 0; g < groups; g++)
          product<F>(keys, lanes, units(width), as_units(from), length / S, 1,
                     panels + (stays ? g * units(features) + f / S : g * units(slice)) * lanes, lanes, tile + g * stride, lanes,
                     f ? Start::kSum : Start::kZero, nullptr, nothing_ahead);
      }
    }
    std::int64_t moved(long keys) const { return (keys + (stays ? 0 : count)) * features; }
  };

  // What a tile of scores needs besides itself.
  struct Extra {
    Sum *tile, *bias, *bias_scratch;
    // groups of keys x lanes; where P is not kept in sums, they are computed in a tile.
    Extra(const Call& call, const Spill& spill, long groups, long keys, Arena& from)
        : tile(S == 1 ? nullptr : from.take<Sum>(groups * keys * spill.lanes)),
          bias(call.bias.data || call.dropout > 0 ? from.take<Sum>(keys * spill.lanes) : nullptr),
          bias_scratch(call.bias.data ? from.take<Sum>(L * up(keys, L)) : nullptr) {}
    Sum* scores(const Spill& spill, long row, long key) const {
      return S == 1 ? reinterpret_cast<Sum*>(panel(spill, row, key)) : tile;
    }
    static long stride(const Spill& spill, long keys) { return (S == 1 ? spill.keys : keys) * spill.lanes; }
    void finish(const Stream& s, const Rows& rows, long j, long keys, Sum* scores, Sum* slopes) const {
      if (!plain_scores(s.call)) finish_scores<Sum>(s, rows, j, keys, scores, slopes, bias, bias_scratch);
      mask(s, rows, j, keys, scores, kLowest);
    }
  };

  // Forward, rows r0 ..: P = exp(scores - their tile's maxima), these maxima, and lse.
  static Moved scores(const Call& call, const Spill& spill, long r0, long count, Arena& arena) {
    const Stream s(call, spill.stream);
    const long lanes = spill.lanes, cols = spill.tiles.cols, most = std::min<long>(cols, call.n_k);
    Scores product(s, spill, call.q, call.k, call.d, spill.depth, r0, count, most, spill.tiles.stays, arena);
    const Extra extra(call, spill, product.groups, most, arena);
    Sum* const stats = arena.take<Sum>(5 * product.groups * lanes);
    Sum *const row_max = stats, *const row_sum = stats + product.groups * lanes, *const own = stats + 2 * product.groups * lanes;
    const V<Sum> scale = splat(Sum(factor_left(call)) * Base::kLog2E), lowest = splat(kLowest);
    for (long r = 0; r < product.groups * lanes; r++) {
      const Sum sink = Forward<T, F>::first_score(s, r0 + std::min(r, count - 1), Piece{});
      row_max[r] = sink, row_sum[r] = sink == kLowest ? 0 : 1;
    }
    Moved moved{spill.tiles.stays ? count * call.d : 0, count};
    mark(s, spill, r0, count);
    for (long j = 0; j < call.n_k; j += cols) {
      const long keys = std::min<long>(cols, call.n_k - j), stride = Extra::stride(spill, most);
      if (!spill.meets(r0, count, j, keys)) continue;
      Sum* const tile = extra.scores(spill, r0, j);
      product.compute(j, keys, tile, stride);
      for (long g = 0; g < product.groups; g++) {
        const Rows rows = rows_at(spill, r0 + g * lanes, count - g * lanes);
        Sum *const p = tile + g * stride, *const top = own, *const sum = own + lanes, *const factors = own + 2 * lanes;
        extra.finish(s, rows, j, keys, p, nullptr);
        std::fill_n(top, lanes, kLowest);
        std::fill_n(sum, lanes, Sum(0));
        Base::softmax(keys, lanes, Sum(factor_left(call)), p, top, sum, factors);
        for (long v = g * lanes; v < (g + 1) * lanes; v += L) {
          const V<Sum> old = load(row_max + v), here = load(top + v - g * lanes), both = larger<Sum>(here, old);
          const V<Sum> base = both == lowest ? V<Sum>{} : both;
          store(row_sum + v, load(row_sum + v) * exp2<Sum>((old - base) * scale) +
                                 load(sum + v - g * lanes) * exp2<Sum>((here - base) * scale));
          store(row_max + v, both);
        }
        std::copy_n(top, lanes, tops(spill, rows.start, j / cols));
        if (call.dropout > 0) {
          dropout_tile<Sum>(s, rows, j, keys, extra.bias);
          for (long x = 0; x < keys * lanes; x += L) store(p + x, load(p + x) * load(extra.bias + x));
        }
        keep(p, panel(spill, rows.start, j), keys * lanes);
      }
      moved.reads += product.moved(keys);
      moved.writes += count * (keys + 1);
    }
    for (long r = 0; r < count; r++)
      at<Sum>(call.lse, 0)[s.number(r0 + r)] = Forward<T, F>::log_sum(call, row_max[r], row_sum[r]);
    return moved;
  }
  static Sum* tops(const Spill& spill, long row, long block) {
    return static_cast<Sum*>(spill.tops) + ((row - spill.row) / spill.lanes * spill.blocks + block) * spill.lanes;
  }

  // Rows r0 .. of P V (weighed by what each tile's maximum is to the row's lse) or of dS K.
  static Moved by_rows(const Call& call, const Spill& spill, bool forward, long r0, long count, Arena& arena) {
    const Stream s(call, spill.stream);
    const Array& other = forward ? call.v : call.k;
    const long lanes = spill.lanes, groups = (count + lanes - 1) / lanes, depth = spill.depth, features = forward ? call.d_v : call.d;
    const long most = std::min<long>(spill.tiles.out_cols, features), keys_each = forward ? spill.tiles.cols : call.n_k;
    const bool in_place = Base::in_place_pairs(other);
    Sum* const tile = arena.take<Sum>(groups * most * lanes);
    Sum* const lse = arena.take<Sum>(groups * lanes);
    Sum* const weights = arena.take<Sum>(groups * lanes);
    Packed* const packed = in_place ? nullptr : arena.take<Packed>(up(depth, S) * up(most, L));
    Packed* const pack_scratch = arena.take<Packed>(2 * std::max(lanes, up(most, L)));
    Unit* const interleaved = S == 1 ? nullptr : arena.take<Unit>(units(depth) * lanes);
    Ahead nothing_ahead;
    Moved moved;
    if (forward) {
      for (long r = 0; r < groups * lanes; r++) {
        const Sum of_row = at<const Sum>(call.lse, 0)[s.number(r0 + std::min(r, count - 1))];
        lse[r] = of_row == kLowest ? -kLowest : of_row;  // a row that attends nothing weighs nothing
      }
    }
    std::fill_n(weights, groups * lanes, Sum(1));
    const auto rows_of_group = [&](long g) { return std::min(lanes, count - g * lanes); };
    const auto other_row = s.template key<const T>(other);
    const auto to = s.template row<T>(forward ? call.out : call.dq);
    for (long f = 0; f < features; f += most) {
      const long width = std::min(most, features - f), length = in_place ? other.row : up(width, L);
      std::fill_n(tile, groups * width * lanes, Sum(0));
      moved.reads += forward ? count : 0;
      for (long j = 0; j < call.n_k; j += keys_each) {
        const long stop = std::min<long>(call.n_k, j + keys_each);
        if (!spill.meets(r0, count, j, stop - j)) continue;
        for (long g = 0; forward && g < groups; g++) {
          if (!spill.meets(r0 + g * lanes, rows_of_group(g), j, stop - j)) continue;
          const Sum* const top = tops(spill, r0 + g * lanes, j / keys_each);
          for (long v = 0; v < lanes; v += L)
            store(weights + g * lanes + v,
                  exp<Sum>(rounded<Sum>(load(top + v) * splat(Sum(factor_left(call)))) - load(lse + g * lanes + v)));
          moved.reads += rows_of_group(g);
        }
        for (long key = j; key < stop; key += depth) {
          const long keys = std::min(depth, stop - key);
          if (!spill.meets(r0, count, key, keys)) continue;
          if (!in_place)
            pack_pairs<F, T>(other_row.from(key, f * other.column), other.column, keys, width, packed,
                             length, pack_scratch);
          const Packed* const from = in_place ? reinterpret_cast<const Packed*>(other_row(key)) + f : packed;
          moved.reads += keys * width;
          for (long g = 0; g < groups; g++) {
            if (!spill.meets(r0 + g * lanes, rows_of_group(g), key, keys)) continue;
            const Packed* const p = panel(spill, r0 + g * lanes, key);
            if constexpr (S == 2)
              pack_pairs<F, Packed>(ArrayRows<const Packed>{p, lanes, 1, 0}, 1, keys, lanes,
                                    reinterpret_cast<Packed*>(interleaved), lanes, pack_scratch);
            product<F>(width, lanes, units(keys), as_units(from), 1, length, S == 1 ? as_units(p) : interleaved, lanes,
                       tile + g * width * lanes, lanes, forward ? Start::kWeighed : Start::kSum, weights + g * lanes,
                       nothing_ahead);
            moved.reads += rows_of_group(g) * keys;
          }
        }
      }
      std::fill_n(weights, groups * lanes, Sum(1));
      for (long g = 0; g < groups; g++)
        unpack_panel<T>(tile + g * width * lanes, lanes, rows_of_group(g), width, weights,
                        to.from(r0 + g * lanes, f * (forward ? call.out : call.dq).column),
                        (forward ? call.out : call.dq).column);
      moved.writes += count * width;
    }
    return moved;
  }
};
