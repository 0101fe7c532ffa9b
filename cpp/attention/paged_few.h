// The forward pass of few queries on paged keys. Included once inside each target region (vector/region.h).
template <class T, class F>
struct PagedFew : Formats<T, F> {
  using Base = Formats<T, F>;
  using All = Forward<T, F>;
  using typename Base::Sum;
  using Base::kLowest, Base::L, Base::rows_of, Base::up;

  // Forward::run_few for `heads` key heads from `first_head` on, all heads for a few keys at a time. Pages are then
  // read in memory order in both layouts, heads within rows and rows within heads. The results of a head do not depend
  // on other heads. partial: as in Forward::run.
  static Moved run(const Call& call, long first_head, long heads, Piece piece, void* partial, Arena& arena) {
    const long d = call.d, d_v = call.d_v, out_length = up(d_v, L);
    const Rows rows = rows_of(piece.row, piece.rows);
    const long cols = keys_at_once(call);
    std::vector<Head> all;
    for (long h = 0; h < heads; h++) all.push_back(begin(call, first_head + h, rows, piece, cols, arena));
    Sum* const tile = arena.take<Sum>(cols * rows.lanes);
    Sum* const extra = call.bias.data ? arena.take<Sum>(cols * rows.lanes) : nullptr;
    Sum* const bias_scratch = call.bias.data ? arena.take<Sum>(L * cols) : nullptr;
    const T** const k_rows = arena.take<const T*>(cols);
    const T** const v_rows = arena.take<const T*>(cols);
    Chunk chunk(arena, cols);
    Stretches<T> coming(arena, cols * heads);
    Moved moved{heads * rows.count * d, 0};
    const long end = std::min<std::int64_t>(call.n_k, piece.key + piece.keys);
    const auto k_base = all[0].s.template key<const T>(call.k), v_base = all[0].s.template key<const T>(call.v);
    const auto beside = [&](long) { return typename Stretches<T>::Cursor(coming); };
    Walk walk(all[0].s, rows, piece.key, end);
    long j = walk.next(piece.key);
    while (j < end) {
      j = chunk.fill(walk, j, end, cols, 1, 0);
      const long keys = chunk.rows, length = up(keys, L);
      list_chunk(call.pages, chunk, k_base, call.pages.k_step, k_rows);
      list_chunk(call.pages, chunk, v_base, call.pages.v_step, v_rows);
      if (call.pages.v_in_k < 0) announce(coming, v_rows, keys, call.v, d_v, heads);
      for (Head& head : all) {
        const PagedRows<T> k{k_rows, (head.s.kv_head - first_head) * call.k.head};
        head.queries.dots(keys, k, head.scores, length, beside);
        if (!Base::finished(head.s, rows, chunk))
          All::by_tile(rows, keys, head.scores, length, tile,
                       [&] { Base::finish_chunk(head.s, rows, chunk, tile, nullptr, extra, bias_scratch); });
        for (long r = 0; r < rows.count; r++) {
          Sum* const scores = head.scores + r * length;
          std::fill(scores + keys, scores + length, kLowest);
          softmax_of_row<Sum>(keys, Sum(factor_left(call)), scores, head.row_max[r], head.row_sum[r], head.factors[r]);
        }
      }
      if (j < end) {
        const long next = std::min(cols, end - j);
        list_paged_rows(call.pages, k_base, call.pages.k_step, j, next, k_rows);
        announce(coming, k_rows, next, call.k, d, heads);
      }
      for (Head& head : all) {
        const PagedRows<T> v{v_rows, (head.s.kv_head - first_head) * call.v.head};
        weighted_sum_of_rows<T>(keys, rows.count, d_v, v, head.scores, length, head.factors, head.out, out_length,
                                beside);
      }
      moved.reads += heads * chunk.keys * (call.pages.v_in_k >= 0 ? d : d + d_v);
    }
    for (Head& head : all) {
      const auto out_row = head.s.template row<T>(call.out);
      for (long r = 0; r < rows.count; r++)
        All::store_results(head.s, rows.start + r, head.row_max[r], head.row_sum[r], head.out + r * out_length, partial,
                        out_row(rows.start + r));
    }
    moved.writes += heads * rows.count * (d_v + (partial ? 2 : 1));
    return moved;
  }
  // The state of one key head: its queries, its scores, and its results so far.
  struct Head {
    Stream s;
    FewQueries<T, F> queries;
    Sum *out, *scores;
    Sum row_max[Base::kFew], row_sum[Base::kFew], factors[Base::kFew];
  };
  static Head begin(const Call& call, long h, const Rows& rows, const Piece& piece, long cols, Arena& arena) {
    const long out_length = up(call.d_v, L);
    Head head{Stream(call, h), FewQueries<T, F>(arena, call.d), arena.take<Sum>(rows.count * out_length),
              arena.take<Sum>(rows.count * cols), {}, {}, {}};
    head.queries.pack(head.s.template row<const T>(call.q).from(rows.start), call.q.column, rows.count);
    std::fill_n(head.out, rows.count * out_length, Sum(0));
    for (long r = 0; r < rows.count; r++) {
      head.row_max[r] = All::first_score(head.s, rows.start + r, piece);
      head.row_sum[r] = head.row_max[r] == kLowest ? 0 : 1;
    }
    return head;
  }

  // Lists, in memory order, the rows of `count` keys of `heads` heads for prefetching. from: the addresses of the rows
  // of the first head.
  static void announce(Stretches<T>& coming, const T* const* from, long count, const Array& array, long columns,
                       long heads) {
    coming.clear();
    for (long x = 0, run; x < count; x += run) {  // run: rows of one page
      for (run = 1; x + run < count && from[x + run] - from[x + run - 1] == array.row;) run++;
      const bool rows_inside = array.head > array.row || heads == 1;  // a head's rows are neighbours
      const long outer = rows_inside ? heads : run, inner = rows_inside ? run : heads;
      const std::int64_t step = rows_inside ? array.head : array.row, next = rows_inside ? array.row : array.head;
      const bool dense = next == columns;
      for (long o = 0; o < outer; o++)
        for (long i = 0; i < (dense ? 1 : inner); i++)
          coming.add(from[x] + o * step + i * next, dense ? inner * columns : columns);
    }
  }

  // The number of keys whose rows of K, over all heads, fill a small part of the L2 cache.
  static long keys_at_once(const Call& call) {
    const long bytes = call.kv_heads * std::max(call.d, call.d_v) * long(sizeof(T));
    return std::clamp<long>(kBytesOfPages / bytes / L * L, L, 256);
  }
  static constexpr long kBytesOfPages = 131072;

  // Lists the addresses of the rows of a chunk's keys.
  static void list_chunk(const Pages& pages, const Chunk& chunk, const ArrayRows<const T>& rows, std::int64_t step,
                         const T** to) {
    for (long i = 0; i < chunk.parts_count; i++)
      list_paged_rows(pages, rows, step, chunk.parts[i].j, chunk.parts[i].keys, to + chunk.parts[i].at);
  }
};
