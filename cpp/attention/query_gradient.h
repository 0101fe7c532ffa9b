// dQ of the schedule `flash`: queries and their gradient stay in cache, keys are streamed. Included once inside each
// target region (vector/region.h).
template <class T, class F>
struct Queries : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Packed, typename Base::Side, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::kLanesAtOnce, Base::L, Base::padded, Base::rows_of, Base::S, Base::units, Base::up;

  // Computes dQ and deltas of rows r0 .. r0 + count - 1 of one stream.
  static Moved run(const Call& call, std::int64_t stream, long r0, long count, Arena& arena) {
    const Stream s(call, stream);
    for (long r = r0; r < r0 + count; r++) GradientTile<T, F>::store_delta(s, r);
    Block block(call, stream, r0, count, arena);
    for (long key = block.next(0); key < call.n_k; key = block.next(key + block.cols)) block.add_window(key);
    block.finish();
    return block.moved;
  }

  // The state of `run`. The panels of a block share each window of dq_cols keys.
  struct Block {
    const Call& call;
    const Stream s;
    const long start, count, d, d_v, groups, cols;  // start: the first row; groups: panels
    const bool k_in_place, v_in_place;
    const long k_length, v_length, pair_length;          // of a packed row, in numbers
    const long q_size, dout_size, dq_size;               // of a panel, in units or sums
    Unit *const q_panels, *const dout_panels;
    Sum *const dq_panels, *const lse, *const delta;
    Packed *const k_tile, *const v_tile, *const k_pairs, *const pack_scratch;
    GradientTile<T, F> tile;
    Chunk chunk;
    bool* const used;  // whether a panel attends the keys of a window
    const ArrayRows<const T> k_row, v_row;
    Ahead nothing_ahead;
    Moved moved;
    std::vector<Walk> walks;

    Block(const Call& c, std::int64_t stream, long r0, long rows, Arena& arena)
        : call(c), s(c, stream), start(r0), count(rows), d(c.d), d_v(c.d_v),
          groups((rows + kLanesAtOnce - 1) / kLanesAtOnce), cols(up(std::min(c.dq_cols, c.n_k), S)),
          k_in_place(Base::in_place(c.k, c.d)), v_in_place(Base::in_place(c.v, c.d_v)),
          k_length(k_in_place ? c.k.row : padded(d)), v_length(v_in_place ? c.v.row : padded(d_v)),
          pair_length(Base::in_place_pairs(c.k) ? c.k.row : padded(d)), q_size(units(d) * kLanesAtOnce),
          dout_size(units(d_v) * kLanesAtOnce), dq_size(d * kLanesAtOnce), q_panels(arena.take<Unit>(groups * q_size)),
          dout_panels(arena.take<Unit>(groups * dout_size)), dq_panels(arena.take<Sum>(groups * dq_size)),
          lse(arena.take<Sum>(groups * kLanesAtOnce)), delta(arena.take<Sum>(groups * kLanesAtOnce)),
          k_tile(k_in_place ? nullptr : arena.take<Packed>(cols * k_length)),
          v_tile(v_in_place ? nullptr : arena.take<Packed>(cols * v_length)),
          k_pairs(S == 1 ? k_tile : arena.take<Packed>(cols * pair_length)),
          pack_scratch(arena.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S)), tile(c, cols + S, arena),
          chunk(arena, cols + S), used(arena.take<bool>(cols)), k_row(s.template key<const T>(c.k)),
          v_row(s.template key<const T>(c.v)), moved{count * (d + 2 * d_v + 1), count * (d + 1)} {
      const auto q_row = s.template row<const T>(call.q), dout_row = s.template row<const T>(call.dout);
      for (long g = 0; g < groups; g++) {
        const Rows rows = rows_of_panel(g);
        walks.emplace_back(s, rows, 0, call.n_k);
        pack_panel<F, T>(q_row.from(rows.start), call.q.column, rows.count, rows.lanes, d, q_panels + g * q_size,
                         pack_scratch);
        pack_panel<F, T>(dout_row.from(rows.start), call.dout.column, rows.count, rows.lanes, d_v,
                         dout_panels + g * dout_size, pack_scratch);
        GradientTile<T, F>::row_sums(s, rows, lse + g * kLanesAtOnce, delta + g * kLanesAtOnce);
      }
      std::fill_n(dq_panels, groups * dq_size, Sum(0));
    }

    Rows rows_of_panel(long g) const {
      return rows_of(start + g * kLanesAtOnce, std::min(kLanesAtOnce, count - g * kLanesAtOnce));
    }
    // The first key at or beyond `key` that some panel attends.
    long next(long key) {
      long first = Walk::kNone;
      for (Walk& walk : walks) first = std::min(first, walk.next(key));
      return first;
    }

    // The rows of K and V that the products of a window read. pairs: K with neighbouring keys interleaved.
    struct Sides {
      Side k, v, pairs;
    };
    Sides pack_window(long j0, long keys) {
      if (!k_in_place) pack_rows<T>(k_row.from(j0), call.k.column, keys, d, k_tile, k_length);
      if (!v_in_place) pack_rows<T>(v_row.from(j0), call.v.column, keys, d_v, v_tile, v_length);
      if constexpr (S == 2)
        pack_pairs<F, T>(k_row.from(j0), call.k.column, keys, d, k_pairs, pair_length, pack_scratch);
      const Side k{k_in_place ? reinterpret_cast<const Packed*>(k_row(j0)) : k_tile, k_length, j0, false};
      const Side v{v_in_place ? reinterpret_cast<const Packed*>(v_row(j0)) : v_tile, v_length, j0, false};
      return {k, v, S == 1 ? k : Side{k_pairs, pair_length, j0, false}};
    }

    // Adds the contributions of the window's keys to dQ of all panels.
    void add_window(long j0) {
      const long keys = std::min<long>(cols, call.n_k - j0);
      const Sides sides = pack_window(j0, keys);
      std::fill_n(used, keys, false);
      for (long g = 0; g < groups; g++)
        for (long key = walks[g].next(j0); key < j0 + keys;) {
          key = chunk.fill(walks[g], key, j0 + keys, cols + S, S, j0);
          for (long i = 0; i < chunk.parts_count; i++)
            std::fill_n(used + (chunk.parts[i].j - j0), chunk.parts[i].keys, true);
          add_chunk(g, sides);
        }
      moved.reads += std::count(used, used + keys, true) * (d + d_v);
    }
    void add_chunk(long g, const Sides& sides) {
      const Rows rows = rows_of_panel(g);
      tile.compute(s, rows, chunk, sides.k, sides.v, q_panels + g * q_size, dout_panels + g * dout_size,
                   lse + g * kLanesAtOnce, delta + g * kLanesAtOnce, nothing_ahead);
      tile.pack(chunk.rows, rows.lanes);
      Base::each_stretch(chunk, false, [&](const Stretch& x) {
        product<F>(d, rows.lanes, units(x.keys), as_units(sides.pairs.of(x)), 1, sides.pairs.length,
                   tile.ds_panel + x.at / S * rows.lanes, rows.lanes, dq_panels + g * dq_size, rows.lanes, Start::kSum,
                   nullptr, nothing_ahead);
      });
    }

    // Writes dQ.
    void finish() const {
      Sum scales[kLanesAtOnce];
      std::fill_n(scales, kLanesAtOnce, Sum(call.scale));
      const auto dq_row = s.template row<T>(call.dq);
      for (long g = 0; g < groups; g++) {
        const Rows rows = rows_of_panel(g);
        unpack_panel<T>(dq_panels + g * dq_size, rows.lanes, rows.count, d, scales, dq_row.from(rows.start),
                        call.dq.column);
      }
    }
  };
};
