// The gradient of the bias, in a separate pass. Included once inside each target region (vector/region.h).
template <class T, class F>
struct BiasGradient : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Packed, typename Base::Side, typename Base::Sum, typename Base::Unit;
  using Base::kLanesAtOnce, Base::L, Base::padded, Base::rows_of, Base::S, Base::units;
  using Tile = GradientTile<T, F>;

  // Computes one piece of the gradient: queries from piece.row on and keys from piece.key on. It is the sum of dS over
  // the `count` streams (of an unstacked call) that share the piece, and over all queries or keys along which the bias
  // is broadcast. P and dS are recomputed.
  static Moved run(const Call& call, const std::int64_t* streams, long count, Piece piece, Arena& arena) {
    Block block(call, piece, arena);
    for (long i = 0; i < count; i++) block.add_stream(Stream(call, streams[i]));
    block.store_sums(Stream(call, streams[0]));
    return {};
  }

  // The state of `run`.
  struct Block {
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
    const long sum_keys;  // 1 if the bias is broadcast along the keys
    Sum* const sums;      // [key][lane]; panels add to the same lanes if the bias is broadcast along the queries
    Sum lse[kLanesAtOnce], delta[kLanesAtOnce];
    Ahead nothing_ahead;

    Block(const Call& c, Piece part, Arena& arena)
        : call(c), piece(part), d(c.d), d_v(c.d_v), at_once(std::min<long>(part.keys, Tile::kKeysAtOnce)),
          k_in_place(Base::in_place(c.k, c.d)), v_in_place(Base::in_place(c.v, c.d_v)),
          k_length(k_in_place ? c.k.row : padded(d)), v_length(v_in_place ? c.v.row : padded(d_v)),
          q_panel(arena.take<Unit>(units(d) * kLanesAtOnce)), dout_panel(arena.take<Unit>(units(d_v) * kLanesAtOnce)),
          k_tile(k_in_place ? nullptr : arena.take<Packed>(at_once * k_length)),
          v_tile(v_in_place ? nullptr : arena.take<Packed>(at_once * v_length)),
          pack_scratch(arena.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S)), tile(c, at_once, arena),
          chunk(arena, at_once), list(arena.take<long>(at_once)), sum_keys(c.dbias.column ? part.keys : 1),
          sums(arena.take<Sum>(sum_keys * kLanesAtOnce)) {
      tile.slopes = nullptr;  // the bias is added after the softcap
      std::fill_n(sums, sum_keys * kLanesAtOnce, Sum(0));
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
        Tile::row_sums(s, rows, lse, delta);
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
        for (long x = 0; x < part.keys; x++) {
          const Sum* const ds = tile.ds + (part.at + x) * rows.lanes;
          Sum* const to = sums + (call.dbias.column ? part.j - piece.key + x : 0) * kLanesAtOnce;
          for (long r = 0; r < rows.count; r++) to[r] += ds[r];
        }
      }
    }

    void store_sums(const Stream& s) const {
      Sum* const to = at<Sum>(call.dbias, s.offset(call.dbias)) + s.kv_head * call.dbias.head;
      for (long x = 0; x < sum_keys; x++) {
        Sum* const key_sums = sums + x * kLanesAtOnce;
        for (long r = 1; r < kLanesAtOnce && !call.dbias.row; r++) key_sums[0] += key_sums[r];
        for (long r = 0; r < (call.dbias.row ? piece.rows : 1); r++)
          to[(piece.row + r) * call.dbias.row + (piece.key + x) * call.dbias.column] = key_sums[r];
      }
    }
  };
};
