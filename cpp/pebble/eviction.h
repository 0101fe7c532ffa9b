// Enumerates the evictions that make room for a number of words: every minimal set of red pebbles, and every choice of
// pebbles to store first.
#pragma once
#include "pebble/task.h"

namespace redblue {

// The pebbles that may be evicted, and their cost per word: `taken` is the least cost of an eviction in the rest of the
// game, `stored` the cost of a store before the eviction. The total may not exceed `budget`.
template <class Bits>
struct PebbleOffer {
  Bits drop, store;  // pebbles that may be evicted without a store; after a store
  std::int64_t taken, stored, budget;
};

// Calls visit(evicted, stored) for every minimal set of pebbles that frees `excess` words, and every choice of pebbles
// to store first, within the offer. Asks goes_on() at every step, because there may be too many sets to enumerate.
template <class Bits, class GoesOn, class Visit>
class PebbleEviction {
 public:
  PebbleEviction(const PebbleBoardBits<Bits>& board, const PebbleOffer<Bits>& offer, GoesOn& goes_on, Visit& visit)
      : board_(board), offer_(offer), goes_on_(goes_on), visit_(visit) {}

  void evict(std::int64_t excess) { evict(offer_.drop | offer_.store, excess, offer_.budget, 0, 0); }

 private:
  void evict(Bits may, std::int64_t excess, std::int64_t budget, Bits evicted, Bits stored) {
    if (!goes_on_()) return;
    if (excess <= 0) {
      if (board_.unit || none_could_stay(evicted, -excess)) visit_(evicted, stored);
      return;
    }
    if (!may || board_.words(may) < excess) return;
    const int v = least(may);
    const Bits one = bit<Bits>(v), rest = may & ~one;
    const std::int64_t words = board_.task.words[v], left = excess - words;
    const std::int64_t dropped = budget - offer_.taken * words, saved = dropped - offer_.stored * words;
    if (offer_.drop & one && dropped >= 0) evict(rest, left, dropped, evicted | one, stored);
    if (offer_.store & one && saved >= 0) evict(rest, left, saved, evicted | one, stored | one);
    evict(rest, excess, budget, evicted, stored);
  }

  bool none_could_stay(Bits evicted, std::int64_t spare) const {
    bool none = true;
    each(evicted, [&](int v) { none = none && board_.task.words[v] > spare; });
    return none;
  }

  const PebbleBoardBits<Bits>& board_;
  PebbleOffer<Bits> offer_;
  GoesOn& goes_on_;
  Visit& visit_;
};

}  // namespace redblue
