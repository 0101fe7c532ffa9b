// Compares random calls on paged keys, in pages of exactly the required size, with a plain loop.
#pragma once
#include <vector>

#include "attention/paged.h"
#include "attention/row_copy.h"
#include "tests/draws.h"

namespace {

std::int64_t width() { return chance(0.2) ? 32 * pick(1, 4) : pick(1, 70); }

// A random call on paged keys. Members are declared in the order in which they are drawn.
struct PagedCase {
  const Isa& isa;
  const Number number = Number(pick(0, 3)), sums = number == Number::kFloat64 ? Number::kFloat64 : Number::kFloat32;
  const std::int64_t sequences = pick(1, 5), kv_heads = pick(1, 3), group = chance(0.2) ? pick(5, 40) : pick(1, 4);
  const std::int64_t heads = kv_heads * group, page = chance(0.5) ? pick(1, 5) : 16;
  const bool aliased = chance(0.25);  // V is a slice of K, from column `column` on
  const std::int64_t d = width(), d_v = aliased ? pick(1, d) : width(), column = aliased ? pick(0, d - d_v) : 0;
  const std::int64_t prefix = chance(0.2) ? pick(1, 80 / page) : 0;  // pages that all sequences share
  std::vector<std::int64_t> starts{0}, lengths;
  const bool long_one = chance(0.1);  // one sequence is long enough for several pieces
  std::int64_t most = 0, pages = 0, most_queries = 0, longest = 0;
  std::vector<std::int64_t> table;
  const bool drawn = draw_table();
  Buffer k{number, pages, kv_heads, page, d}, v{number, pages, kv_heads, page, d_v};
  Buffer q{number, 1, heads, starts.back(), d}, out{number, 1, heads, starts.back(), d_v};
  Buffer lse{sums, 1, heads, starts.back(), 1, true};
  const bool sunk = chance(0.3), sloped = chance(0.2), biased = chance(0.2);
  Buffer sinks{sums, 1, 1, 1, heads, true}, alibi{sums, sequences, heads, 1, 1};
  const Number bias_number = random_bias_number(sums);
  Buffer bias{bias_number, sequences, heads, most_queries, longest, false, true};
  const std::int64_t newest = chance(0.3) ? pick(1, 8) : 0;
  std::vector<std::uint8_t> tree;
  PagedCall call;

  explicit PagedCase(const Isa& row) : isa(row) {
    Call& c = call.common;
    c.number = number;
    c.kv_heads = kv_heads, c.group = group, c.d = d, c.d_v = d_v;
    c.scale = 1 / std::sqrt(double(d)), c.softcap = chance(0.3) ? 2.0 : 0;
    c.rows = pick(1, 150), c.cols = pick(1, 150), c.threads = int(pick(1, 4));
    c.q = q.array, c.k = k.array, c.v = v.array, c.out = out.array, c.lse = lse.array;
    c.pages.size = page, c.pages.k_step = k.array.lead[0], c.pages.v_step = v.array.lead[0];
    if (aliased) {
      c.v = k.array, c.v.data += column * k.stride[3] * bytes_of(number), c.pages.v_step = c.pages.k_step;
      if (k.stride[3] == 1) c.pages.v_in_k = column;
    }
    if (sunk) c.sinks = sinks.array, c.sinks.lead[0] = 0;  // all sequences share the sinks
    if (sloped) c.alibi = alibi.array, c.alibi.row = c.alibi.column = 0;
    if (biased) c.bias = bias.array, c.bias_number = bias_number;
    call.sequences = sequences, call.starts = starts.data(), call.lengths = lengths.data();
    call.table = table.data(), call.most = most;
    call.left = chance(0.3) ? pick(0, 60) : -1, call.right = chance(0.3) ? pick(0, 9) : chance(0.5) ? 0 : -1;
    call.prefix = prefix && chance(0.5) ? prefix : chance(0.3) ? 0 : -1;
    if (!newest) return;
    for (std::int64_t i = 0; i < starts.back() * newest; i++) tree.push_back(chance(0.6));
    call.tree = tree.data(), call.newest = newest, call.left = call.right = -1;
  }
  PagedCase(const PagedCase&) = delete;

  // All sequences begin with the pages of the prefix; some share more pages with an earlier sequence. Entries beyond a
  // sequence's keys are invalid.
  bool draw_table() {
    for (std::int64_t b = 0; b < sequences; b++) {
      starts.push_back(starts.back() + (chance(0.6) ? 1 : pick(0, 6)));
      lengths.push_back(chance(0.1) ? 0 : long_one && !b ? pick(1100, 1300) : pick(1, 150));
      lengths[b] = std::max(lengths[b], prefix * page);
      most_queries = std::max(most_queries, starts[b + 1] - starts[b]), longest = std::max(longest, lengths[b]);
      most = std::max(most, (lengths[b] + page - 1) / page);
    }
    table.assign(sequences * most, -7);
    for (std::int64_t b = 0; b < sequences; b++) {
      const std::int64_t needed = (lengths[b] + page - 1) / page, other = b && chance(0.6) ? pick(0, b - 1) : b;
      const std::int64_t common = other == b ? 0 : std::min(needed, (lengths[other] + page - 1) / page);
      const std::int64_t shared = b ? std::max(prefix, common ? pick(0, common) : 0) : 0;
      for (std::int64_t i = 0; i < needed; i++)
        table[b * most + i] = i < shared ? table[(i < prefix ? 0 : other) * most + i] : pages++;
    }
    return true;
  }

  bool attends(std::int64_t b, std::int64_t i, std::int64_t j) const {
    const std::int64_t own = i + lengths[b] - (starts[b + 1] - starts[b]), older = lengths[b] - newest;
    if (newest) return j < older || tree[(starts[b] + i) * newest + j - older];
    return (call.left < 0 || j >= own - call.left) && (call.right < 0 || j <= own + call.right);
  }
  double score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (!attends(b, i, j)) return -std::numeric_limits<double>::infinity();
    double dot = 0;
    for (std::int64_t c = 0; c < d; c++)
      dot += q.get(0, h, starts[b] + i, c) * k.get(table[b * most + j / page], h / group, j % page, c);
    dot *= call.common.scale;
    if (call.common.softcap) dot = call.common.softcap * std::tanh(dot / call.common.softcap);
    const std::int64_t own = i + lengths[b] - (starts[b + 1] - starts[b]);
    if (sloped) dot -= alibi.get(b, h, 0, 0) * std::abs(own - j);
    return biased ? dot + bias.get(b, h, i, j) : dot;
  }
  double value(std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t c) const {
    const std::int64_t at = table[b * most + j / page];
    return aliased ? k.get(at, h / group, j % page, column + c) : v.get(at, h / group, j % page, c);
  }
  void compare_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const double nothing = -std::numeric_limits<double>::infinity();
    const double sink = sunk ? sinks.get(0, 0, 0, h) : nothing;
    std::vector<double> s(lengths[b]);
    double top = sink;
    for (std::int64_t j = 0; j < lengths[b]; j++) top = std::max(top, s[j] = score(b, h, i, j));
    const double base = top == nothing ? 0 : top;
    double total = std::exp(sink - base);
    for (double& x : s) total += x = std::exp(x - base);
    compare("paged lse", isa, number, lse.get(0, h, starts[b] + i, 0), base + std::log(total));
    for (std::int64_t c = 0; c < d_v; c++) {
      double sum = 0;
      for (std::int64_t j = 0; j < lengths[b]; j++) sum += s[j] * value(b, h, j, c);
      compare("paged out", isa, number, out.get(0, h, starts[b] + i, c), total == 0 ? 0 : sum / total);
    }
  }
};

void one_paged_call(const Isa& isa) {
  const PagedCase random(isa);
  forward(random.call, isa);
  for (std::int64_t b = 0; b < random.sequences; b++)
    for (std::int64_t h = 0; h < random.heads; h++)
      for (std::int64_t i = 0; i < random.starts[b + 1] - random.starts[b]; i++) random.compare_row(b, h, i);
}

// Copies rows of bytes into pages of exactly the required size. Heads lie within rows or around them.
void one_row_copy() {
  const std::int64_t heads = pick(1, 3), width = pick(1, 40), page = pick(1, 16), pages = pick(1, 2000);
  const std::int64_t row = heads * width, count = pick(0, pages * page);
  const bool outside = chance(0.5), spread = chance(0.3);  // spread: columns of the source are `count` apart
  std::vector<char> from(count * row), to(pages * page * row, 0);
  for (char& x : from) x = char(pick(1, 100));
  std::vector<std::int64_t> at(count), rows(count);
  for (std::int64_t i = 0; i < count; i++) at[i] = pages - 1 - i / page, rows[i] = i % page;
  RowCopy copy{at.data(), rows.data(), count, heads, width, 1};
  copy.from_row = spread ? 1 : row, copy.from_head = spread ? count * width : width;
  copy.from_column = spread ? count : 1;
  copy.to_page = page * row, copy.to_row = outside ? width : row, copy.to_head = outside ? page * width : width;
  copy.to_column = 1;
  copy.run(from.data(), to.data(), int(pick(1, 4)));
  for (std::int64_t i = 0; i < count * row; i++) {
    const std::int64_t r = i / row, h = i % row / width, c = i % width;
    const char is = to[at[r] * copy.to_page + rows[r] * copy.to_row + h * copy.to_head + c];
    const char wanted = from[r * copy.from_row + h * copy.from_head + c * copy.from_column];
    if (is != wanted) throw Failure("row copy: row " + std::to_string(r) + " of head " + std::to_string(h));
  }
}

}  // namespace
