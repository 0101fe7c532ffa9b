// Simulates a hierarchy of caches of lines: least recently used, write-back, write-allocate.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace redblue {

// An overwrite writes every word of the line, so the old content is not needed. A discard is not an access: it declares
// that the line is not read until it is written again.
enum Kind : std::int8_t { kRead = 0, kWrite = 1, kOverwrite = 2, kDiscard = 3 };

constexpr std::int64_t kMaxLines = std::int64_t{1} << 28;  // the tables below take a few bytes per line

struct LineCounts {
  std::int64_t hits = 0, misses = 0;
  std::int64_t fills = 0;             // lines read from the next level
  std::int64_t write_backs = 0;       // dirty lines written to the next level
  std::int64_t dead_write_backs = 0;  // write-backs of discarded lines
};

inline void check_line(std::int64_t line) {
  if (line < 0 || line >= kMaxLines) throw std::invalid_argument("lines must lie between 0 and 2^28 - 1");
}

inline void check_access(std::int64_t line, std::int8_t kind) {
  check_line(line);
  if (kind < kRead || kind > kDiscard) throw std::invalid_argument("kinds of access are 0, 1, 2 and 3");
}

// The set of discarded lines that have not been written since.
class Discarded {
 public:
  bool holds(std::int64_t line) const { return line < std::int64_t(flags_.size()) && flags_[line]; }
  void add(std::int64_t line) {
    if (line >= std::int64_t(flags_.size())) flags_.resize(std::max<std::size_t>(line + 1, 2 * flags_.size()));
    flags_[line] = true;
  }
  void remove(std::int64_t line) {
    if (holds(line)) flags_[line] = false;
  }

 private:
  std::vector<bool> flags_;
};

// One level: `sets` sets of `ways` lines each; line l belongs to set l modulo sets. Each set is a linked list, newest
// line first.
class LruLevel {
 public:
  LruLevel(std::int64_t sets, std::int64_t ways) : sets_(sets), ways_(ways), slots_(sets * ways), lists_(sets) {}

  struct Evicted {
    std::int64_t line = -1;
    bool dirty = false;
  };

  // Makes the line the newest of its set; returns false if the level does not hold it.
  bool touch(std::int64_t line, bool writes) {
    if (line >= std::int64_t(slot_of_.size())) return false;
    const std::int32_t slot = slot_of_[line];
    if (slot < 0) return false;
    slots_[slot].dirty |= writes;
    List& list = lists_[line % sets_];
    if (list.newest != slot) {
      unlink(list, slot);
      link(list, slot);
    }
    return true;
  }

  Evicted insert(std::int64_t line, bool dirty) {
    const std::int64_t set = line % sets_;
    List& list = lists_[set];
    Evicted evicted;
    std::int32_t slot;
    if (list.used < ways_) {
      slot = std::int32_t(set * ways_ + list.used++);
    } else {
      slot = list.oldest;
      evicted = {slots_[slot].line, slots_[slot].dirty};
      slot_of_[evicted.line] = -1;
      unlink(list, slot);
    }
    slots_[slot].line = line;
    slots_[slot].dirty = dirty;
    link(list, slot);
    if (line >= std::int64_t(slot_of_.size()))
      slot_of_.resize(std::max<std::size_t>(line + 1, 2 * slot_of_.size()), -1);
    slot_of_[line] = slot;
    return evicted;
  }

  // Marks every line clean. Returns the lines that were dirty, set by set, oldest first.
  std::vector<std::int64_t> clean() {
    std::vector<std::int64_t> dirty;
    for (const List& list : lists_)
      for (std::int32_t slot = list.oldest; slot >= 0; slot = slots_[slot].newer)
        if (std::exchange(slots_[slot].dirty, false)) dirty.push_back(slots_[slot].line);
    return dirty;
  }

  LineCounts counts;

 private:
  struct Slot {
    std::int64_t line = -1;
    std::int32_t newer = -1, older = -1;
    bool dirty = false;
  };
  struct List {
    std::int32_t newest = -1, oldest = -1;
    std::int64_t used = 0;
  };

  void unlink(List& list, std::int32_t slot) {
    Slot& s = slots_[slot];
    (s.newer >= 0 ? slots_[s.newer].older : list.newest) = s.older;
    (s.older >= 0 ? slots_[s.older].newer : list.oldest) = s.newer;
  }
  void link(List& list, std::int32_t slot) {
    slots_[slot].newer = -1;
    slots_[slot].older = list.newest;
    (list.newest >= 0 ? slots_[list.newest].newer : list.oldest) = slot;
    list.newest = slot;
  }

  std::int64_t sets_, ways_;
  std::vector<Slot> slots_;
  std::vector<List> lists_;
  std::vector<std::int32_t> slot_of_;  // by line; -1: the level does not hold it
};

// A level's sets, and the lines of each set.
struct CacheShape {
  std::int64_t sets = 1, ways = 1;
};

// Levels of caches, nearest first. A level sees only the misses and write-backs of the next nearer level, and may have
// evicted lines that the nearer level holds (neither inclusive nor exclusive). On a miss, the line is read from the
// next level before the victim is written back.
class CacheHierarchy {
 public:
  // fetch_on_write: overwriting a missing line reads it first. records: whether accesses are recorded.
  CacheHierarchy(const std::vector<CacheShape>& shapes, std::int64_t line_words, bool fetch_on_write, bool records)
      : line_words_(line_words), fetch_on_write_(fetch_on_write), records_(records) {
    if (line_words < 1) throw std::invalid_argument("a line must hold at least 1 word");
    for (const auto& [sets, ways] : shapes) {
      if (sets < 1 || ways < 1 || sets > kMaxLines / ways)
        throw std::invalid_argument("a level must have at least 1 set and 1 way, and at most 2^28 lines");
      levels_.emplace_back(sets, ways);
    }
  }

  void play(const std::int64_t* lines, const std::int8_t* kinds, std::size_t accesses) {
    for (std::size_t i = 0; i < accesses; ++i) {
      check_access(lines[i], kinds[i]);
      one(lines[i], Kind(kinds[i]));
    }
  }

  // Accesses the lines of `rows` rows of `words` words, `stride` words apart, row by row: one access per row and line.
  void block(std::int64_t base, std::int64_t rows, std::int64_t stride, std::int64_t words, bool writes) {
    if (rows < 1 || words < 1) return;
    check_line(base < 0 ? -1 : base / line_words_);
    check_line((base + (rows - 1) * stride + words - 1) / line_words_);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t start = base + row * stride, stop = start + words;
      for (std::int64_t line = start / line_words_; line * line_words_ < stop; ++line) {
        const bool whole = start <= line * line_words_ && (line + 1) * line_words_ <= stop;
        one(line, !writes ? kRead : whole ? kOverwrite : kWrite);
      }
    }
  }

  void discard(std::int64_t first, std::int64_t lines) {
    if (lines < 1) return;
    check_line(first);
    check_line(first + lines - 1);
    for (std::int64_t line = first; line < first + lines; ++line) one(line, kDiscard);
  }

  // Writes every dirty line back, level by level.
  void flush() {
    for (std::size_t i = 0; i < levels_.size(); ++i)
      for (std::int64_t line : levels_[i].clean()) write_back(i, line);
  }

  std::vector<LineCounts> counts() const {
    std::vector<LineCounts> all;
    for (const LruLevel& level : levels_) all.push_back(level.counts);
    return all;
  }

  const std::vector<std::int64_t>& recorded_lines() const { return lines_; }
  const std::vector<std::int8_t>& recorded_kinds() const { return kinds_; }

 private:
  void one(std::int64_t line, Kind kind) {
    if (records_) {
      lines_.push_back(line);
      kinds_.push_back(kind);
    }
    if (kind == kDiscard) {
      discarded_.add(line);
      return;
    }
    if (kind != kRead) discarded_.remove(line);
    access(0, line, kind != kRead, kind != kOverwrite || fetch_on_write_);
  }

  // fetches: whether a missing line is read from the next level.
  void access(std::size_t i, std::int64_t line, bool writes, bool fetches) {
    if (i == levels_.size()) return;
    LruLevel& level = levels_[i];
    if (level.touch(line, writes)) {
      ++level.counts.hits;
      return;
    }
    ++level.counts.misses;
    if (fetches) {
      ++level.counts.fills;
      access(i + 1, line, false, true);
    }
    const LruLevel::Evicted evicted = level.insert(line, writes);
    if (evicted.dirty) write_back(i, evicted.line);
  }

  void write_back(std::size_t i, std::int64_t line) {
    ++levels_[i].counts.write_backs;
    if (discarded_.holds(line)) ++levels_[i].counts.dead_write_backs;
    access(i + 1, line, true, false);
  }

  std::int64_t line_words_;
  bool fetch_on_write_, records_;
  std::vector<LruLevel> levels_;
  Discarded discarded_;
  std::vector<std::int64_t> lines_;
  std::vector<std::int8_t> kinds_;
};

}  // namespace redblue
