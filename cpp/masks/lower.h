// The lowered form of a boolean array (redblue.masks.lowered): for each panel of stacked rows, runs of keys.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace redblue {

struct LoweredArray {
  std::vector<std::int64_t> counts;  // number of runs of each panel
  std::vector<std::int64_t> runs;    // per run: its first key, the key after its last, its first word or -1
  std::vector<std::uint64_t> words;
  std::int64_t pairs = 0;            // attending pairs of a stacked row and a key
};

struct TooManyWords : std::length_error {
  TooManyWords() : std::length_error("a lowered mask of more words than the limit") {}
};

// attends: n_q rows of n_k bytes, 0 or 1, `stride` bytes apart (0: one row for all queries). Each query has `group`
// stacked rows; a panel has `panel` rows, at most 64. A run of fewer than `least` keys that all rows attend also gets
// words if it touches a run with words. Throws TooManyWords if there are more than `most` words.
LoweredArray lower_array(const std::uint8_t* attends, std::int64_t stride, std::int64_t n_q, std::int64_t n_k,
                         std::int64_t group, std::int64_t panel, std::int64_t least, std::size_t most);

}  // namespace redblue
