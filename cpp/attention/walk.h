// The keys that a panel of rows attends, for bands and for listed runs. Included once inside each target region
// (vector/region.h).

struct Part {  // keys j .. j + keys - 1, in a tile from row `at` on
  long at, j, keys;
  const std::uint64_t* bits;  // for listed runs: which rows attend, one word per key; null if all do
};
struct Stretch {  // contiguous parts, computed by one product
  long at, j, keys;
};

// Iterates, in ascending order, over the keys from .. end - 1 that any row of a panel attends.
class Walk {
 public:
  Walk(const Stream& s, const Rows& rows, long from, long end) : listed_(s.call.pattern.starts) {
    std::tie(low_, high_) = s.keys_of(rows.start, rows.count);
    if (listed_) {
      const Pattern& pattern = s.call.pattern;
      const std::int64_t* const starts = pattern.starts + s.plane() * pattern.panels + rows.start / pattern.panel;
      run_ = pattern.runs + starts[0];
      stop_ = pattern.runs + starts[1];
      bits_ = pattern.bits;
      run_ = std::lower_bound(run_, stop_, from, [](const Run& run, long key) { return run.stop <= key; });
    }
    low_ = std::max(low_, from);
    high_ = std::min(high_, end);
  }
  // The first attended key at or beyond `key`, or kNone. `key` must not decrease from call to call.
  long next(long key) {
    if (listed_) {
      while (run_ < stop_ && run_->stop <= key) run_++;
      if (run_ == stop_) return kNone;
      key = std::max<long>(key, run_->start);
    }
    key = std::max(key, low_);
    return key < high_ ? key : kNone;
  }
  // The rest of the run that begins at `key`, which `next` returned, up to `limit`.
  Part part(long key, long limit) const {
    const long stop = std::min(listed_ ? std::min<long>(run_->stop, high_) : high_, limit);
    return {0, key, stop - key, listed_ && run_->bits >= 0 ? bits_ + run_->bits + (key - run_->start) : nullptr};
  }
  static constexpr long kNone = std::numeric_limits<long>::max();

 private:
  bool listed_;
  long low_, high_;
  const Run *run_ = nullptr, *stop_ = nullptr;
  const std::uint64_t* bits_ = nullptr;
};

// The keys of one tile of scores, as parts and as stretches, both ascending.
struct Chunk {
  Part* parts;
  Stretch* stretches;
  long parts_count = 0, stretches_count = 0, rows = 0, keys = 0;  // rows: of the tile, including gaps

  // most: the largest number of keys.
  Chunk(Arena& arena, long most) : parts(arena.take<Part>(most + 1)), stretches(arena.take<Stretch>(most + 1)) {}

  // Fills the chunk with keys of the walk, from its next key `key` on and below `limit`, in at most `most` rows. A
  // stretch begins at a multiple of `unit`, both as a row of the tile and as a key counted from `base`, so its first
  // keys may be unattended. Returns the next key of the walk.
  long fill(Walk& walk, long key, long limit, long most, long unit, long base) {
    parts_count = stretches_count = rows = keys = 0;
    while (key < limit) {
      Stretch* last = stretches_count ? stretches + stretches_count - 1 : nullptr;
      if (!last || last->j + last->keys != key) {
        const long at = (rows + unit - 1) / unit * unit, dead = (key - base) % unit;
        if (at + dead >= most) break;
        last = stretches + stretches_count++;
        *last = {at, key - dead, dead};
        rows = at + dead;
      }
      Part part = walk.part(key, std::min(limit, key + most - rows));
      if (part.keys <= 0) break;
      part.at = rows;
      parts[parts_count++] = part;
      last->keys += part.keys;
      rows += part.keys;
      keys += part.keys;
      key = walk.next(key + part.keys);
    }
    return key;
  }
  // Whether stretches are so short that copying their keys next to each other is cheaper than one product per stretch.
  bool scattered() const { return stretches_count > 1 && rows < kLeastStretch * stretches_count; }
  bool whole() const { return stretches_count == 1; }
  // Calls use(first, count) for rows that belong to no part.
  template <class Use>
  void each_gap(Use use) const {
    long row = 0;
    for (long i = 0; i < parts_count; i++) {
      if (parts[i].at > row) use(row, parts[i].at - row);
      row = parts[i].at + parts[i].keys;
    }
  }
  void list(long* to) const {  // the key of every row; all rows must belong to parts
    for (long i = 0; i < parts_count; i++)
      for (long x = 0; x < parts[i].keys; x++) to[parts[i].at + x] = parts[i].j + x;
  }
  static constexpr long kLeastStretch = 24;
};

// tile (keys x lanes) <- `nothing` where the bits are 0.
template <class Sum>
void mask_by_bits(const std::uint64_t* words, long keys, long lanes, Sum* tile, Sum nothing) {
  constexpr int L = kLanesOf<Sum>;
  typedef std::conditional_t<sizeof(Sum) == 8, std::uint64_t, std::uint32_t> Word;
  V<Word> lane_bit;
  for (int lane = 0; lane < L; lane++) lane_bit[lane] = Word(1) << lane;
  for (long key = 0; key < keys; key++)
    for (long v = 0; v < lanes; v += L) {
      Sum* const p = tile + key * lanes + v;
      const V<Word> attends = (V<Word>{} + Word(words[key] >> v)) & lane_bit;
      store(p, attends != 0 ? load(p) : splat(nothing));
    }
}

template <class Sum>
void mask_part(const Stream& s, const Rows& rows, const Part& part, Sum* tile, Sum nothing) {
  if (part.bits)
    mask_by_bits(part.bits, part.keys, rows.lanes, tile, nothing);
  else if (!s.call.pattern.starts && !s.holds(rows.start, rows.count, part.j, part.keys))
    mask_tile<Sum>(s, rows, part.j, part.keys, tile, nothing);
}
