// Which red pebbles to take off so that a number of words fits: every smallest choice, and for each its stores.
#pragma once
#include "pebble_task.h"

namespace redblue {

// visit(evicted, stored) for every set of pebbles from `may` that frees `excess` words and of which none could stay,
// and every choice of those to store first: of a pebble in `clean` never, of one in `must` always.
template <class Bits, class Visit>
class PebbleRoom {
 public:
  PebbleRoom(const PebbleBoardBits<Bits>& board, Bits clean, Bits must, Visit& visit)
      : board_(board), clean_(clean), must_(must), visit_(visit) {}

  void evict(Bits may, std::int64_t excess) { evict(may, excess, 0, 0); }

 private:
  void evict(Bits may, std::int64_t excess, Bits evicted, Bits stored) {
    if (excess <= 0) {
      if (board_.unit || none_could_stay(evicted, -excess)) visit_(evicted, stored);
      return;
    }
    if (board_.words(may) < excess) return;
    const int v = least(may);
    const Bits one = bit<Bits>(v), rest = may & ~one;
    const std::int64_t left = excess - board_.task.words[v];
    if (!(must_ & one)) evict(rest, left, evicted | one, stored);
    if (!(clean_ & one)) evict(rest, left, evicted | one, stored | one);
    evict(rest, excess, evicted, stored);
  }

  bool none_could_stay(Bits evicted, std::int64_t spare) const {
    bool none = true;
    each(evicted, [&](int v) { none = none && board_.task.words[v] > spare; });
    return none;
  }

  const PebbleBoardBits<Bits>& board_;
  Bits clean_, must_;
  Visit& visit_;
};

}  // namespace redblue
