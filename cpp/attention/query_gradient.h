// The backward pass of the schedule `flash`, dQ: queries stay with their gradient, keys stream by. Included once inside
// each target region of isa.cpp.
template <class T, class F>
struct Queries : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Packed, typename Base::Side, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::kLanesAtOnce, Base::L, Base::padded, Base::rows_of, Base::S, Base::units, Base::up;

  // dQ and deltas of rows r0 .. r0 + count - 1 of one stream. The panels of a block share each window of dq_cols keys.
  static Moved run(const Call& call, std::int64_t stream, long r0, long count, Arena& arena) {
    const Stream s(call, stream);
    const long d = call.d, d_v = call.d_v, groups = (count + kLanesAtOnce - 1) / kLanesAtOnce;
    const long cols = up(std::min(call.dq_cols, call.n_k), S);
    const bool k_in_place = Base::in_place(call.k, d), v_in_place = Base::in_place(call.v, d_v);
    const bool pairs_in_place = Base::in_place_pairs(call.k);
    const long k_length = k_in_place ? call.k.row : padded(d), v_length = v_in_place ? call.v.row : padded(d_v);
    const long pair_length = pairs_in_place ? call.k.row : padded(d);
    const long q_panel = units(d) * kLanesAtOnce, dout_panel = units(d_v) * kLanesAtOnce, dq_panel = d * kLanesAtOnce;
    Unit* const q_panels = arena.take<Unit>(groups * q_panel);
    Unit* const dout_panels = arena.take<Unit>(groups * dout_panel);
    Sum* const dq_panels = arena.take<Sum>(groups * dq_panel);
    Sum* const lse = arena.take<Sum>(groups * kLanesAtOnce);
    Sum* const delta = arena.take<Sum>(groups * kLanesAtOnce);
    Packed* const k_tile = k_in_place ? nullptr : arena.take<Packed>(cols * k_length);
    Packed* const v_tile = v_in_place ? nullptr : arena.take<Packed>(cols * v_length);
    Packed* const k_pairs = S == 1 ? k_tile : arena.take<Packed>(cols * pair_length);
    Packed* const pack_scratch = arena.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S);
    typename Backward<T, F>::Tile tile(call, cols + S, arena);
    Chunk chunk(arena, cols + S);
    bool* const used = arena.take<bool>(cols);  // of a window's keys
    Sum scales[kLanesAtOnce];
    std::fill_n(scales, kLanesAtOnce, Sum(call.scale));
    Ahead nothing_ahead;
    Moved moved{count * (d + 2 * d_v + 1), count * (d + 1)};

    const auto q_row = s.row<const T>(call.q), dout_row = s.row<const T>(call.dout);
    const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
    const auto group_rows = [&](long g) {
      return rows_of(r0 + g * kLanesAtOnce, std::min(kLanesAtOnce, count - g * kLanesAtOnce));
    };
    std::vector<Walk> walks;
    for (long r = r0; r < r0 + count; r++) Backward<T, F>::store_delta(s, r);
    for (long g = 0; g < groups; g++) {
      const Rows rows = group_rows(g);
      walks.emplace_back(s, rows, 0, call.n_k);
      pack_panel<F, T>(q_row.from(rows.start), call.q.column, rows.count, rows.lanes, d,
                       q_panels + g * q_panel, pack_scratch);
      pack_panel<F, T>(dout_row.from(rows.start), call.dout.column, rows.count, rows.lanes, d_v,
                       dout_panels + g * dout_panel, pack_scratch);
      Backward<T, F>::row_sums(s, rows, lse + g * kLanesAtOnce, delta + g * kLanesAtOnce);
    }
    std::fill_n(dq_panels, groups * dq_panel, Sum(0));
    const auto next = [&](long key) {
      long first = Walk::kNone;
      for (Walk& walk : walks) first = std::min(first, walk.next(key));
      return first;
    };

    for (long j0 = next(0); j0 < call.n_k; j0 = next(j0 + cols)) {
      const long keys = std::min<long>(cols, call.n_k - j0);
      if (!k_in_place) pack_rows<T>(k_row.from(j0), call.k.column, keys, d, k_tile, k_length);
      if (!v_in_place) pack_rows<T>(v_row.from(j0), call.v.column, keys, d_v, v_tile, v_length);
      if constexpr (S == 2)
        pack_pairs<F, T>(k_row.from(j0), call.k.column, keys, d, k_pairs, pair_length, pack_scratch);
      const Side k{k_in_place ? reinterpret_cast<const Packed*>(k_row(j0)) : k_tile, k_length, j0, false};
      const Side v{v_in_place ? reinterpret_cast<const Packed*>(v_row(j0)) : v_tile, v_length, j0, false};
      const Side pairs = S == 1 ? k : Side{k_pairs, pair_length, j0, false};
      std::fill_n(used, keys, false);
      for (long g = 0; g < groups; g++) {
        const Rows rows = group_rows(g);
        for (long key = walks[g].next(j0); key < j0 + keys;) {
          key = chunk.fill(walks[g], key, j0 + keys, cols + S, S, j0);
          for (long i = 0; i < chunk.parts_count; i++)
            std::fill_n(used + (chunk.parts[i].j - j0), chunk.parts[i].keys, true);
          tile.compute(s, rows, chunk, k, v, q_panels + g * q_panel, dout_panels + g * dout_panel, lse + g * kLanesAtOnce,
                       delta + g * kLanesAtOnce, nothing_ahead);
          tile.pack(chunk.rows, rows.lanes);
          Base::each_stretch(chunk, false, [&](const Stretch& x) {
            product<F>(d, rows.lanes, units(x.keys), as_units(pairs.of(x)), 1, pairs.length,
                       tile.ds_panel + x.at / S * rows.lanes, rows.lanes, dq_panels + g * dq_panel, rows.lanes, Start::kSum,
                       nullptr, nothing_ahead);
          });
        }
      }
      moved.reads += std::count(used, used + keys, true) * (d + d_v);
    }
    const auto dq_row = s.row<T>(call.dq);
    for (long g = 0; g < groups; g++) {
      const Rows rows = group_rows(g);
      unpack_panel<T>(dq_panels + g * dq_panel, rows.lanes, rows.count, d, scales,
                      dq_row.from(rows.start), call.dq.column);
    }
    return moved;
  }
};
