#include "masks/lower.h"

#include <algorithm>
#include <cstring>

namespace redblue {
namespace {

constexpr std::int64_t CHUNK = 8;  // keys per load, one byte each
constexpr std::uint64_t ONES = 0x0101010101010101;

// The stacked rows of one query in a panel, and their bits.
struct QueryBits {
  const std::uint8_t* attends;
  std::uint64_t bits;
};

std::uint64_t load(const std::uint8_t* from) {
  std::uint64_t bytes;
  std::memcpy(&bytes, from, CHUNK);
  return bytes;
}

std::uint64_t word_of(const std::vector<QueryBits>& queries, std::int64_t key) {
  std::uint64_t word = 0;
  for (const QueryBits& query : queries) word |= query.attends[key] ? query.bits : 0;
  return word;
}

// Writes the word of every key. Bit b is set if row b of the panel attends the key.
void fill_words(const std::vector<QueryBits>& queries, std::uint64_t all, std::int64_t n_k, std::uint64_t* words) {
  std::int64_t key = 0;
  for (; key + CHUNK <= n_k; key += CHUNK) {
    std::uint64_t some = 0, every = ONES;
    for (const QueryBits& query : queries) {
      const std::uint64_t eight = load(query.attends + key);
      some |= eight;
      every &= eight;
    }
    if (some == 0 || every == ONES) {  // most chunks of most masks
      std::fill_n(words + key, CHUNK, some == 0 ? 0 : all);
      continue;
    }
    std::uint64_t chunk[CHUNK] = {};
    for (const QueryBits& query : queries)
      for (std::int64_t i = 0; i < CHUNK; i++) chunk[i] |= query.bits & -std::uint64_t(query.attends[key + i]);
    std::copy_n(chunk, CHUNK, words + key);
  }
  for (; key < n_k; key++) words[key] = word_of(queries, key);
}

// Appends the runs of one panel, given the words of its keys. Returns the number of runs.
std::int64_t append_runs(const std::vector<std::uint64_t>& words, std::uint64_t all, std::int64_t least,
                         LoweredArray& into) {
  const std::int64_t n_k = std::int64_t(words.size());
  const auto is_partial = [&](std::int64_t key) {
    return key >= 0 && key < n_k && words[key] != 0 && words[key] != all;
  };
  std::int64_t count = 0, open_until = -1;  // the end of the last run with words
  for (std::int64_t key = 0; key < n_k;) {
    if (words[key] == 0) {
      key++;
      continue;
    }
    const bool full = words[key] == all;
    std::int64_t stop = key + 1;
    while (stop < n_k && (full ? words[stop] == all : is_partial(stop))) stop++;
    if (full) into.pairs += (stop - key) * __builtin_popcountll(all);
    else for (std::int64_t j = key; j < stop; j++) into.pairs += __builtin_popcountll(words[j]);
    if (full && (stop - key >= least || !(is_partial(key - 1) || is_partial(stop)))) {
      into.runs.insert(into.runs.end(), {key, stop, -1});
      count++;
    } else {
      if (open_until == key) {
        into.runs[into.runs.size() - 2] = stop;
      } else {
        into.runs.insert(into.runs.end(), {key, stop, std::int64_t(into.words.size())});
        count++;
      }
      into.words.insert(into.words.end(), words.begin() + key, words.begin() + stop);
      open_until = stop;
    }
    key = stop;
  }
  return count;
}

}  // namespace

LoweredArray lower_array(const std::uint8_t* attends, std::int64_t stride, std::int64_t n_q, std::int64_t n_k,
                         std::int64_t group, std::int64_t panel, std::int64_t least, std::size_t most) {
  LoweredArray result;
  std::vector<std::uint64_t> words(n_k);
  std::vector<QueryBits> queries;
  const std::int64_t rows = n_q * group;
  for (std::int64_t first = 0; first < rows; first += panel) {
    const std::int64_t stop = std::min(first + panel, rows);
    queries.clear();
    std::uint64_t all = 0;
    for (std::int64_t row = first; row < stop; row++) {
      const std::uint64_t bit = std::uint64_t(1) << (row - first);
      if (row == first || row % group == 0) queries.push_back({attends + row / group * stride, 0});
      queries.back().bits |= bit;
      all |= bit;
    }
    fill_words(queries, all, n_k, words.data());
    result.counts.push_back(append_runs(words, all, least, result));
    if (result.words.size() > most) throw TooManyWords();
  }
  return result;
}

}  // namespace redblue
