// Attention of many sequences on paged keys. Keys that several sequences share are read once for all of them.
#pragma once
#include <vector>

#include "attention/call.h"

namespace redblue {

// A call for several sequences. `common` holds the fields that they share: number, kv_heads, group, d, d_v, scale,
// softcap, sinks, the tile (rows, cols) and threads. Its q, out and lse hold the packed queries of all sequences; its k
// and v point to page 0. Arrays among its options have a leading dimension of sequences, whose stride is 0 if all
// sequences share the array.
struct PagedCall {
  Call common;
  std::int64_t sequences = 0;
  const std::int64_t *starts = nullptr, *lengths = nullptr;  // cumulative queries; keys of each sequence
  const std::int64_t* table = nullptr;                       // (sequences, most): page numbers
  std::int64_t most = 0;
  std::int64_t left = -1, right = 0;       // keys that a query attends before and after its own position; -1: all
  const std::uint8_t* tree = nullptr;      // (queries, newest): which of the newest keys a query attends
  std::int64_t newest = 0;
  std::int64_t prefix = -1;                // pages that all sequences share; -1: shared_nodes finds them
};

// Keys first .. stop - 1, which all members (sequences) read from the same pages. If there are several members, all of
// their queries attend all of these keys; the keys of a single member may be masked.
struct Node {
  std::int64_t first = 0, stop = 0;
  std::vector<std::int64_t> members;
};

// Divides the keys of all sequences into nodes. The nodes of a sequence are in ascending order of keys.
std::vector<Node> shared_nodes(const PagedCall& call);

Moved forward(const PagedCall& call, const Isa& isa);

}  // namespace redblue
