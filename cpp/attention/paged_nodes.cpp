// The trie of page tables. It determines which keys are read once for several sequences.
#include <algorithm>
#include <numeric>

#include "attention/paged.h"

namespace redblue {
namespace {

// Sharing fewer keys costs more in partial results than it saves. Equal to MIN_SHARED_KEYS of
// src/redblue/schedules/paged_nodes.py; a test compares them.
constexpr std::int64_t kMinSharedKeys = 64;

class Trie {
 public:
  explicit Trie(const PagedCall& call) : call_(call), limits_(call.sequences) {
    for (std::int64_t b = 0; b < call.sequences; b++) limits_[b] = shareable_pages(b);
  }

  std::vector<Node> nodes() {
    std::vector<std::int64_t> members;
    for (std::int64_t b = 0; b < call_.sequences; b++)
      if (call_.starts[b + 1] > call_.starts[b]) members.push_back(b);
    if (call_.prefix < 0)
      std::stable_sort(members.begin(), members.end(), [&](auto a, auto b) {
        return std::lexicographical_compare(pages(a), pages(a) + limits_[a], pages(b), pages(b) + limits_[b]);
      });
    if (members.size() > 1 && call_.prefix > 0) {
      const std::int64_t shared = std::min(call_.prefix, fewest(members));
      if (shared) add(0, shared * size(), members);
      for (std::int64_t b : members) rest(b, shared);
    } else {
      split(members, 0, 0);
    }
    return std::move(nodes_);
  }

 private:
  const std::int64_t* pages(std::int64_t b) const { return call_.table + b * call_.most; }
  std::int64_t size() const { return call_.common.pages.size; }

  // The number of leading pages whose keys all queries of a sequence attend; 0 if scores depend on the sequence.
  std::int64_t shareable_pages(std::int64_t b) const {
    const std::int64_t keys = call_.lengths[b], queries = call_.starts[b + 1] - call_.starts[b];
    if (!call_.prefix || call_.common.by_sequence()) return 0;
    if (call_.left >= 0 && call_.left < keys - 1) return 0;
    std::int64_t limit = keys;
    if (call_.right >= 0) limit = std::min(limit, keys - queries + call_.right + 1);
    if (call_.tree) limit = std::min(limit, keys - call_.newest);
    return std::max<std::int64_t>(0, limit) / size();
  }
  std::int64_t fewest(const std::vector<std::int64_t>& members) const {
    std::int64_t pages = limits_[members[0]];
    for (std::int64_t b : members) pages = std::min(pages, limits_[b]);
    return pages;
  }
  void add(std::int64_t first, std::int64_t stop, std::vector<std::int64_t> members) {
    std::sort(members.begin(), members.end());
    nodes_.push_back({first, stop, std::move(members)});
  }
  // Adds a node for the keys of one sequence from a page on. A sequence without keys gets an empty node.
  void rest(std::int64_t b, std::int64_t page) {
    const std::int64_t first = page * size();
    if (first < call_.lengths[b] || !page) add(first, call_.lengths[b], {b});
  }
  // Adds nodes for `members`, which are sorted by their pages and share the pages before `page`. Pages before `begin`
  // are already in nodes.
  void split(const std::vector<std::int64_t>& members, std::int64_t begin, std::int64_t page) {
    for (std::size_t i = 0; i < members.size();) {
      const std::int64_t* const first = pages(members[i]);
      std::size_t j = i + 1;
      if (limits_[members[i]] > page)
        while (j < members.size() && limits_[members[j]] > page && pages(members[j])[page] == first[page]) j++;
      const std::vector<std::int64_t> group(members.begin() + i, members.begin() + j);
      i = j;
      if (group.size() == 1) {
        rest(group[0], begin);
        continue;
      }
      // Members are sorted, so the pages that the first and the last one share are shared by all, up to their limits.
      const std::int64_t* const last = pages(group.back());
      const std::int64_t most = fewest(group);
      std::int64_t stop = page + 1;
      while (stop < most && first[stop] == last[stop]) stop++;
      const bool worth = (stop - begin) * size() >= kMinSharedKeys;
      if (worth) add(begin * size(), stop * size(), group);
      split(group, worth ? stop : begin, stop);
    }
  }

  const PagedCall& call_;
  std::vector<std::int64_t> limits_;
  std::vector<Node> nodes_;
};

}  // namespace

std::vector<Node> shared_nodes(const PagedCall& call) { return Trie(call).nodes(); }

}  // namespace redblue
