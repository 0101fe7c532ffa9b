// Belady's MIN: the optimal replacement policy, which knows future accesses and has the fewest fills.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <stdexcept>
#include <utility>
#include <vector>

#include "simulator/cache.h"

namespace redblue {

// Returns, for each access, the index of the next access that needs the content of the same line, or `accesses` if
// there is none. most: the largest line number.
inline std::vector<std::int64_t> next_needs(const std::int64_t* lines, const std::int8_t* kinds, std::size_t accesses,
                                            std::int64_t most, bool fetch_on_write) {
  const std::int64_t never = std::int64_t(accesses);
  std::vector<std::int64_t> needed(accesses), next(most + 1, never);
  for (std::int64_t i = never - 1; i >= 0; --i) {
    needed[i] = next[lines[i]];
    if (kinds[i] == kDiscard) continue;
    const bool reads = kinds[i] == kRead || kinds[i] == kWrite || (kinds[i] == kOverwrite && fetch_on_write);
    next[lines[i]] = reads ? i : never;
  }
  return needed;
}

// Simulates one fully associative level of `capacity` lines, empty at first and flushed at the end. Evicts the line
// whose content is needed last. Content that is overwritten before it is read is not needed. A discard is not an access
// and does not change which content is needed: if a line is read or partly written after its discard, it is filled,
// unless the cache still holds it.
inline LineCounts belady(const std::int64_t* lines, const std::int8_t* kinds, std::size_t accesses,
                         std::int64_t capacity, bool fetch_on_write) {
  if (capacity < 1) throw std::invalid_argument("a cache must hold at least 1 line");
  std::int64_t most = -1;
  for (std::size_t i = 0; i < accesses; ++i) {
    check_access(lines[i], kinds[i]);
    most = std::max(most, lines[i]);
  }
  const std::int64_t never = std::int64_t(accesses);
  const std::vector<std::int64_t> needed = next_needs(lines, kinds, accesses, most, fetch_on_write);
  LineCounts counts;
  Discarded discarded;
  std::vector<bool> held(most + 1), dirty(most + 1);
  std::vector<std::int64_t> due(most + 1, never);               // the next access that needs a held line's content
  std::priority_queue<std::pair<std::int64_t, std::int64_t>> queue;  // (due, line); stale entries are skipped
  std::int64_t used = 0;
  const auto write_back = [&](std::int64_t line) {
    ++counts.write_backs;
    if (discarded.holds(line)) ++counts.dead_write_backs;
    dirty[line] = false;
  };
  for (std::size_t i = 0; i < accesses; ++i) {
    const std::int64_t line = lines[i];
    const Kind kind = Kind(kinds[i]);
    if (kind == kDiscard) {
      discarded.add(line);
    } else {
      if (kind != kRead) discarded.remove(line);
      if (held[line]) {
        ++counts.hits;
      } else {
        ++counts.misses;
        if (kind != kOverwrite || fetch_on_write) ++counts.fills;
        while (used == capacity) {
          const auto [when, victim] = queue.top();
          queue.pop();
          if (!held[victim] || due[victim] != when) continue;
          if (dirty[victim]) write_back(victim);
          held[victim] = false;
          --used;
        }
        held[line] = true;
        ++used;
      }
      if (kind != kRead) dirty[line] = true;
    }
    if (held[line]) {
      due[line] = needed[i];
      queue.emplace(due[line], line);
    }
  }
  for (std::int64_t line = 0; line <= most; ++line)
    if (held[line] && dirty[line]) write_back(line);
  return counts;
}

}  // namespace redblue
