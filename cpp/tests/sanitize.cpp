// Compares random small calls, on buffers of exactly the required size, with a plain loop. For builds with sanitizers
// (make sanitize). Usage: sanitize [calls] [seed]; prints the seed and number of a failing call.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "attention/call.h"
#include "base/share_out.h"
#include "tests/draws.h"
#include "tests/paged.h"

using namespace redblue;

// The number of allocations of this thread until one fails; negative: none fails.
static thread_local int allocations_left = -1;

void* operator new(std::size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) allocations_left--;
  if (void* const memory = std::malloc(std::max<std::size_t>(1, bytes))) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocations_left == 0 ? nullptr : std::malloc(std::max<std::size_t>(1, bytes));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

// A random mask (plane, query, key), dense and as lists of runs.
struct Mask {
  std::int64_t planes, n_q, n_k;
  std::vector<char> dense;
  std::int64_t by_key_head[4] = {}, by_head[12] = {};  // planes of (lead, head)
  struct Lists {
    std::vector<std::int64_t> starts{0};
    std::vector<Run> runs;
    std::vector<std::uint64_t> bits;
  } stacked, by_query;

  Mask(std::int64_t p, std::int64_t q, std::int64_t k) : planes(p), n_q(q), n_k(k), dense(p * q * k) {
    const double share = chance(0.3) ? 1 : chance(0.5) ? 0.5 : 0.05;
    const std::int64_t edge = chance(0.5) ? 1 : pick(1, 40);  // of a block of the mask
    for (std::int64_t plane = 0; plane < planes; plane++)
      for (std::int64_t i = 0; i < n_q; i += edge)
        for (std::int64_t j = 0; j < n_k; j += edge) {
          const bool live = chance(share);
          for (std::int64_t a = i; a < std::min(n_q, i + edge); a++)
            for (std::int64_t b = j; b < std::min(n_k, j + edge); b++) dense[(plane * n_q + a) * n_k + b] = live;
        }
  }
  bool attends(std::int64_t plane, std::int64_t i, std::int64_t j) const { return dense[(plane * n_q + i) * n_k + j]; }

  void list(Lists& to, std::int64_t group, std::int64_t panel) const {
    const std::int64_t rows = n_q * group;
    for (std::int64_t plane = 0; plane < planes; plane++)
      for (std::int64_t r = 0; r < rows; r += panel) {
        const std::int64_t count = std::min(panel, rows - r);
        const std::size_t first = to.runs.size();
        for (std::int64_t j = 0; j < n_k; j++) {
          std::uint64_t word = 0, all = 0;
          for (std::int64_t b = 0; b < count; b++)
            all |= 1ull << b, word |= std::uint64_t(attends(plane, (r + b) / group, j)) << b;
          if (!word) continue;
          const bool whole = word == all;
          Run* const last = to.runs.size() > first ? &to.runs.back() : nullptr;
          if (last && last->stop == j && (last->bits < 0) == whole)
            last->stop++;
          else
            to.runs.push_back({j, j + 1, whole ? -1 : std::int64_t(to.bits.size())});
          if (!whole) to.bits.push_back(word);
        }
        to.starts.push_back(to.runs.size());
      }
  }
  // The attending pairs by query and by key.
  std::vector<std::int64_t> query_starts{}, key_starts{};
  std::vector<std::int32_t> keys, queries;
  Edges edges() {
    for (std::int64_t plane = 0; plane < planes; plane++) {
      for (std::int64_t i = 0; i < n_q; i++) {
        query_starts.push_back(keys.size());
        for (std::int64_t j = 0; j < n_k; j++)
          if (attends(plane, i, j)) keys.push_back(std::int32_t(j));
      }
      query_starts.push_back(keys.size());
      for (std::int64_t j = 0; j < n_k; j++) {
        key_starts.push_back(queries.size());
        for (std::int64_t i = 0; i < n_q; i++)
          if (attends(plane, i, j)) queries.push_back(std::int32_t(i));
      }
      key_starts.push_back(queries.size());
    }
    return {query_starts.data(), key_starts.data(), keys.data(), queries.data(), n_q, n_k};
  }

  // Chooses a plane for every key head; its query heads use the same plane.
  void share(std::int64_t lead, std::int64_t kv_heads, std::int64_t group) {
    for (std::int64_t head = 0; head < lead * kv_heads; head++) {
      by_key_head[head] = pick(0, planes - 1);
      std::fill_n(by_head + head * group, group, by_key_head[head]);
    }
  }
  Pattern pattern(Lists& lists, std::int64_t* table, std::int64_t heads, std::int64_t group, std::int64_t panel) {
    list(lists, group, panel);
    Pattern result;
    result.starts = lists.starts.data(), result.runs = lists.runs.data(), result.bits = lists.bits.data();
    result.panel = panel, result.panels = (n_q * group + panel - 1) / panel, result.planes_count = planes;
    result.scattered = chance(0.3);
    result.planes.data = reinterpret_cast<char*>(table);
    result.planes.lead[0] = heads, result.planes.head = 1;
    return result;
  }
};

std::int64_t random_length() { return chance(0.1) ? 0 : chance(0.5) ? pick(1, 9) : pick(10, 140); }
std::int64_t random_width() { return chance(0.5) ? pick(1, 9) : pick(10, 70); }

// A random call: sizes, options and buffers. Members are declared in the order in which they are drawn.
struct Case {
  const Isa& isa;
  const Number number = Number(pick(0, 3)), sums = number == Number::kFloat64 ? Number::kFloat64 : Number::kFloat32;
  const std::int64_t lead = pick(1, 2), kv_heads = pick(1, 2), group = pick(1, 3), heads = kv_heads * group;
  const std::int64_t n_q = random_length(), n_k = random_length(), d = random_width(), d_v = random_width();
  Call call = random_options();
  Buffer q{number, lead, heads, n_q, d}, k{number, lead, kv_heads, n_k, d}, v{number, lead, kv_heads, n_k, d_v};
  Buffer out{number, lead, heads, n_q, d_v}, dout{number, lead, heads, n_q, d_v}, dq{number, lead, heads, n_q, d};
  Buffer dk{number, lead, kv_heads, n_k, d}, dv{number, lead, kv_heads, n_k, d_v};
  Buffer lse{sums, lead, heads, n_q, 1, true}, delta{sums, lead, heads, n_q, 1, true},
      dlse{sums, lead, heads, n_q, 1, true};
  const Number bias_number = random_bias_number(sums);
  const bool biased = chance(0.5), sunk = chance(0.3), bias_learns = biased && chance(0.7);
  Buffer bias{bias_number, lead, heads, n_q, n_k, false, true}, sinks{sums, 1, 1, 1, heads, true};
  const bool sloped = chance(0.3);
  Buffer alibi{sums, lead, heads, 1, 1};
  std::vector<std::int64_t> places = random_places();  // empty: the call is the whole problem
  Buffer dbias{sums, lead, heads, n_q, n_k, false, true};
  const bool listed = chance(0.5);
  Mask mask{pick(1, 3), n_q, n_k};

  explicit Case(const Isa& row) : isa(row) {
    call.q = q.array, call.k = k.array, call.v = v.array, call.out = out.array, call.lse = lse.array;
    call.dout = dout.array, call.dq = dq.array, call.dk = dk.array, call.dv = dv.array, call.delta = delta.array;
    if (listed) {
      const std::int64_t panel = isa.kernels[int(number)].lanes;
      call.first = -n_q, call.end = n_k + 1;
      mask.share(lead, kv_heads, group);
      call.pattern = mask.pattern(mask.stacked, mask.by_key_head, kv_heads, group, panel);
      call.by_query = mask.pattern(mask.by_query, mask.by_head, heads, 1, panel);
      if (!bias_learns && chance(0.5)) call.edges = mask.edges();
    }
    if (biased) call.bias = bias.array, call.bias_number = bias_number;
    if (bias_learns) call.dbias = dbias.array;
    if (sunk) call.sinks = sinks.array;
    if (sloped) call.alibi = alibi.array, call.alibi.row = call.alibi.column = 0;
    if (!places.empty()) call.positions.data = reinterpret_cast<char*>(places.data());
    if (chance(0.5)) call.dlse = dlse.array;
  }
  Case(const Case&) = delete;

  std::vector<std::int64_t> random_places() const {
    if (chance(0.6)) return {};
    std::vector<std::int64_t> result{pick(n_q, 1000), pick(n_k, 1000), heads + pick(0, 2), pick(0, 3)};
    for (std::int64_t i = 0; i < n_q + n_k; i++) result.push_back(pick(0, 999));
    return result;
  }
  // Alibi's distance of query i and key j.
  std::int64_t distance(std::int64_t i, std::int64_t j) const {
    if (places.empty()) return std::abs(i + n_k - n_q - j);
    return std::abs(places[4 + i] + places[1] - places[0] - places[4 + n_q + j]);
  }

  Call random_options() const {
    Call c;
    c.number = number;
    c.leads = 1;
    c.lead_sizes[0] = lead;
    c.kv_heads = kv_heads, c.group = group, c.heads = heads, c.n_q = n_q, c.n_k = n_k, c.d = d, c.d_v = d_v;
    c.scale = chance(0.1) ? 0 : chance(0.1) ? -0.3 : 1 / std::sqrt(double(d));
    c.softcap = chance(0.3) ? 2.0 : 0;
    c.first = chance(0.5) ? -n_q : pick(-n_q, n_k);
    c.end = chance(0.5) ? n_k + 1 : c.first + pick(1, n_q + n_k + 1);
    c.dropout = chance(0.2) ? 0.3 : 0;
    c.seed = generator();
    c.rows = pick(1, 150), c.cols = pick(1, 150), c.threads = int(pick(1, 4));
    c.pieces = chance(0.5) ? 1 : pick(2, 5);
    if (chance(0.5)) {
      const std::int64_t depth = pick(1, 40);
      c.spilled = {depth * pick(1, 4), depth * pick(1, 4), depth, pick(1, 150), pick(1, 80), pick(1, 150),
                   pick(1, 80), pick(1, 150), pick(1, 80), pick(1, 200), chance(0.5)};
    } else if (chance(0.5)) {
      c.dq_cols = pick(1, 150);
    }
    return c;
  }
};

// The reference: computes attention row by row in double precision and compares it with the results of the call.
struct Reference {
  const Case& of;
  std::vector<double> dk, dv, dbias, s, slope, p, dp;  // dk, dv, dbias: sums over all rows; others: of one row
  double lse = 0;

  explicit Reference(const Case& c)
      : of(c), dk(c.lead * c.kv_heads * c.n_k * c.d), dv(c.lead * c.kv_heads * c.n_k * c.d_v), dbias(c.dbias.extent),
        s(c.n_k), slope(c.n_k), p(c.n_k), dp(c.n_k) {}

  static std::int64_t at_dbias(const Case& c, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return b * c.dbias.stride[0] + h * c.dbias.stride[1] + i * c.dbias.stride[2] + j * c.dbias.stride[3];
  }

  // The score of query i and key j, with the slope of the softcap; -inf if the query does not attend the key.
  double score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    const Call& call = of.call;
    double dot = 0;
    for (std::int64_t c = 0; c < of.d; c++) dot += of.q.get(b, h, i, c) * of.k.get(b, h / of.group, j, c);
    double value = dot * call.scale;
    slope[j] = 1;
    if (call.softcap) {
      const double bent = std::tanh(value / call.softcap);
      value = call.softcap * bent, slope[j] = 1 - bent * bent;
    }
    if (of.sloped) value -= of.alibi.get(b, h, 0, 0) * double(of.distance(i, j));
    if (of.biased) value += of.bias.get(b, h, i, j);
    const bool outside = j < i + call.first || j >= i + call.end;
    const bool masked = of.listed && !of.mask.attends(of.mask.by_head[b * of.heads + h], i, j);
    return outside || masked ? kNothing : value;
  }

  void softmax(std::int64_t b, std::int64_t h, std::int64_t i) {
    const double sink = of.sunk ? of.sinks.get(0, 0, 0, h) : kNothing;
    double top = sink;
    for (std::int64_t j = 0; j < of.n_k; j++) top = std::max(top, s[j] = score(b, h, i, j));
    const double base = top == kNothing ? 0 : top;
    double total = std::exp(sink - base);
    for (std::int64_t j = 0; j < of.n_k; j++) total += p[j] = std::exp(s[j] - base);
    for (std::int64_t j = 0; j < of.n_k; j++) p[j] /= total == 0 ? 1 : total;
    lse = base + std::log(total);
  }

  // Compares lse, out and dq of a row, and adds its contributions to the other gradients.
  void row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t kv = h / of.group, plane = b * of.kv_heads + kv;
    softmax(b, h, i);
    compare("lse", of.isa, of.number, of.lse.get(b, h, i, 0), lse);
    double delta = of.call.dlse.data ? -of.dlse.get(b, h, i, 0) : 0;
    for (std::int64_t c = 0; c < of.d_v; c++) {
      double value = 0;
      for (std::int64_t j = 0; j < of.n_k; j++) value += p[j] * of.v.get(b, kv, j, c);
      compare("out", of.isa, of.number, of.out.get(b, h, i, c), value);
      delta += value * of.dout.get(b, h, i, c);
    }
    std::vector<double> dq(of.d);
    for (std::int64_t j = 0; j < of.n_k; j++) {
      dp[j] = 0;
      for (std::int64_t c = 0; c < of.d_v; c++) {
        dp[j] += of.dout.get(b, h, i, c) * of.v.get(b, kv, j, c);
        dv[(plane * of.n_k + j) * of.d_v + c] += p[j] * of.dout.get(b, h, i, c);
      }
      const double ds = p[j] * (dp[j] - delta), dx = ds * slope[j] * of.call.scale;
      if (of.bias_learns) dbias[at_dbias(of, b, h, i, j)] += ds;
      for (std::int64_t c = 0; c < of.d; c++) {
        dq[c] += dx * of.k.get(b, kv, j, c);
        dk[(plane * of.n_k + j) * of.d + c] += dx * of.q.get(b, h, i, c);
      }
    }
    for (std::int64_t c = 0; c < of.d; c++) compare("dq", of.isa, of.number, of.dq.get(b, h, i, c), dq[c]);
  }

  void compare_keys() const {
    for (std::int64_t b = 0; b < of.lead; b++)
      for (std::int64_t h = 0; h < of.kv_heads; h++)
        for (std::int64_t j = 0; j < of.n_k; j++) {
          const std::int64_t at = (b * of.kv_heads + h) * of.n_k + j;
          for (std::int64_t c = 0; c < of.d; c++)
            compare("dk", of.isa, of.number, of.dk.get(b, h, j, c), dk[at * of.d + c]);
          for (std::int64_t c = 0; c < of.d_v; c++)
            compare("dv", of.isa, of.number, of.dv.get(b, h, j, c), dv[at * of.d_v + c]);
        }
  }
  void compare_bias() const {
    for (std::int64_t b = 0; b < of.lead; b++)
      for (std::int64_t h = 0; h < of.heads; h++)
        for (std::int64_t i = 0; i < of.n_q; i++)
          for (std::int64_t j = 0; j < of.n_k; j++)
            compare("dbias", of.isa, of.number, of.dbias.get(b, h, i, j), dbias[at_dbias(of, b, h, i, j)]);
  }

  static constexpr double kNothing = -std::numeric_limits<double>::infinity();
};

void one_call(const Isa& isa) {
  const Case random(isa);
  forward(random.call, isa);
  backward(random.call, isa);
  if (random.call.dropout > 0) return;
  Reference reference(random);
  for (std::int64_t b = 0; b < random.lead; b++)
    for (std::int64_t h = 0; h < random.heads; h++)
      for (std::int64_t i = 0; i < random.n_q; i++) reference.row(b, h, i);
  reference.compare_keys();
  const bool exact = random.number == Number::kFloat64 || random.number == Number::kFloat32;
  if (random.bias_learns && exact) reference.compare_bias();
}

// Concurrent callers share the workers, and a task that throws leaves the workers intact.
void many_callers() {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; caller++)
    callers.emplace_back([&wrong, caller] {
      for (int round = 0; round < 50; round++) {
        std::vector<int> done(23);
        share_out(23, 3, [&](std::int64_t task) { done[task]++; });
        wrong += done != std::vector<int>(23, 1);
        if ((round + caller) % 5) continue;
        try {
          share_out(9, 3, [](std::int64_t task) {
            if (task == 4) throw std::bad_alloc();
          });
          wrong++;
        } catch (const std::bad_alloc&) {
        }
      }
    });
  for (std::thread& caller : callers) caller.join();
  if (wrong) throw Failure("share_out: a task was not done once, or an exception was lost");
}

// The caller runs out of memory at some point in a call that also creates workers. The call either fails before its
// first task or does every task. Afterwards, workers do no task of the ended call, and they work for the next call.
void little_memory() {
  for (int allowed = 0; allowed < 30; allowed++) {
    const int threads = 4 + allowed;
    std::vector<int> done(threads);
    bool failed = false;
    const std::function<void(std::int64_t)> work = [&](std::int64_t task) { done[task]++; };
    allocations_left = allowed;
    try {
      share_out(threads, threads, work);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    allocations_left = -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // in case a worker does a task too late
    if (done != std::vector<int>(threads, failed ? 0 : 1)) throw Failure("share_out: a call without memory left tasks");
  }
}

}  // namespace

int main(int count, char** arguments) {
  const long calls = count > 1 ? std::atol(arguments[1]) : 300;
  const std::uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
  int rows = 0;
  std::vector<const Isa*> all = list_isas();
  all.insert(all.end(), list_emulated_isas().begin(), list_emulated_isas().end());
  for (const Isa* row : all) {
    const Isa& isa = *row;
    if (!isa.supported()) {
      std::printf("%s: this CPU cannot run it\n", isa.name);
      continue;
    }
    for (long call = 0; call < calls; call++) try {
        generator.seed(seed * 1000003 + call);
        one_call(isa);
        one_paged_call(isa);
        one_row_copy();
      } catch (const Failure& failure) {
        std::printf("FAILED: seed %llu, call %ld: %s\n", static_cast<unsigned long long>(seed), call, failure.what());
        return 1;
      }
    rows++;
  }
  little_memory();
  many_callers();
  std::printf("%ld calls on each of %d instruction sets, callers with little memory and side by side: as expected\n",
              calls, rows);
  return 0;
}
