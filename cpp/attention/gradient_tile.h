// A tile of the gradients of scores, for all tiled backward kernels. Included once inside each target region
// (vector/region.h).
//
// Holds P and dS of the keys of a chunk and at most kLanesAtOnce rows, in the formats of the next products.
template <class T, class F>
struct GradientTile : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Packed, typename Base::Side, typename Base::Sum, typename Base::Unit;
  using Base::as_units, Base::kLanesAtOnce, Base::kLowest, Base::L, Base::S, Base::units, Base::up;
  static constexpr long kKeysAtOnce = 96;  // rows of a tile of scores; 24 to 144 are equally fast (measured, Zen 5)

  Sum *p, *ds, *slopes, *extra, *bias_scratch;
  Unit *p_rows, *ds_rows, *ds_panel;  // units: p_rows and ds_rows pair rows, ds_panel pairs keys
  FewQueries<T, F> few;
  Sum* few_scores = nullptr;

  GradientTile(const Call& call, long keys, Arena& arena) {
    const long size = up(keys, S) * kLanesAtOnce;
    p = arena.take<Sum>(size);
    ds = arena.take<Sum>(size);
    slopes = call.softcap ? arena.take<Sum>(size) : nullptr;
    extra = call.bias.data || call.dropout > 0 ? arena.take<Sum>(size) : nullptr;
    bias_scratch = call.bias.data ? arena.take<Sum>(L * up(keys, L)) : nullptr;
    if (call.few) {
      few = FewQueries<T, F>(arena, call.d);
      few_scores = arena.take<Sum>(Base::kFew * up(keys, L));
    }
    if constexpr (S == 1) {
      p_rows = p;
      ds_rows = ds_panel = ds;
    } else {
      p_rows = arena.take<Unit>(size / S);
      ds_rows = arena.take<Unit>(size / S);
      ds_panel = arena.take<Unit>(size / S);
    }
  }

  // p <- P after dropout, ds <- dS. lse: +inf for rows that attend nothing.
  void compute(const Stream& s, const Rows& rows, const Chunk& chunk, const Side& k, const Side& v, const Unit* q_panel,
               const Unit* dout_panel, const Sum* lse, const Sum* delta, Ahead& ahead) {
    const Call& call = s.call;
    const long lanes = rows.lanes;
    if (call.few)
      scores_of_few(s, rows, chunk);
    else
      Base::each_stretch(chunk, k.by_place, [&](const Stretch& x) {
        product<F>(x.keys, lanes, units(call.d), as_units(k.of(x)), k.length / S, 1, q_panel, lanes, p + x.at * lanes,
                   lanes, Start::kZero, nullptr, ahead);
      });
    Base::each_stretch(chunk, v.by_place, [&](const Stretch& x) {
      product<F>(x.keys, lanes, units(call.d_v), as_units(v.of(x)), v.length / S, 1, dout_panel, lanes,
                 ds + x.at * lanes, lanes, Start::kZero, nullptr, ahead);
    });
    Base::finish_chunk(s, rows, chunk, p, slopes, extra, bias_scratch);
    for (long i = 0; i < chunk.parts_count; i++) differentiate(s, rows, chunk.parts[i], lse, delta);
    Base::fill_gaps(chunk, lanes, p, 0);
    Base::fill_gaps(chunk, lanes, ds, 0);
  }

  // p <- scores, rounded as in forward. Otherwise exp(score - lse) would magnify rounding differences of large scores.
  void scores_of_few(const Stream& s, const Rows& rows, const Chunk& chunk) {
    const auto q_row = s.row<const T>(s.call.q);
    const auto k_row = s.key<const T>(s.call.k);
    few.pack(q_row.from(rows.start), s.call.q.column, rows.count);
    std::fill_n(p, chunk.rows * rows.lanes, Sum(0));
    for (long i = 0; i < chunk.parts_count; i++) {
      const Part& part = chunk.parts[i];
      const long length = up(part.keys, L);
      const KeyRows<T> keys{k_row.base, k_row.step, part.j, nullptr};
      few.dots(part.keys, keys, few_scores, length);
      for (long key = 0; key < part.keys; key++)
        for (long r = 0; r < rows.count; r++) p[(part.at + key) * rows.lanes + r] = few_scores[r * length + key];
    }
  }

  void differentiate(const Stream& s, const Rows& rows, const Part& part, const Sum* lse, const Sum* delta) {
    const Call& call = s.call;
    const long lanes = rows.lanes, from = part.at * lanes;
    const bool drops = call.dropout > 0;
    if (drops) dropout_tile<Sum>(s, rows, part.j, part.keys, extra);
    const V<Sum> factor = splat(Sum(factor_left(call)));
    for (long lane = 0; lane < lanes; lane += L) {
      const V<Sum> base = load(lse + lane), row_delta = load(delta + lane);
      for (long x = lane; x < part.keys * lanes; x += lanes) {
        // Rounded as in the computation of lse, so that a dominant score has weight exactly 1.
        const V<Sum> weight = exp<Sum>(rounded<Sum>(load(p + from + x) * factor) - base);
        V<Sum> dp = load(ds + from + x), used = weight;
        if (drops) {
          // Rounded: whether a compiler fuses the product with the difference depends on how it splits the loop.
          const V<Sum> kept = load(extra + x);
          used *= kept;
          dp = rounded<Sum>(dp * kept);
        }
        store(p + from + x, used);
        V<Sum> gradient = weight * (dp - row_delta);
        if (slopes) gradient *= load(slopes + from + x);
        store(ds + from + x, gradient);
      }
    }
    // Keys that a row does not attend have no gradient, even if dP is infinite or NaN.
    mask_part<Sum>(s, rows, part, ds + from, 0);
  }

  void pack(long keys, long lanes) {
    if constexpr (S == 2) {
      Base::to_panels(p, keys, lanes, nullptr, reinterpret_cast<Packed*>(p_rows));
      Base::to_panels(ds, keys, lanes, ds_panel, reinterpret_cast<Packed*>(ds_rows));
    }
  }

  static void row_sums(const Stream& s, const Rows& rows, Sum* lse, Sum* delta) {
    const Sum *all_lse = at<const Sum>(s.call.lse, 0), *all_delta = at<const Sum>(s.call.delta, 0);
    for (long lane = 0; lane < rows.lanes; lane++) {
      const auto number = s.number(rows.start + std::min(lane, rows.count - 1));
      lse[lane] = all_lse[number] == kLowest || lane >= rows.count ? -kLowest : all_lse[number];
      delta[lane] = all_delta[number];
    }
  }

  // Stores the delta of row r: the sum of dout * out, minus the gradient of lse.
  static void store_delta(const Stream& s, long r) {
    const Call& call = s.call;
    const T *const a = s.row<const T>(call.out)(r), *const b = s.row<const T>(call.dout)(r);
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
};
