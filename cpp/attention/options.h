// The options that change scores and probabilities. A new option needs a field of the struct, a line in `each` (and in
// by_sequence), and its arithmetic in plain_scores and in both overloads of finish_scores.
//
// The file has two halves. call.h includes the struct, which all instruction sets share. attention/region.h includes
// the arithmetic, which every instruction set compiles for itself.
#if !defined(REDBLUE_IN_REGION) && !defined(REDBLUE_OPTIONS)
#define REDBLUE_OPTIONS
#include "attention/array.h"

namespace redblue {

struct Options {
  double scale = 1;
  double softcap = 0;                     // 0: none
  Array bias;                             // strides 0 where it is broadcast
  Number bias_number = Number::kFloat32;  // kBool: true means attend
  Array sinks;                            // of sums, one per head
  Array alibi;                            // of sums: one slope per query head; its row and column strides are 0
  Array positions;                        // of int64: positions of rows and keys in the whole problem; see Places
  double dropout = 0;                     // the share of probabilities set to 0; the others grow by 1 / (1 - dropout)
  std::uint64_t seed = 0;                 // dropped pairs depend only on the seed and the positions of row and key

  // Whether a score depends on the sequence of its query, or on the query's position, besides q and k.
  bool by_sequence() const { return bias.data || alibi.data; }

  // Calls visit(name, field) for each option.
  template <class Visit>
  void each(Visit&& visit) {
    visit("scale", scale);
    visit("softcap", softcap);
    visit("bias", bias);
    visit("bias_number", bias_number);
    visit("sinks", sinks);
    visit("alibi", alibi);
    visit("positions", positions);
    visit("dropout", dropout);
    visit("seed", seed);
  }
};

}  // namespace redblue

#elif defined(REDBLUE_IN_REGION)

// The format of scores, and of the bias when it is added to them.
template <class Sum>
using Plain = std::conditional_t<sizeof(Sum) == 8, Float64, Float32>;

// Whether scores need only a positive factor, which the softmax applies.
inline bool plain_scores(const Call& call) {
  return !call.softcap && !call.bias.data && !call.alibi.data && !call.sinks.data && call.scale > 0;
}
// The factor that the softmax applies to finished scores.
inline double factor_left(const Call& call) { return plain_scores(call) ? call.scale : 1; }

template <class Sum>
void load_bias(const Stream& s, const Rows& rows, long j, long keys, Sum* to, Sum* scratch) {
  const Call& call = s.call;
  const auto pack = [&](auto number) {
    using T = decltype(number);
    const auto row = s.row<const T>(call.bias);
    const std::int64_t from = j * call.bias.column;
    if constexpr (sizeof(Sum) == 8 || sizeof(T) != 8)
      pack_panel<Plain<Sum>, T>(row.from(rows.start, from), call.bias.column, rows.count, rows.lanes, keys, to,
                                scratch);
  };
  switch (call.bias_number) {
    case Number::kFloat32: return pack(float{});
    case Number::kFloat64: return pack(double{});
    case Number::kBfloat16: return pack(bfloat16{});
    case Number::kFloat16: return pack(float16{});
    case Number::kBool: return pack(Boolean{});
  }
}

// ALiBi: the slope of row r's head.
template <class Sum>
inline Sum alibi_slope(const Stream& s, long r) {
  const Array& alibi = s.call.alibi;
  return *at<const Sum>(alibi, s.offset(alibi) + (s.kv_head * s.call.group + r % s.call.group) * alibi.head);
}

// ALiBi: scores (keys x lanes) <- scores - slope |position of the query - position of the key|. The product is rounded
// before it is subtracted. Otherwise a compiler could fuse the two operations in only one of the passes, and their
// scores would differ.
template <class Sum, bool kHasPositions>
void add_alibi(const Stream& s, const Places<kHasPositions>& places, const Rows& rows, long j, long keys, Sum* scores) {
  constexpr int L = kLanesOf<Sum>;
  const std::int64_t first = places.key(j);
  for (long v = 0; v < rows.lanes; v += L) {
    V<Sum> slope, own;
    for (long lane = 0; lane < L; lane++) {
      const long r = rows.start + std::min(v + lane, rows.count - 1);
      slope[lane] = alibi_slope<Sum>(s, r);
      own[lane] = Sum(places.own_key(r) - first);
    }
    for (long key = 0; key < keys; key++) {
      Sum* const p = scores + key * rows.lanes + v;
      const V<Sum> distance = magnitude<Sum>(own - splat(Sum(places.key(j + key) - first)));
      store(p, load(p) - rounded<Sum>(slope * distance));
    }
  }
}

// scores (keys x lanes) <- cap tanh(scale scores / cap) - alibi + bias; slopes, if not null, <- the derivative of cap
// tanh(x / cap).
template <class Sum>
void finish_scores(const Stream& s, const Rows& rows, long j, long keys, Sum* scores, Sum* slopes, Sum* bias,
                   Sum* scratch) {
  constexpr int L = kLanesOf<Sum>;
  const Call& call = s.call;
  const V<Sum> scale = splat(Sum(call.scale)), one = splat(Sum(1));
  const long size = keys * rows.lanes;
  if (call.softcap) {
    const V<Sum> cap = splat(Sum(call.softcap)), part = splat(Sum(call.scale / call.softcap));
    for (long x = 0; x < size; x += L) {
      const V<Sum> bent = tanh<Sum>(load(scores + x) * part);
      store(scores + x, bent * cap);
      if (slopes) store(slopes + x, one - bent * bent);
    }
  } else {
    for (long x = 0; x < size; x += L) store(scores + x, load(scores + x) * scale);
  }
  if (call.alibi.data)
    with_places(s, [&](const auto& places) { add_alibi<Sum>(s, places, rows, j, keys, scores); });
  if (call.bias.data) {
    load_bias(s, rows, j, keys, bias, scratch);
    for (long x = 0; x < size; x += L) store(scores + x, load(scores + x) + load(bias + x));
  }
}

template <class Sum>
Sum bias_at(const Stream& s, long row, long key) {
  const std::int64_t at_key = key * s.call.bias.column;
  switch (s.call.bias_number) {
    case Number::kFloat32: return widen(s.row<const float>(s.call.bias)(row)[at_key]);
    case Number::kFloat64: return Sum(widen(s.row<const double>(s.call.bias)(row)[at_key]));
    case Number::kBfloat16: return widen(s.row<const bfloat16>(s.call.bias)(row)[at_key]);
    case Number::kFloat16: return widen(s.row<const float16>(s.call.bias)(row)[at_key]);
    case Number::kBool: return widen(s.row<const Boolean>(s.call.bias)(row)[at_key]);
  }
  return 0;
}

// add_alibi for single pairs. Passes by query and by key round scores identically.
template <class Sum, bool kHasPositions>
__attribute__((noinline)) void add_alibi(const Pairs& pairs, const Places<kHasPositions>& places, Sum* scores) {
  constexpr int L = kLanesOf<Sum>;
  const V<Sum> slope = splat(alibi_slope<Sum>(pairs.s, pairs.head));
  for (long x = 0; x < pairs.count; x += L) {
    V<Sum> distance = V<Sum>{};
    for (long lane = 0; lane < std::min<long>(L, pairs.count - x); lane++)
      distance[lane] = Sum(std::abs(places.own_key(pairs.row(x + lane)) - places.key(pairs.key(x + lane))));
    store(scores + x, load(scores + x) - rounded<Sum>(slope * distance));
  }
}

// Turns the products of pairs into scores: scale, softcap, ALiBi and bias. slopes <- the derivative of the softcap, if
// there is one.
template <class Sum>
__attribute__((noinline)) void finish_scores(const Pairs& pairs, Sum* scores, Sum* slopes) {
  constexpr int L = kLanesOf<Sum>;
  const Call& call = pairs.s.call;
  if (plain_scores(call)) return;
  const V<Sum> scale = splat(Sum(call.scale)), one = splat(Sum(1));
  const V<Sum> cap = splat(Sum(call.softcap)), part = splat(Sum(call.scale / call.softcap));
  for (long x = 0; x < pairs.count; x += L) {
    if (call.softcap) {
      const V<Sum> bent = tanh<Sum>(load(scores + x) * part);
      store(scores + x, bent * cap);
      store(slopes + x, one - bent * bent);
    } else {
      store(scores + x, load(scores + x) * scale);
    }
  }
  if (call.alibi.data) with_places(pairs.s, [&](const auto& places) { add_alibi<Sum>(pairs, places, scores); });
  if (call.bias.data)
    for (long x = 0; x < pairs.count; x++) scores[x] += bias_at<Sum>(pairs.s, pairs.row(x), pairs.key(x));
}

#endif
