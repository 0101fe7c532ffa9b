// The forward pass of the schedule `flash`. Included once inside each target region (vector/region.h).
template <class T, class F>
struct Forward : Results<T, F> {
  using Base = Results<T, F>;
  using typename Base::Packed, typename Base::Side, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::kLanesAtOnce, Base::kLowest, Base::L, Base::padded, Base::rows_of, Base::S, Base::units,
      Base::up, Base::first_score, Base::log_sum, Base::partial_row, Base::store_results;

  // Computes one block of rows of one stream against a range of keys. partial: null if the range holds all keys;
  // otherwise the memory for unfinished results, (maximum, sum, d_v features) per stacked row, which `merge` combines.
  static Moved run(const Call& call, std::int64_t stream, Piece piece, void* partial, Arena& arena) {
    if (call.few) return run_few(call, stream, piece, partial, arena);
    Block block(call, stream, piece, partial, arena);
    for (long key = block.next(piece.key); key < block.end;) key = block.attend_window(key);
    for (long g = 0; g < block.groups; g++)
      if (!block.panels[g].done) block.finish(g);
    block.moved.writes += piece.rows * (call.d_v + (partial ? 2 : 1));
    return block.moved;
  }

  // A panel of rows: the keys not visited yet, whether its queries are packed, whether its results are written.
  struct Panel {
    Walk walk;
    bool begun = false, done = false;
  };

  // The state of `run`. The panels of a block share windows of `cols` consecutive keys; a single panel instead collects
  // its next `cols` attended keys.
  struct Block {
    const Call& call;
    const Stream s;
    const Piece piece;
    void* const partial;
    const long d, d_v, groups, cols, most, end;  // groups: panels; most: rows of a tile of scores
    const bool paged, windows, k_in_place, v_in_place, v_in_k;  // v_in_k: packed rows of K contain the rows of V
    const long k_length, v_length;  // of a packed row of K or V, in numbers
    Unit* const q_panels;
    Sum *const out_panels, *const row_max, *const row_sum, *const factors, *const tops;
    Packed *const k_tile, *const v_tile;  // packed keys of a window or a chunk
    const T** const addresses;            // of paged rows of K or V
    Sum* const scores;
    Unit* const p_panel;
    Sum* const extra;
    Packed* const pack_scratch;
    Sum* const bias_scratch;
    Chunk chunk;
    long* const list;
    bool* const used;  // whether a panel attends the keys of a window
    const ArrayRows<const T> q_row, k_row, v_row;
    const ArrayRows<T> out_row;
    Ahead ahead;
    Moved moved;
    std::vector<Panel> panels;

    Block(const Call& c, std::int64_t stream, Piece part, void* to, Arena& arena)
        : call(c), s(c, stream), piece(part), partial(to), d(c.d), d_v(c.d_v),
          groups((part.rows + kLanesAtOnce - 1) / kLanesAtOnce), cols(up(std::min(c.cols, c.n_k), S)), most(cols + S),
          end(std::min<std::int64_t>(c.n_k, part.key + part.keys)), paged(c.pages.table), windows(groups > 1),
          k_in_place(!paged && Base::in_place(c.k, c.d)), v_in_place(!paged && Base::in_place_pairs(c.v)),
          v_in_k(S == 1 && c.pages.v_in_k >= 0), k_length(padded(d)),
          v_length(padded(d_v)), q_panels(arena.take<Unit>(groups * units(d) * kLanesAtOnce)),
          out_panels(arena.take<Sum>(groups * d_v * kLanesAtOnce)), row_max(arena.take<Sum>(groups * kLanesAtOnce)),
          row_sum(arena.take<Sum>(groups * kLanesAtOnce)), factors(arena.take<Sum>(kLanesAtOnce)),
          tops(arena.take<Sum>(kLanesAtOnce)),
          k_tile(k_in_place && windows ? nullptr : arena.take<Packed>(most * k_length)),
          v_tile(v_in_k || (v_in_place && windows) ? nullptr : arena.take<Packed>(most * v_length)),
          addresses(paged ? arena.take<const T*>(most) : nullptr),
          scores(arena.take<Sum>(most * kLanesAtOnce)),
          p_panel(S == 1 ? reinterpret_cast<Unit*>(scores) : arena.take<Unit>(units(most) * kLanesAtOnce)),
          extra(c.bias.data || c.dropout > 0 ? arena.take<Sum>(most * kLanesAtOnce) : nullptr),
          pack_scratch(arena.take<Packed>(L * padded(std::max(d, d_v)) + 2 * L * S)),
          bias_scratch(c.bias.data ? arena.take<Sum>(L * up(most, L)) : nullptr), chunk(arena, most),
          list(arena.take<long>(most)), used(arena.take<bool>(cols)), q_row(s.template row<const T>(c.q)),
          k_row(s.template key<const T>(c.k)), v_row(s.template key<const T>(c.v)), out_row(s.template row<T>(c.out)) {
      for (long g = 0; g < groups; g++) {
        const Rows rows = rows_of_panel(g);
        panels.push_back({Walk(s, rows, piece.key, end)});
        for (long lane = 0; lane < kLanesAtOnce; lane++) {
          const Sum sink = first_score(s, rows.start + std::min(lane, rows.count - 1), piece);
          row_max[g * kLanesAtOnce + lane] = sink;
          row_sum[g * kLanesAtOnce + lane] = sink == kLowest ? 0 : 1;
        }
      }
      std::memset(static_cast<void*>(out_panels), 0, groups * d_v * kLanesAtOnce * sizeof(Sum));
      moved.reads += piece.rows * d;
    }

    Rows rows_of_panel(long g) const {
      return rows_of(piece.row + g * kLanesAtOnce, std::min(kLanesAtOnce, piece.rows - g * kLanesAtOnce));
    }
    Unit* q_panel(long g) const { return q_panels + g * units(d) * kLanesAtOnce; }
    Sum* out_panel(long g) const { return out_panels + g * d_v * kLanesAtOnce; }
    // The first key at or beyond `key` that some panel attends.
    long next(long key) {
      long first = Walk::kNone;
      for (Panel& panel : panels) first = std::min(first, panel.walk.next(key));
      return first;
    }

    // Computes all panels against the keys of the window that begins at j0; returns the first key of the next window.
    // Queries are packed on first use, and results are written as soon as they are complete, so that products can
    // prefetch the next panel's queries and the memory of this panel's results.
    long attend_window(long j0) {
      const long limit = windows ? std::min(j0 + cols, end) : end;
      if (windows) std::fill_n(used, limit - j0, false);
      bool packed = !windows || (k_in_place && v_in_place);
      for (long g = 0; g < groups; g++) {
        const Rows rows = rows_of_panel(g);
        Walk& walk = panels[g].walk;
        for (long key = walk.next(j0); key < limit;) {
          key = chunk.fill(walk, key, limit, windows ? most : cols, windows && !v_in_place ? S : 1, j0);
          if (!packed) pack_window(j0, limit - j0);
          packed = true;
          const Sides sides = windows ? window_sides(j0) : chunk_sides();
          if (g == 0) prefetch_keys(windows ? limit : key);
          if (!panels[g].begun) begin(g);
          if (key >= end && !partial && call.group == 1)
            Base::add_ahead(ahead, call.out, out_row, rows.start, rows.count, d_v);
          attend_chunk(g, rows, sides);
        }
        if (!panels[g].done && walk.next(limit) >= end) finish(g);
      }
      if (windows) moved.reads += std::count(used, used + (limit - j0), true) * words_of_key();
      return next(windows ? limit : end);
    }

    // Packs K and V of a window, unless products can read them in place; all panels use the packed rows.
    void pack_window(long j0, long keys) {
      if (paged) return pack_paged(keys, [&](const auto& rows, long step) {
        list_paged_rows(call.pages, rows, step, j0, keys, addresses);
      });
      if (!k_in_place) pack_rows<T>(k_row.from(j0), call.k.column, keys, d, k_tile, k_length);
      if (!v_in_place) pack_pairs<F, T>(v_row.from(j0), call.v.column, keys, d_v, v_tile, v_length, pack_scratch);
    }
    // Packs paged keys. list(rows, stride of pages) lists the addresses of rows of K or V.
    template <class List>
    void pack_paged(long keys, List list) {
      list(k_row, call.pages.k_step);
      pack_rows<T>(AddressedRows<const T>{addresses}, call.k.column, keys, d, k_tile, k_length);
      if (v_in_k) return;
      list(v_row, call.pages.v_step);
      pack_pairs<F, T>(AddressedRows<const T>{addresses}, call.v.column, keys, d_v, v_tile, v_length, pack_scratch);
    }
    // The rows of K and V that the products of a chunk read.
    struct Sides {
      Side k, v;
    };
    Sides sides_in_place() const {
      return {{reinterpret_cast<const Packed*>(k_row(0)), long(call.k.row), 0, false},
              {reinterpret_cast<const Packed*>(v_row(0)), long(call.v.row), 0, false}};
    }
    Sides window_sides(long j0) {
      for (long i = 0; i < chunk.parts_count; i++)
        std::fill_n(used + (chunk.parts[i].j - j0), chunk.parts[i].keys, true);
      Sides sides = sides_in_place();
      if (!k_in_place) sides.k = {k_tile, k_length, j0, false};
      if (!v_in_place) sides.v = {v_tile, v_length, j0, false};
      if (v_in_k) sides.v = {k_tile + call.pages.v_in_k, k_length, j0, false};
      return sides;
    }
    // A single panel copies the rows of scattered keys next to each other.
    Sides chunk_sides() {
      if (paged) return paged_sides();
      const bool copy_k = !k_in_place || chunk.scattered(), copy_v = !v_in_place || chunk.scattered();
      if (copy_k || copy_v) chunk.list(list);
      Sides sides = sides_in_place();
      if (copy_k) {
        pack_rows<T>(ListedRows<const T>{k_row, list}, call.k.column, chunk.rows, d, k_tile, k_length);
        sides.k = {k_tile, k_length, 0, true};
      }
      if (copy_v) {
        pack_pairs<F, T>(ListedRows<const T>{v_row, list}, call.v.column, chunk.rows, d_v, v_tile, v_length,
                         pack_scratch);
        sides.v = {v_tile, v_length, 0, true};
      }
      moved.reads += chunk.keys * (d + d_v);
      return sides;
    }
    Sides paged_sides() {
      pack_paged(chunk.rows, [&](const auto& rows, long step) {
        for (long i = 0; i < chunk.parts_count; i++) {
          const Part& part = chunk.parts[i];
          list_paged_rows(call.pages, rows, step, part.j, part.keys, addresses + part.at);
        }
      });
      moved.reads += chunk.keys * words_of_key();
      return {{k_tile, k_length, 0, true},
              {v_in_k ? k_tile + call.pages.v_in_k : v_tile, v_in_k ? k_length : v_length, 0, true}};
    }
    // Words read per key. If V is a slice of K, its words are already in cache.
    long words_of_key() const { return call.pages.v_in_k >= 0 ? d : d + d_v; }
    // Prefetches the keys from `key` on.
    void prefetch_keys(long key) {
      if (key >= end) return;
      ahead.clear();  // drop stale prefetches
      const long coming = std::min(cols, end - key);
      if (paged) return prefetch_pages(key, coming);
      Base::add_ahead(ahead, call.v, v_row, key, coming, d_v);
      Base::add_ahead(ahead, call.k, k_row, key, coming, d);
    }

    void prefetch_pages(long key, long coming) {
      const Pages& pages = call.pages;
      const auto add = [&](const ArrayRows<const T>& rows, std::int64_t step, const Array& array, long columns) {
        for (long stop = key + coming; stop > key;) {  // the rows added last are prefetched first
          const long page = (stop - 1) / pages.size, first = std::max(key, page * pages.size);
          const ArrayRows<const T> of_page{rows.base + pages.table[page] * step, rows.step, 1, 0};
          Base::add_ahead(ahead, array, of_page, first - page * pages.size, stop - first, columns);
          stop = first;
        }
      };
      if (pages.v_in_k < 0) add(v_row, pages.v_step, call.v, d_v);
      add(k_row, pages.k_step, call.k, d);
    }

    // Packs the queries of a panel.
    void begin(long g) {
      const Rows rows = rows_of_panel(g);
      pack_panel<F, T>(q_row.from(rows.start), call.q.column, rows.count, rows.lanes, d, q_panel(g), pack_scratch);
      panels[g].begun = true;
      if (g + 1 < groups && call.group == 1)
        Base::add_ahead(ahead, call.q, q_row, rows_of_panel(g + 1).start, rows_of_panel(g + 1).count, d);
    }

    // Computes panel g against the keys of the chunk: scores, one step of the online softmax, and the weighted sum of
    // V.
    void attend_chunk(long g, const Rows& rows, const Sides& sides) {
      const long lanes = rows.lanes;
      // If the product yields final scores, it also takes their maxima, while scores are in registers.
      Sum* const known = chunk.whole() && chunk.keys == chunk.rows && Base::finished(s, rows, chunk) ? tops : nullptr;
      std::fill_n(tops, lanes, kLowest);
      Base::each_stretch(chunk, sides.k.by_place, [&](const Stretch& x) {
        product<F>(x.keys, lanes, units(d), as_units(sides.k.of(x)), sides.k.length / S, 1, q_panel(g), lanes,
                   scores + x.at * lanes, lanes, Start::kZero, nullptr, ahead, known);
      });
      if (!known) Base::finish_chunk(s, rows, chunk, scores, nullptr, extra, bias_scratch);
      Base::softmax(chunk.rows, lanes, Sum(factor_left(call)), scores, row_max + g * kLanesAtOnce,
                    row_sum + g * kLanesAtOnce, factors, known);
      if (call.dropout > 0) drop(s, rows, chunk, scores, extra);
      if constexpr (S == 2) Base::to_panels(scores, chunk.rows, lanes, p_panel, nullptr);
      Start start = Start::kScaled;
      Base::each_stretch(chunk, sides.v.by_place, [&](const Stretch& x) {
        product<F>(d_v, lanes, units(x.keys), as_units(sides.v.of(x)), 1, sides.v.length, p_panel + x.at / S * lanes,
                   lanes, out_panel(g), lanes, start, factors, ahead);
        start = Start::kSum;
      });
    }

    // Writes the results of a panel.
    void finish(long g) {
      const Rows rows = rows_of_panel(g);
      const Sum *const top = row_max + g * kLanesAtOnce, *const sum = row_sum + g * kLanesAtOnce;
      panels[g].done = true;
      if (partial) {
        for (long lane = 0; lane < rows.count; lane++) {
          Sum* const to = partial_row(s, partial, rows.start + lane);
          to[0] = top[lane];
          to[1] = sum[lane];
          for (long c = 0; c < d_v; c++) to[2 + c] = out_panel(g)[c * rows.lanes + lane];
        }
        return;
      }
      const auto lse_row = s.template row<Sum>(call.lse);
      for (long lane = 0; lane < rows.lanes; lane++)
        factors[lane] = sum[lane] == 0 || lane >= rows.count ? 0 : 1 / sum[lane];
      for (long lane = 0; lane < rows.count; lane++) *lse_row(rows.start + lane) = log_sum(call, top[lane], sum[lane]);
      unpack_panel<T>(out_panel(g), rows.lanes, rows.count, d_v, factors, out_row.from(rows.start), call.out.column);
    }
  };

  static void drop(const Stream& s, const Rows& rows, const Chunk& chunk, Sum* p, Sum* extra) {
    for (long i = 0; i < chunk.parts_count; i++) {
      const Part& part = chunk.parts[i];
      Sum* const tile = p + part.at * rows.lanes;
      dropout_tile<Sum>(s, rows, part.j, part.keys, extra);
      for (long x = 0; x < part.keys * rows.lanes; x += L) store(tile + x, load(tile + x) * load(extra + x));
    }
  }

  // Copies scores [row][key] into a tile [key][lane], changes the tile and copies it back.
  template <class Change>
  static void by_tile(const Rows& rows, long keys, Sum* scores, long length, Sum* tile, Change change) {
    for (long key = 0; key < keys; key++)
      for (long r = 0; r < rows.lanes; r++) tile[key * rows.lanes + r] = r < rows.count ? scores[r * length + key] : 0;
    change();
    for (long r = 0; r < rows.count; r++)
      for (long key = 0; key < keys; key++) scores[r * length + key] = tile[key * rows.lanes + r];
  }

  // The prefetch distance in rows.
  static long rows_ahead(long columns) { return std::max<long>(1, kBytesAhead / (columns * long(sizeof(T)))); }
  // `run` for few rows: vectors lie along the features, as in decode.h.
  static Moved run_few(const Call& call, std::int64_t stream, Piece piece, void* partial, Arena& arena) {
    const Stream s(call, stream);
    const long d = call.d, d_v = call.d_v, cols = std::min(call.cols, call.n_k);
    const long out_length = up(d_v, L);
    const Rows rows = rows_of(piece.row, piece.rows);
    FewQueries<T, F> queries(arena, d);
    Sum* const out = arena.take<Sum>(rows.count * out_length);
    Sum* const scores = arena.take<Sum>(rows.count * up(cols, L));  // [row][key]
    Sum* const tile = arena.take<Sum>(cols * rows.lanes);           // [key][lane], for masks, bias and dropout
    Sum* const extra = call.bias.data || call.dropout > 0 ? arena.take<Sum>(cols * rows.lanes) : nullptr;
    Sum* const bias_scratch = call.bias.data ? arena.take<Sum>(L * up(cols, L)) : nullptr;
    Chunk chunk(arena, cols);
    long* const list = arena.take<long>(cols + 2 * L);
    const long k_ahead = rows_ahead(d) * call.k.row, v_ahead = rows_ahead(d_v) * call.v.row;
    Sum row_max[Base::kFew], row_sum[Base::kFew], factors[Base::kFew];
    const auto q_row = s.row<const T>(call.q);
    const auto k_row = s.key<const T>(call.k), v_row = s.key<const T>(call.v);
    queries.pack(q_row.from(rows.start), call.q.column, rows.count);
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
      if (!chunk.whole()) {
        chunk.list(list);
        std::fill_n(list + chunk.rows, 2 * L, list[chunk.rows - 1]);  // the prefetcher reads beyond the last row
      }
      const bool whole = chunk.whole();
      const long keys = chunk.rows, length = up(keys, L);
      const KeyRows<T> k_rows{k_row.base, k_row.step, first, whole ? nullptr : list, k_ahead};
      queries.dots(keys, k_rows, scores, length);
      if (!Base::finished(s, rows, chunk))
        by_tile(rows, keys, scores, length, tile,
                [&] { Base::finish_chunk(s, rows, chunk, tile, nullptr, extra, bias_scratch); });
      for (long r = 0; r < rows.count; r++) {
        std::fill(scores + r * length + keys, scores + (r + 1) * length, kLowest);
        softmax_of_row<Sum>(keys, Sum(factor_left(call)), scores + r * length, row_max[r], row_sum[r], factors[r]);
      }
      if (call.dropout > 0) by_tile(rows, keys, scores, length, tile, [&] { drop(s, rows, chunk, tile, extra); });
      const KeyRows<T> v_rows{v_row.base, v_row.step, first, whole ? nullptr : list, v_ahead};
      weighted_sum<T>(keys, rows.count, d_v, v_rows, scores, length, factors, out, out_length);
      moved.reads += chunk.keys * (d + d_v);
    }
    const auto out_row = s.row<T>(call.out);
    for (long r = 0; r < rows.count; r++)
      store_results(s, rows.start + r, row_max[r], row_sum[r], out + r * out_length, partial, out_row(rows.start + r));
    moved.writes += rows.count * (d_v + (partial ? 2 : 1));
    return moved;
  }
};
