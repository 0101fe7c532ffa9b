// The schedules `hybrid` and `small_cache`, which write P to memory tile by tile: the forward pass, and helpers of both
// passes. Included once inside each target region (vector/region.h); spilled_passes.cpp splits the work into blocks and
// distributes them.
//
// P of a chunk of rows is stored as panels [panel][key][lane]; dS later replaces it in the same memory. Products
// broadcast single numbers of P (dV, dK) or load vectors of lanes (O, dQ). Rows and keys are divided into slices of
// `depth`: if no row of a slice attends any key of another, that part of P is neither written nor read. The words moved
// therefore equal the count of the schedule for the mask rounded outwards to whole slices.
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
    return spill.slopes ? static_cast<Sum*>(spill.slopes) + (panel(spill, row, key) - static_cast<Packed*>(spill.p))
                        : nullptr;
  }
  static void keep(const Sum* from, Packed* to, long count) {
    if (static_cast<const void*>(from) == to) return;
    for (long x = 0; x < count; x += L) Wide<Packed>::store_narrow(to + x, load(from + x));
  }

  // Records in spill.live which slices of keys these rows attend.
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
  // Calls use(key, keys) for each run of slices between `key` and `stop` that any of these rows attends.
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

  // Computes tiles of left right^T, summed over slices of features: rows of `left` lie in lanes, keys in rows. `stays`:
  // the left rows are packed once and stay in cache; otherwise they are streamed like the right rows.
  struct Scores {
    const Stream& s;
    const Array &left, &right;
    const long features, slice, row, count, lanes, groups;
    const bool stays, in_place;
    Unit* const panels;
    Packed *const packed, *const pack_scratch;
    Ahead nothing_ahead;

    Scores(const Stream& stream, const Spill& spill, const Array& l, const Array& r, long f, long depth, long first,
           long rows, long keys, bool stay, Arena& arena)
        : s(stream), left(l), right(r), features(f), slice(std::min(depth, f)), row(first), count(rows),
          lanes(spill.lanes), groups((rows + lanes - 1) / lanes), stays(stay), in_place(Base::in_place(r, f)),
          panels(arena.take<Unit>(groups * units(stay ? f : slice) * lanes)),
          packed(in_place ? nullptr : arena.take<Packed>(keys * up(slice, S * L))),
          pack_scratch(arena.take<Packed>(L * padded(stay ? f : slice) + 2 * L * S)) {
      if (stays) pack(0, features);
    }
    void pack(long f, long width) {
      const auto at = s.template row<const T>(left);
      for (long g = 0; g < groups; g++)
        pack_panel<F, T>(at.from(row + g * lanes, f * left.column), left.column, std::min(lanes, count - g * lanes),
                         lanes, width, panels + g * units(stays ? features : slice) * lanes, pack_scratch);
    }
    // tile + g * stride <- the product (keys x lanes) of panel g.
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
                     panels + (stays ? g * units(features) + f / S : g * units(slice)) * lanes, lanes,
                     tile + g * stride, lanes, f ? Start::kSum : Start::kZero, nullptr, nothing_ahead);
      }
    }
    std::int64_t moved(long keys) const { return (keys + (stays ? 0 : count)) * features; }
  };

  // Buffers for finishing a tile of scores.
  struct Extra {
    Sum *tile, *bias, *bias_scratch;
    // For `groups` panels of keys x lanes. If P is not stored as sums, scores are computed in `tile`, otherwise in
    // place.
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

  // Forward: computes P = exp(score - maximum) of rows r0 .. r0 + count - 1. Each tile of P has its own maximum of each
  // row. Also stores these maxima and lse.
  static Moved scores(const Call& call, const Spill& spill, long r0, long count, Arena& arena) {
    const Stream s(call, spill.stream);
    const long lanes = spill.lanes, cols = spill.tiles.cols, most = std::min<long>(cols, call.n_k);
    Scores product(s, spill, call.q, call.k, call.d, spill.depth, r0, count, most, spill.tiles.stays, arena);
    const Extra extra(call, spill, product.groups, most, arena);
    Sum* const stats = arena.take<Sum>(5 * product.groups * lanes);
    Sum *const row_max = stats, *const row_sum = stats + product.groups * lanes,
               *const own = stats + 2 * product.groups * lanes;
    const V<Sum> scale = splat(Sum(factor_left(call)) * Base::kLog2E), lowest = splat(kLowest);
    for (long r = 0; r < product.groups * lanes; r++) {
      const Sum sink = Results<T, F>::first_score(s, r0 + std::min(r, count - 1), Piece{});
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
      at<Sum>(call.lse, 0)[s.number(r0 + r)] = Results<T, F>::log_sum(call, row_max[r], row_sum[r]);
    return moved;
  }
  static Sum* tops(const Spill& spill, long row, long block) {
    return static_cast<Sum*>(spill.tops) + ((row - spill.row) / spill.lanes * spill.blocks + block) * spill.lanes;
  }

  // Computes rows r0 .. r0 + count - 1 of P V or, in backward, of dS K.
  static Moved by_rows(const Call& call, const Spill& spill, bool forward, long r0, long count, Arena& arena) {
    RowProduct product(call, spill, forward, r0, count, arena);
    for (long f = 0; f < product.features; f += product.most)
      product.compute(f, std::min(product.most, product.features - f));
    return product.moved;
  }

  // The state of `by_rows`. In forward, each row of a tile of P is weighted by e^(its maximum - lse).
  struct RowProduct {
    const Call& call;
    const Spill& spill;
    const Stream s;
    const bool forward;
    const Array &other, &result;  // V and O, or K and dQ
    const long row, count, lanes, groups, depth, features;
    const long most, keys_each;  // most: features at a time; keys_each: keys that share a weight
    const bool in_place;
    Sum *const tile, *const lse, *const weights;
    Packed *const packed, *const pack_scratch;
    Unit* const interleaved;
    Ahead nothing_ahead;
    Moved moved;

    RowProduct(const Call& c, const Spill& sp, bool is_forward, long r0, long rows, Arena& arena)
        : call(c), spill(sp), s(c, sp.stream), forward(is_forward), other(forward ? c.v : c.k),
          result(forward ? c.out : c.dq), row(r0), count(rows), lanes(sp.lanes), groups((rows + lanes - 1) / lanes),
          depth(sp.depth), features(forward ? c.d_v : c.d), most(std::min<long>(sp.tiles.out_cols, features)),
          keys_each(forward ? sp.tiles.cols : c.n_k), in_place(Base::in_place_pairs(other)),
          tile(arena.take<Sum>(groups * most * lanes)), lse(arena.take<Sum>(groups * lanes)),
          weights(arena.take<Sum>(groups * lanes)),
          packed(in_place ? nullptr : arena.take<Packed>(up(depth, S) * up(most, L))),
          pack_scratch(arena.take<Packed>(2 * std::max(lanes, up(most, L)))),
          interleaved(S == 1 ? nullptr : arena.take<Unit>(units(depth) * lanes)) {
      for (long r = 0; forward && r < groups * lanes; r++) {
        const Sum of_row = at<const Sum>(call.lse, 0)[s.number(row + std::min(r, count - 1))];
        lse[r] = of_row == kLowest ? -kLowest : of_row;  // rows without attended keys have weight 0
      }
      std::fill_n(weights, groups * lanes, Sum(1));
    }

    long rows_of_group(long g) const { return std::min(lanes, count - g * lanes); }
    bool group_meets(long g, long key, long keys) const {
      return spill.meets(row + g * lanes, rows_of_group(g), key, keys);
    }

    // Computes and writes features f .. f + width - 1.
    void compute(long f, long width) {
      std::fill_n(tile, groups * width * lanes, Sum(0));
      moved.reads += forward ? count : 0;
      for (long j = 0; j < call.n_k; j += keys_each) {
        const long stop = std::min<long>(call.n_k, j + keys_each);
        if (!spill.meets(row, count, j, stop - j)) continue;
        if (forward) set_weights(j, stop - j);
        for (long key = j; key < stop; key += depth) {
          const long keys = std::min(depth, stop - key);
          if (spill.meets(row, count, key, keys)) add_slice(f, width, key, keys);
        }
      }
      std::fill_n(weights, groups * lanes, Sum(1));
      const auto to = s.template row<T>(result);
      for (long g = 0; g < groups; g++)
        unpack_panel<T>(tile + g * width * lanes, lanes, rows_of_group(g), width, weights,
                        to.from(row + g * lanes, f * result.column), result.column);
      moved.writes += count * width;
    }

    // Sets the weights of the tiles of P that begin at key j.
    void set_weights(long j, long keys) {
      for (long g = 0; g < groups; g++) {
        if (!group_meets(g, j, keys)) continue;
        const Sum* const top = tops(spill, row + g * lanes, j / keys_each);
        for (long v = 0; v < lanes; v += L)
          store(weights + g * lanes + v,
                exp<Sum>(rounded<Sum>(load(top + v) * splat(Sum(factor_left(call)))) - load(lse + g * lanes + v)));
        moved.reads += rows_of_group(g);
      }
    }

    // Adds the products of P (or dS) with a slice of keys.
    void add_slice(long f, long width, long key, long keys) {
      const auto other_row = s.template key<const T>(other);
      const long length = in_place ? other.row : up(width, L);
      if (!in_place)
        pack_pairs<F, T>(other_row.from(key, f * other.column), other.column, keys, width, packed, length,
                         pack_scratch);
      const Packed* const from = in_place ? reinterpret_cast<const Packed*>(other_row(key)) + f : packed;
      moved.reads += keys * width;
      for (long g = 0; g < groups; g++) {
        if (!group_meets(g, key, keys)) continue;
        const Packed* const p = panel(spill, row + g * lanes, key);
        if constexpr (S == 2)
          pack_pairs<F, Packed>(ArrayRows<const Packed>{p, lanes, 1, 0}, 1, keys, lanes,
                                reinterpret_cast<Packed*>(interleaved), lanes, pack_scratch);
        product<F>(width, lanes, units(keys), as_units(from), 1, length, S == 1 ? as_units(p) : interleaved, lanes,
                   tile + g * width * lanes, lanes, forward ? Start::kWeighted : Start::kSum, weights + g * lanes,
                   nothing_ahead);
        moved.reads += rows_of_group(g) * keys;
      }
    }
  };
};
