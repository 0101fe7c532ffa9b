// Packs arrays into panels, and unpacks panels into arrays. Included once inside each target region (vector/region.h).
//
// Three layouts of `rows` rows with `columns` numbers each, padded with zeros to whole units and vectors:
//   rows     [row][column]                       units are neighbours along the columns
//   pairs    [row / step][column][row % step]    units are neighbours along the rows; the same as `rows` for step 1
//   panel    [column / step][row][column % step] `rows` transposed, unit by unit: rows lie in lanes

// Loads a vector of numbers as sums, and stores sums as numbers.
template <class T>
struct Wide {
  static constexpr bool kWhole = false;  // this instruction set has no vector conversion
};
template <>
struct Wide<float> {
  static constexpr bool kWhole = true;
  static V<float> load_wide(const float* p) { return load(p); }
  static void store_narrow(float* p, V<float> value) { store(p, value); }
};
template <>
struct Wide<double> {
  static constexpr bool kWhole = true;
  static V<double> load_wide(const double* p) { return load(p); }
  static void store_narrow(double* p, V<double> value) { store(p, value); }
};
#if defined(REDBLUE_AVX512) || defined(REDBLUE_AVX2) || defined(REDBLUE_NEON)
template <>
struct Wide<bfloat16> {
  static constexpr bool kWhole = true;
  static V<float> load_wide(const bfloat16* p) { return bits<V<float>>(low_halves(load_halves(p)) << 16); }
  static void store_narrow(bfloat16* p, V<float> value) { store_halves(p, bfloat16_halves(value)); }
};
template <>
struct Wide<float16> {
  static constexpr bool kWhole = true;
  static V<float> load_wide(const float16* p) {
    const Halves half = load_halves(p);
#if defined(REDBLUE_AVX512)
    return _mm512_cvtph_ps(bits<__m256i>(half));
#elif defined(REDBLUE_AVX2)
    return _mm256_cvtph_ps(bits<__m128i>(half));
#else
    return bits<V<float>>(vcvt_f32_f16(bits<float16x4_t>(half)));
#endif
  }
  static void store_narrow(float16* p, V<float> value) {
#if defined(REDBLUE_AVX512)
    store_halves(p, bits<Halves>(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)));
#elif defined(REDBLUE_AVX2)
    store_halves(p, bits<Halves>(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)));
#else
    store_halves(p, bits<Halves>(vcvt_f16_f32(bits<float32x4_t>(value))));
#endif
  }
};
#endif

// Packs one row: `columns` numbers, `stride` apart, followed by zeros up to `padded`.
template <class T, class N>
inline void pack_row(const T* from, long stride, long columns, N* to, long padded) {
  long c = 0;
  if constexpr (sizeof(T) == 2 && sizeof(N) == 2) {  // bfloat16 is copied unchanged
    if (stride == 1) {
      __builtin_memcpy(to, from, columns * sizeof(N));
      c = columns;
    }
    for (; c < columns; c++) to[c] = from[c * stride];
    for (; c < padded; c++) to[c] = N{};
  } else {
    if constexpr (Wide<T>::kWhole && (sizeof(T) == 8) == (sizeof(N) == 8))
      if (stride == 1)
        for (; c + kLanesOf<N> <= columns; c += kLanesOf<N>) store(to + c, Wide<T>::load_wide(from + c));
    for (; c < columns; c++) to[c] = widen(from[c * stride]);
    for (; c < padded; c++) to[c] = 0;
  }
}

// Packs rows. row(r): the address of row r.
template <class T, class N, class Row>
__attribute__((noinline)) void pack_rows(Row row, long stride, long rows, long columns, N* to, long length) {
  for (long r = 0; r < rows; r++) pack_row<T>(row(r), stride, columns, to + r * length, length);
}

// Transposes L vectors in steps kReach = 1, 2, 4, ..., L / 2: in each step, vectors i and i + kReach exchange blocks of
// kReach lanes. kReach is a template parameter so that the order of lanes is a constant: in a loop, GCC recomputes it
// at every step (four times as slow).
template <class Unit, int kReach>
inline void exchange(V<Unit>* rows) {
  constexpr int L = kLanesOf<Unit>;
  V<std::conditional_t<sizeof(Unit) == 8, long long, int>> low, high;
#pragma GCC unroll 16
  for (int lane = 0; lane < L; lane++) {
    low[lane] = lane & kReach ? L + lane - kReach : lane;
    high[lane] = lane & kReach ? L + lane : lane + kReach;
  }
#pragma GCC unroll 16
  for (int i = 0; i < L; i++)
    if (!(i & kReach)) {
      const V<Unit> a = rows[i], b = rows[i + kReach];
      rows[i] = shuffle(a, b, low);
      rows[i + kReach] = shuffle(a, b, high);
    }
  if constexpr (2 * kReach < L) exchange<Unit, 2 * kReach>(rows);
}

// Transposes L x L units in registers.
template <class Unit>
inline void transpose(const Unit* from, long from_length, Unit* to, long to_length) {
  constexpr int L = kLanesOf<Unit>;
  V<Unit> rows[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; i++) rows[i] = load(from + i * from_length);
  exchange<Unit, 1>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < L; i++) store(to + i * to_length, rows[i]);
}

// Packs `rows` rows into a panel, padded with zeros to `lanes`. scratch: L packed rows.
template <class F, class T, class Row>
__attribute__((noinline)) void pack_panel(Row row, long stride, long rows, long lanes, long columns,
                                          typename F::Unit* to, typename F::Number* scratch) {
  constexpr int L = kLanesOf<typename F::Unit>, S = F::kStep;
  const long units = (columns + S - 1) / S, whole = (units + L - 1) / L * L, length = whole * S;
  using Unit = typename F::Unit;
  for (long r = 0; r < lanes; r += L) {
    for (long i = 0; i < L; i++)
      if (r + i < rows)
        pack_row<T>(row(r + i), stride, columns, scratch + i * length, length);
      else
        std::memset(static_cast<void*>(scratch + i * length), 0, length * sizeof *scratch);
    for (long u = 0; u < whole; u += L)
      if (u + L <= units) {
        transpose(reinterpret_cast<const Unit*>(scratch) + u, whole, to + u * lanes + r, lanes);
      } else {
        alignas(kVectorBytes) Unit block[L * L];
        transpose(reinterpret_cast<const Unit*>(scratch) + u, whole, block, L);
        for (long i = 0; u + i < units; i++) store(to + (u + i) * lanes + r, load(block + i * L));
      }
  }
}

// Packs rows in the layout `pairs`: neighbouring rows are interleaved, `length` units per pair.
template <class F, class T, class Row>
__attribute__((noinline)) void pack_pairs(Row row, long stride, long rows, long columns, typename F::Number* to,
                                          long length, [[maybe_unused]] typename F::Number* scratch) {
  if constexpr (F::kStep == 1) {
    pack_rows<T>(row, stride, rows, columns, to, length);
  } else {
    using Unit = typename F::Unit;
    constexpr int L = kLanesOf<Unit>;
    std::uint16_t* const two = reinterpret_cast<std::uint16_t*>(scratch);
    for (long r = 0; r < rows; r += 2) {
      pack_row<T>(row(r), stride, columns, scratch, length);
      if (r + 1 < rows)
        pack_row<T>(row(r + 1), stride, columns, scratch + length, length);
      else
        std::memset(two + length, 0, length * sizeof *two);
      Unit* const units = reinterpret_cast<Unit*>(to) + r / 2 * length;
      for (long c = 0; c < length; c += L) store(units + c, interleave(two + c, two + length + c));
    }
  }
}

// Unpacks a panel into rows: column c of row r <- panel[c][r] * factors[r].
template <class T, class Sum, class Row>
__attribute__((noinline)) void unpack_panel(const Sum* panel, long lanes, long rows, long columns, const Sum* factors,
                                            Row row, long stride) {
  constexpr int L = kLanesOf<Sum>;
  alignas(kVectorBytes) Sum block[L * L], scaled[L * L];
  for (long r = 0; r < rows; r += L) {
    const V<Sum> factor = load(factors + r);
    for (long c = 0; c < columns; c += L) {
      const long width = columns - c < L ? columns - c : L;
      for (long i = 0; i < L; i++)
        store(scaled + i * L, i < width ? load(panel + (c + i) * lanes + r) * factor : V<Sum>{});
      transpose(scaled, L, block, L);
      for (long i = 0; i < L && r + i < rows; i++) {
        T* const to = row(r + i) + c * stride;
        if constexpr (Wide<T>::kWhole)
          if (stride == 1 && width == L) {
            Wide<T>::store_narrow(to, load(block + i * L));
            continue;
          }
        for (long x = 0; x < width; x++) narrow(block[i * L + x], to[x * stride]);
      }
    }
  }
}

// Unpacks one row: `columns` numbers, times `factor`.
template <class T, class Sum>
inline void unpack_row(const Sum* from, long columns, Sum factor, T* to, long stride) {
  constexpr int L = kLanesOf<Sum>;
  long c = 0;
  if constexpr (Wide<T>::kWhole)
    if (stride == 1)
      for (; c + L <= columns; c += L) Wide<T>::store_narrow(to + c, load(from + c) * splat(factor));
  for (; c < columns; c++) narrow(from[c] * factor, to[c * stride]);
}
