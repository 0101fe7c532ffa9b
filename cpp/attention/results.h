// The results of rows in the forward pass: initial values, finished and unfinished results. Included once inside each
// target region (vector/region.h).
template <class T, class F>
struct Results : Formats<T, F> {
  using Base = Formats<T, F>;
  using typename Base::Sum;
  using Base::kLowest;

  // The log-sum-exp of a row, from its maximum and its sum.
  static Sum log_sum(const Call& call, Sum top, Sum sum) {
    return Sum(double(top) * Sum(factor_left(call)) + std::log(double(sum)));  // rounds the factor as backward does
  }

  // The address of the unfinished results of row r.
  static Sum* partial_row(const Stream& s, void* partial, long r) {
    return static_cast<Sum*>(partial) + (s.index * s.call.stacked() + r) * (s.call.d_v + 2);
  }

  // The initial maximum of a row: the sink of its head, which only the first piece of the keys includes.
  static Sum first_score(const Stream& s, long r, const Piece& piece) {
    const bool has = s.call.sinks.data && piece.key == 0;
    return has ? at<const Sum>(s.call.sinks, 0)[s.kv_head * s.call.group + r % s.call.group] : kLowest;
  }

  // Writes the finished results of one row.
  static void finish_row(const Stream& s, long r, Sum top, Sum sum, const Sum* weighted, T* out) {
    at<Sum>(s.call.lse, 0)[s.number(r)] = log_sum(s.call, top, sum);
    unpack_row(weighted, s.call.d_v, sum == 0 ? Sum(0) : 1 / sum, out, s.call.out.column);
  }

  // Writes the results of one row: finished if `partial` is null, otherwise unfinished.
  static void store_results(const Stream& s, long r, Sum top, Sum sum, const Sum* out, void* partial, T* to) {
    if (!partial) return finish_row(s, r, top, sum, out, to);
    Sum* const unfinished = partial_row(s, partial, r);
    unfinished[0] = top;
    unfinished[1] = sum;
    std::copy_n(out, s.call.d_v, unfinished + 2);
  }

  // Combines unfinished results of rows r0 .. r0 + count - 1 of one stream, in the order of the list.
  static Moved merge(const Call& call, std::int64_t stream, long r0, long count, const Partial* partials, long many,
                     Arena& arena) {
    const Stream s(call, stream);
    const long width = call.d_v + 2;
    Sum* const weighted = arena.take<Sum>(call.d_v);
    const auto out_row = s.row<T>(call.out);
    for (long r = r0; r < r0 + count; r++) {
      const auto part_of = [&](long p) {
        const Partial& partial = partials[p];
        return static_cast<const Sum*>(partial.data) + (stream * partial.rows + partial.shift + r) * width;
      };
      Sum top = kLowest, sum = 0;
      for (long p = 0; p < many; p++) top = std::max(top, part_of(p)[0]);
      std::fill_n(weighted, call.d_v, Sum(0));
      for (long p = 0; p < many; p++) {
        const Sum* const part = part_of(p);
        const Sum factor = part[0] == kLowest ? 0 : std::exp((part[0] - top) * Sum(factor_left(call)));
        sum += part[1] * factor;
        for (long c = 0; c < call.d_v; c++) weighted[c] += part[2 + c] * factor;
      }
      finish_row(s, r, top, sum, weighted, out_row(r));
    }
    return {many * count * width, count * (call.d_v + 1)};
  }
};
