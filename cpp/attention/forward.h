// The forward pass: the schedule `flash`. Included once inside each target region of isa.cpp.
template <class T, class F>
struct Forward : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Packed, typename Base::Side, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::kLanesAtOnce, Base::kLowest, Base::L, Base::padded, Base::rows_of, Base::S, Base::units, Base::up;

  // The log-sum-exp of a row from its maximum and its sum.
  static Sum log_sum(const Call& call, Sum top, Sum sum) {
    return Sum(double(top) * Sum(factor_left(call)) + std::log(double(sum)));  // the factor as backward has it
  }

  // One block of rows of one stream against a range of keys. partial: null where these are all keys; else unfinished
  // results go there, (maximum, sum, d_v features) per stacked row, for `merge`.
  //
  // The panels of a block share each window of `cols` keys; a panel alone takes its next `cols` keys wherever they lie.
  static Moved run(const Call& call, std::int64_t stream, Piece piece, void* partial, Arena& arena) {
    if (call.few) return run_few(call, stream, piece, partial, arena);
    const long r0 = piece.row, count = piece.rows;
    const Stream s(call, stream);
    const long d = call.d, d_v = call.d_v, groups = (count + kLanesAtOnce - 1) / kLanesAtOnce;
    const long cols = up(std::min(call.cols, call.n_k), S), most = cols + S;
    const bool windows = groups > 1, k_in_place = Base::in_place(call.k, d), v_in_place = Base::in_place_pairs(call.v);
    const long k_length = padded(d), v_length = padded(d_v);
    Unit* const q_panels = arena.take<Unit>(groups * units(d) * kLanesAtOnce);
    Sum* const out_panels = arena.take<Sum>(groups * d_v * kLanesAtOnce);
    Sum* const row_max = arena.take<Sum>(groups * kLanesAtOnce);
    Sum* const row_sum = arena.take<Sum>(groups * kLanesAtOnce);
    Sum* const factors = arena.take<Sum>(kLanesAtOnce);
    Sum* const tops = arena.take<Sum>(kLanesAtOnce);
    Packed* const k_tile = k_in_place && windows ? nullptr : arena.take<Packed>(most * k_length);
    Packed* const v_tile = v_in_place && windows ? nullptr : arena.take<Packed>(most * v_length);
    Sum* const scores = arena.take<Sum>(most * kLanesAtOnce);
    Unit* const p_panel = S == 1 ? reinterpret_cast<Unit*>(scores) : arena.take<Unit>(units(most) * kLanesAtOnce);
    Sum* const extra = call.bias.data || call.dropout > 0 ? arena.take<Sum>(most * kLanesAtOnce) : nullptr;
    Packed* const pack_scratch = arena.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S);
    Sum* const bias_scratch = call.bias.data ? arena.take<Sum>(L * up(most, L)) : nullptr;
    Chunk chunk(arena, most);
    long* const list = arena.take<long>(most);
    bool* const used = arena.take<bool>(cols);  // of a window's keys
    Moved moved;

    const auto q_row = s.row<const T>(call.q);
    const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
    const auto group_rows = [&](long g) {
      return rows_of(r0 + g * kLanesAtOnce, std::min(kLanesAtOnce, count - g * kLanesAtOnce));
    };
    std::vector<Panel> panels;
    const long end = std::min<std::int64_t>(call.n_k, piece.key + piece.keys);
    for (long g = 0; g < groups; g++) {
      const Rows rows = group_rows(g);
      panels.push_back({Walk(s, rows, piece.key, end)});
      for (long lane = 0; lane < kLanesAtOnce; lane++) {
        const long r = rows.start + std::min(lane, rows.count - 1);
        const Sum sink = first_score(s, r, piece);
        row_max[g * kLanesAtOnce + lane] = sink;
        row_sum[g * kLanesAtOnce + lane] = sink == kLowest ? 0 : 1;
      }
    }
    std::memset(static_cast<void*>(out_panels), 0, groups * d_v * kLanesAtOnce * sizeof(Sum));
    moved.reads += count * d;
    const auto next = [&](long key) {
      long first = Walk::kNone;
      for (Panel& panel : panels) first = std::min(first, panel.walk.next(key));
      return first;
    };
    const auto pack_v = [&](auto row, long keys, Packed* to) {
      pack_pairs<F, T>(row, call.v.column, keys, d_v, to, v_length, pack_scratch);
    };

    // Queries are read when they are first needed, and results written as soon as they are there: the next panel's, and
    // this one's place, can then be fetched while products are computed.
    Ahead ahead;
    const auto begin = [&](long g) {
      const Rows rows = group_rows(g);
      pack_panel<F, T>(q_row.from(rows.start), call.q.column, rows.count, rows.lanes, d,
                       q_panels + g * units(d) * kLanesAtOnce, pack_scratch);
      panels[g].begun = true;
      if (g + 1 < groups && call.group == 1)
        Base::add_ahead(ahead, call.q, q_row, group_rows(g + 1).start, group_rows(g + 1).count, d);
    };
    const auto out_row = s.row<T>(call.out);
    const auto lse_row = s.row<Sum>(call.lse);
    const auto finish = [&](long g) {
      const Rows rows = group_rows(g);
      const Sum *const top = row_max + g * kLanesAtOnce, *const sum = row_sum + g * kLanesAtOnce;
      const Sum* const panel = out_panels + g * d_v * kLanesAtOnce;
      panels[g].done = true;
      if (partial) {
        Sum* to = static_cast<Sum*>(partial) + (stream * call.stacked() + rows.start) * (d_v + 2);
        for (long lane = 0; lane < rows.count; lane++, to += d_v + 2) {
          to[0] = top[lane];
          to[1] = sum[lane];
          for (long c = 0; c < d_v; c++) to[2 + c] = panel[c * rows.lanes + lane];
        }
        return;
      }
      for (long lane = 0; lane < rows.lanes; lane++) factors[lane] = sum[lane] == 0 || lane >= rows.count ? 0 : 1 / sum[lane];
      for (long lane = 0; lane < rows.count; lane++) *lse_row(rows.start + lane) = log_sum(call, top[lane], sum[lane]);
      unpack_panel<T>(panel, rows.lanes, rows.count, d_v, factors, out_row.from(rows.start),
                      call.out.column);
    };

    for (long j0 = next(piece.key); j0 < end;) {
      const long limit = windows ? std::min(j0 + cols, end) : end;
      if (windows) std::fill_n(used, limit - j0, false);
      const Side array_k{reinterpret_cast<const Packed*>(k_row(0)), long(call.k.row), 0, false};
      const Side array_v{reinterpret_cast<const Packed*>(v_row(0)), long(call.v.row), 0, false};
      const Side window_k = k_in_place ? array_k : Side{k_tile, k_length, j0, false};
      const Side window_v = v_in_place ? array_v : Side{v_tile, v_length, j0, false};
      // In a window K and V are packed once for all panels, where they must be
      bool packed = !windows || (k_in_place && v_in_place);
      long stop = limit;
      for (long g = 0; g < groups; g++) {
        const Rows rows = group_rows(g);
        const long lanes = rows.lanes;
        Walk& walk = panels[g].walk;
        for (long key = walk.next(j0); key < limit;) {
          key = chunk.fill(walk, key, limit, windows ? most : cols, windows && !v_in_place ? S : 1, j0);
          if (!windows) stop = key;
          if (!packed) {
            if (!k_in_place)
              pack_rows<T>(k_row.from(j0), call.k.column, limit - j0, d, k_tile, k_length);
            if (!v_in_place) pack_v(v_row.from(j0), limit - j0, v_tile);
            packed = true;
          }
          Side k_side = window_k, v_side = window_v;
          if (!windows) {
            const bool copy_k = !k_in_place || chunk.scattered(), copy_v = !v_in_place || chunk.scattered();
            if (copy_k || copy_v) chunk.list(list);
            if (copy_k) pack_rows<T>(ListedRows<const T>{k_row, list}, call.k.column, chunk.rows, d, k_tile, k_length);
            if (copy_v) pack_v(ListedRows<const T>{v_row, list}, chunk.rows, v_tile);
            if (copy_k) k_side = {k_tile, k_length, 0, true};
            if (copy_v) v_side = {v_tile, v_length, 0, true};
            moved.reads += chunk.keys * (d + d_v);
          } else {
            for (long i = 0; i < chunk.parts_count; i++)
              std::fill_n(used + (chunk.parts[i].j - j0), chunk.parts[i].keys, true);
          }
          if (g == 0 && stop < end) {
            ahead.clear();  // of what has not been fetched by now, too little would be
            const long coming = std::min(cols, end - stop);
            Base::add_ahead(ahead, call.v, v_row, stop, coming, d_v);
            Base::add_ahead(ahead, call.k, k_row, stop, coming, d);
          }
          if (!panels[g].begun) begin(g);
          if (key >= end && !partial && call.group == 1) Base::add_ahead(ahead, call.out, out_row, rows.start, rows.count, d_v);
          // Where scores need nothing before the softmax, their maxima are taken while products are in registers.
          Sum* const known = chunk.whole() && chunk.keys == chunk.rows && Base::finished(s, rows, chunk) ? tops : nullptr;
          std::fill_n(tops, lanes, kLowest);
          Base::each_stretch(chunk, k_side.by_place, [&](const Stretch& x) {
            product<F>(x.keys, lanes, units(d), as_units(k_side.of(x)), k_side.length / S, 1,
                       q_panels + g * units(d) * kLanesAtOnce, lanes, scores + x.at * lanes, lanes, Start::kZero, nullptr,
                       ahead, known);
          });
          if (!known) Base::finish_chunk(s, rows, chunk, scores, nullptr, extra, bias_scratch);
          Base::softmax(chunk.rows, lanes, Sum(factor_left(call)), scores, row_max + g * kLanesAtOnce, row_sum + g * kLanesAtOnce,
                        factors, known);
          if (call.dropout > 0) drop(s, rows, chunk, scores, extra);
          if constexpr (S == 2) Base::to_panels(scores, chunk.rows, lanes, p_panel, nullptr);
          Start start = Start::kScaled;
          Base::each_stretch(chunk, v_side.by_place, [&](const Stretch& x) {
            product<F>(d_v, lanes, units(x.keys), as_units(v_side.of(x)), 1, v_side.length, p_panel + x.at / S * lanes,
                       lanes, out_panels + g * d_v * kLanesAtOnce, lanes, start, factors, ahead);
            start = Start::kSum;
          });
        }
        if (!panels[g].done && walk.next(limit) >= end) finish(g);
      }
      if (windows) moved.reads += std::count(used, used + (limit - j0), true) * (d + d_v);
      j0 = next(windows ? limit : end);
    }

    for (long g = 0; g < groups; g++)
      if (!panels[g].done) finish(g);
    moved.writes += count * (d_v + (partial ? 2 : 1));
    return moved;
  }

  // Of a block of rows: the keys that it has still to see; whether its queries are packed, its results written.
  struct Panel {
    Walk walk;
    bool begun = false, done = false;
  };

  // What a row's maximum starts from: its head's sink, which the first piece of the keys counts.
  static Sum first_score(const Stream& s, long r, const Piece& piece) {
    const bool has = s.call.sinks.data && piece.key == 0;
    return has ? at<const Sum>(s.call.sinks, 0)[s.kv_head * s.call.group + r % s.call.group] : kLowest;
  }

  static void drop(const Stream& s, const Rows& rows, const Chunk& chunk, Sum* p, Sum* extra) {
    for (long i = 0; i < chunk.parts_count; i++) {
      const Part& part = chunk.parts[i];
      Sum* const tile = p + part.at * rows.lanes;
      dropout_tile<Sum>(s, rows, part.j, part.keys, extra);
      for (long x = 0; x < part.keys * rows.lanes; x += L) store(tile + x, load(tile + x) * load(extra + x));
    }
  }

  // How many rows of an array to read ahead. Several queries take L keys in turns: what comes then lies beyond these.
  static long rows_ahead(long columns, long queries) {
    return std::max<long>(queries == 1 ? 1 : L, kBytesAhead / (columns * long(sizeof(T))));
  }
  // The same for so few rows that vectors lie along the features: decode.h.
  static Moved run_few(const Call& call, std::int64_t stream, Piece piece, void* partial, Arena& arena) {
    const Stream s(call, stream);
    const long d = call.d, d_v = call.d_v, cols = std::min(call.cols, call.n_k);
    const long q_length = up(d, L), out_length = up(d_v, L);
    const Rows rows = rows_of(piece.row, piece.rows);
    Sum* const q = arena.take<Sum>(rows.count * q_length);
    Sum* const out = arena.take<Sum>(rows.count * out_length);
    Sum* const scores = arena.take<Sum>(rows.count * up(cols, L));  // [row][key]
    Sum* const tile = arena.take<Sum>(cols * rows.lanes);           // [key][lane], where there is more to do than a softmax
    Sum* const extra = call.bias.data || call.dropout > 0 ? arena.take<Sum>(cols * rows.lanes) : nullptr;
    Sum* const bias_scratch = call.bias.data ? arena.take<Sum>(L * up(cols, L)) : nullptr;
    Chunk chunk(arena, cols);
    long* const list = arena.take<long>(cols);
    Sum row_max[Base::kFew], row_sum[Base::kFew], factors[Base::kFew];
    const auto q_row = s.row<const T>(call.q);
    const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
    pack_rows<T>(q_row.from(rows.start), call.q.column, rows.count, d, q, q_length);
    std::fill_n(out, rows.count * out_length, Sum(0));
    for (long r = 0; r < rows.count; r++) {
      row_max[r] = first_score(s, rows.start + r, piece);
      row_sum[r] = row_max[r] == kLowest ? 0 : 1;
    }
    Moved moved{rows.count * d, 0};
    const long end = std::min<std::int64_t>(call.n_k, piece.key + piece.keys);
    Walk walk(s, rows, piece.key, end);
    for (long j = walk.next(piece.key); j < end;) {
      const long first = j;
      j = chunk.fill(walk, j, end, cols, 1, 0);
      if (!chunk.whole()) chunk.list(list);
      const bool whole = chunk.whole();
      const long keys = chunk.rows, length = up(keys, L);
      dots<T>(keys, rows.count, d, KeyRows<T>{k_row.base, k_row.step, first, whole ? nullptr : list}, q, q_length, scores, length,
              rows_ahead(d, rows.count) * call.k.row);
      const auto by_tile = [&](auto change) {
        for (long key = 0; key < keys; key++)
          for (long r = 0; r < rows.lanes; r++) tile[key * rows.lanes + r] = r < rows.count ? scores[r * length + key] : 0;
        change();
        for (long r = 0; r < rows.count; r++)
          for (long key = 0; key < keys; key++) scores[r * length + key] = tile[key * rows.lanes + r];
      };
      if (!Base::finished(s, rows, chunk))
        by_tile([&] { Base::finish_chunk(s, rows, chunk, tile, nullptr, extra, bias_scratch); });
      for (long r = 0; r < rows.count; r++) {
        std::fill(scores + r * length + keys, scores + (r + 1) * length, kLowest);
        softmax_of_row<Sum>(keys, Sum(factor_left(call)), scores + r * length, row_max[r], row_sum[r], factors[r]);
      }
      if (call.dropout > 0) by_tile([&] { drop(s, rows, chunk, tile, extra); });
      weighted_sum<T>(keys, rows.count, d_v, KeyRows<T>{v_row.base, v_row.step, first, whole ? nullptr : list}, scores, length, factors, out,
                      out_length, rows_ahead(d_v, 1) * call.v.row);
      moved.reads += chunk.keys * (d + d_v);
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
                     Arena& arena) {
    const Stream s(call, stream);
    const long width = call.d_v + 2, piece_size = call.streams() * call.stacked() * width;
    Sum* const weighted = arena.take<Sum>(call.d_v);
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
};
