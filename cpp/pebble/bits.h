// Sets of nodes, as integers of 64 or 128 bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace redblue {

using Bits64 = std::uint64_t;
__extension__ typedef unsigned __int128 Bits128;

template <class Bits>
constexpr int kWidth = int(8 * sizeof(Bits));

template <class Bits>
Bits bit(int i) { return Bits(1) << i; }

inline int count(Bits64 set) { return __builtin_popcountll(set); }
inline int count(Bits128 set) { return count(Bits64(set)) + count(Bits64(set >> 64)); }

// The least element of a set that is not empty.
inline int least(Bits64 set) { return __builtin_ctzll(set); }
inline int least(Bits128 set) { return Bits64(set) ? least(Bits64(set)) : 64 + least(Bits64(set >> 64)); }

// Calls visit(i) for every element, in ascending order.
template <class Bits, class Visit>
void each(Bits set, Visit&& visit) {
  for (; set; set &= set - 1) visit(least(set));
}

inline std::uint64_t mixed(std::uint64_t hash, Bits64 set) {
  hash = (hash ^ set) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}
inline std::uint64_t mixed(std::uint64_t hash, Bits128 set) {
  return mixed(mixed(hash, Bits64(set)), Bits64(set >> 64));
}

}  // namespace redblue
