// Divides attention on paged keys into tasks and runs them on the pool. Tasks and the order of summation do not depend
// on the number of threads or on page numbers. Without shared keys, they do not depend on the other sequences of the
// call either.
#include <algorithm>
#include <cstring>
#include <memory>

#include "attention/paged.h"
#include "attention/tasks.h"
#include "base/share_out.h"

namespace redblue {
namespace {

constexpr std::int64_t kPiece = 1024;      // keys per task, if there are few rows
constexpr std::size_t kKeptBytes = std::size_t(1) << 24;  // of memory that a thread keeps for its next call
constexpr std::int64_t kFewRows = 256;     // with more rows than this, keys are not split into pieces

std::size_t bytes_of(Number number) {
  switch (number) {
    case Number::kFloat64: return 8;
    case Number::kFloat32: return 4;
    case Number::kBool: return 1;
    default: return 2;
  }
}

void move(Array& array, std::int64_t elements, std::size_t bytes) {
  if (array.data) array.data += elements * std::int64_t(bytes);
}

// The call of one sequence alone, with all its keys.
Call call_of(const PagedCall& paged, std::int64_t b) {
  Call call = paged.common;
  const std::int64_t start = paged.starts[b];
  const std::size_t number = bytes_of(call.number), sum = bytes_of_sum(call);
  call.n_q = paged.starts[b + 1] - start, call.n_k = paged.lengths[b];
  move(call.q, start * call.q.row, number);
  move(call.out, start * call.out.row, number);
  move(call.lse, start * call.lse.row, sum);
  call.each([&](const char*, auto& option) {
    if constexpr (std::is_same_v<decltype(option), Array&>)
      move(option, b * option.lead[0], &option == &call.bias ? bytes_of(call.bias_number) : sum);
  });
  call.pages.table = paged.table + b * paged.most;
  const std::int64_t offset = call.n_k - call.n_q;
  call.first = paged.left < 0 ? -call.n_q : std::max(-call.n_q, offset - paged.left);
  call.end = paged.right < 0 ? call.n_k + 1 : std::min(call.n_k + 1, offset + paged.right + 1);
  return call;
}

// The mask of a tree over the newest keys of a sequence, as runs of keys for panels of rows.
struct Tree {
  std::vector<std::int64_t> starts{0};
  std::vector<Run> runs;
  std::vector<std::uint64_t> bits;

  Tree(const PagedCall& paged, std::int64_t b, const Call& call, std::int64_t panel) {
    const std::int64_t rows = call.stacked(), newest = std::min(paged.newest, call.n_k), older = call.n_k - newest;
    for (std::int64_t row = 0; row < rows; row += panel) {
      if (older) runs.push_back({0, older, -1});
      if (newest) runs.push_back({older, call.n_k, std::int64_t(bits.size())});
      starts.push_back(std::int64_t(runs.size()));
      for (std::int64_t key = 0; key < newest; key++) {
        std::uint64_t word = 0;
        for (std::int64_t r = row; r < std::min(rows, row + panel); r++) {
          const std::int64_t query = paged.starts[b] + r / call.group;
          if (paged.tree[query * paged.newest + paged.newest - newest + key]) word |= std::uint64_t(1) << (r - row);
        }
        bits.push_back(word);
      }
    }
  }
  Pattern pattern(std::int64_t panel) const {
    Pattern pattern;
    pattern.starts = starts.data(), pattern.runs = runs.data(), pattern.bits = bits.data();
    pattern.panel = panel, pattern.panels = std::int64_t(starts.size()) - 1;
    return pattern;
  }
};

// The call of a node, and the memory for its unfinished results.
struct Part {
  Call call;
  Node node;
  std::unique_ptr<Tree> tree;
  std::int64_t piece = 0, pieces = 1;   // keys of a piece
  char* partials = nullptr;             // null if the results are final
  std::int64_t partial_bytes = 0;       // of a piece

  void* partial(std::int64_t of_piece) const { return partials ? partials + of_piece * partial_bytes : nullptr; }
};

// The memory of the parts of a call. The thread keeps it for its next call, because new memory costs a page fault for
// every 4 KB.
class PartsMemory {
 public:
  PartsMemory() = default;
  ~PartsMemory() { arena_.clear_and_keep(kKeptBytes); }
  PartsMemory(const PartsMemory&) = delete;
  char* take(std::int64_t bytes) { return arena_.take<char>(bytes); }

 private:
  static thread_local Arena arena_;
};
thread_local Arena PartsMemory::arena_;

// Copies the queries of a node's sequences one after another.
void stack_queries(const PagedCall& paged, Part& part, PartsMemory& memory) {
  Call& call = part.call;
  const Array& from = paged.common.q;
  const std::int64_t heads = call.kv_heads * call.group, bytes = std::int64_t(bytes_of(call.number));
  char* to = call.q.data = memory.take(call.n_q * heads * call.d * bytes + 64);
  for (std::int64_t b : part.node.members)
    for (std::int64_t i = paged.starts[b]; i < paged.starts[b + 1]; i++)
      for (std::int64_t h = 0; h < heads; h++) {
        const char* const row = from.data + (i * from.row + h * from.head) * bytes;
        if (from.column == 1)
          std::memcpy(to, row, call.d * bytes);
        else
          for (std::int64_t c = 0; c < call.d; c++) std::memcpy(to + c * bytes, row + c * from.column * bytes, bytes);
        to += call.d * bytes;
      }
  call.q.row = heads * call.d, call.q.head = call.d, call.q.column = 1;
}

Part part_of(const PagedCall& paged, Node node, const Kernels& kernels, PartsMemory& memory) {
  Part part;
  const std::int64_t b = node.members[0];
  const bool alone = node.members.size() == 1;
  part.call = call_of(paged, b);
  part.node = std::move(node);
  Call& call = part.call;
  if (!alone) {
    call.n_q = 0;
    for (std::int64_t member : part.node.members) call.n_q += paged.starts[member + 1] - paged.starts[member];
    call.n_k = part.node.stop, call.first = -call.n_q, call.end = call.n_k + 1;
    stack_queries(paged, part, memory);
  } else if (paged.tree) {
    part.tree.reset(new Tree(paged, b, call, kernels.lanes));
    call.pattern = part.tree->pattern(kernels.lanes);
    call.rows = ceil_div(call.rows, kernels.lanes) * kernels.lanes;
  }
  const std::int64_t rows = std::min(call.rows, call.stacked()), keys = part.node.stop - part.node.first;
  call.few = rows <= kernels.few && call.q.column == 1 && call.k.column == 1 && call.v.column == 1;
  part.piece = call.stacked() > kFewRows ? std::max<std::int64_t>(1, keys) : kPiece;
  part.pieces = std::max<std::int64_t>(1, ceil_div(keys, part.piece));
  return part;
}

// A task: one block of rows, one piece of the keys, and `heads` key heads from `head` on.
struct Task {
  std::int64_t part, block, piece, head, heads, work;
};

// Lists the tasks, longest first. For few rows, one task has all key heads, so that pages are read in memory order;
// heads are divided among tasks only if there are too few tasks for all threads. Results do not depend on this
// division.
std::vector<Task> longest_first(const std::vector<Part>& parts, std::int64_t threads) {
  constexpr std::int64_t kTasksPerThread = 4;
  std::int64_t pieces = 0;
  for (const Part& part : parts) pieces += part.pieces;
  std::vector<Task> tasks;
  for (std::size_t p = 0; p < parts.size(); p++) {
    const Call& call = parts[p].call;
    const std::int64_t blocks = ceil_div(call.stacked(), call.rows), keys = parts[p].node.stop - parts[p].node.first;
    const std::int64_t groups = call.few ? ceil_div(kTasksPerThread * threads, pieces) : call.kv_heads;
    const std::int64_t heads = std::max<std::int64_t>(1, call.kv_heads / groups);
    for (std::int64_t piece = 0; piece < parts[p].pieces; piece++)
      for (std::int64_t block = 0; block < blocks; block++) {
        const std::int64_t rows = std::min(call.rows, call.stacked() - block * call.rows);
        const std::int64_t work = rows * std::min(parts[p].piece, keys - piece * parts[p].piece);
        for (std::int64_t head = 0; head < call.kv_heads; head += heads) {
          const std::int64_t count = std::min(heads, call.kv_heads - head);
          tasks.push_back({std::int64_t(p), block, piece, head, count, work * count});
        }
      }
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.work > b.work; });
  return tasks;
}

// The number of page-table entries that a block of rows reads for a piece of its keys.
std::int64_t entries_read(const Part& part, const Piece& piece) {
  const Call& call = part.call;
  const std::int64_t low = std::max(piece.key + 0L, piece.row / call.group + call.first);
  const std::int64_t high = std::min({std::int64_t(piece.key + piece.keys), call.n_k,
                                      (piece.row + piece.rows - 1) / call.group + call.end});
  return low < high ? (high - 1) / call.pages.size - low / call.pages.size + 1 : 0;
}

Moved run(const std::vector<Part>& parts, const Task& task, const Kernels& kernels) {
  const Part& part = parts[task.part];
  const std::int64_t row = task.block * part.call.rows, key = part.node.first + task.piece * part.piece;
  const Piece piece{row, std::min(part.call.rows, part.call.stacked() - row), key,
                    std::min(part.piece, part.node.stop - key)};
  void* const partial = part.partial(task.piece);
  Moved moved = part.call.few ? kernels.paged(part.call, task.head, task.heads, piece, partial, own_arena())
                              : kernels.forward(part.call, task.head, piece, partial, own_arena());
  moved.reads += task.heads * entries_read(part, piece);  // the schedule reads them for each head
  return moved;
}

// The unfinished results of every sequence, in the order of their keys.
std::vector<std::vector<Partial>> partials_of(const PagedCall& paged, const std::vector<Part>& parts) {
  std::vector<std::vector<Partial>> lists(paged.sequences);
  for (const Part& part : parts) {
    std::int64_t shift = 0;
    for (std::int64_t b : part.node.members) {
      for (std::int64_t piece = 0; piece < part.pieces && part.partials; piece++)
        lists[b].push_back({part.partial(piece), part.call.stacked(), shift});
      shift += (paged.starts[b + 1] - paged.starts[b]) * part.call.group;
    }
  }
  return lists;
}

}  // namespace

Moved forward(const PagedCall& paged, const Isa& isa) {
  const Kernels& kernels = kernels_for(paged.common, isa);
  std::vector<Node> nodes = shared_nodes(paged);
  std::vector<std::int64_t> nodes_of(paged.sequences);
  for (const Node& node : nodes)
    for (std::int64_t b : node.members) nodes_of[b]++;
  std::vector<Part> parts;
  PartsMemory memory;
  for (Node& node : nodes) {
    parts.push_back(part_of(paged, std::move(node), kernels, memory));
    Part& part = parts.back();
    const Call& call = part.call;
    if (part.pieces == 1 && part.node.members.size() == 1 && nodes_of[part.node.members[0]] == 1) continue;
    part.partial_bytes = call.kv_heads * call.stacked() * (call.d_v + 2) * bytes_of_sum(call);
    part.partials = memory.take(part.pieces * part.partial_bytes);
  }
  const int threads = paged.common.threads;
  Tally tally;
  const std::vector<Task> tasks = longest_first(parts, threads);
  share_out(std::int64_t(tasks.size()), threads, [&](std::int64_t i) { tally.add(run(parts, tasks[i], kernels)); });
  const std::vector<std::vector<Partial>> lists = partials_of(paged, parts);
  const std::int64_t heads = paged.common.kv_heads;
  share_out(paged.sequences * heads, threads, [&](std::int64_t task) {
    const std::int64_t b = task / heads;
    if (lists[b].empty()) return;
    const Call call = call_of(paged, b);
    tally.add(kernels.merge(call, task % heads, 0, call.stacked(), lists[b].data(), lists[b].size(), own_arena()));
  });
  return tally.sum();
}

}  // namespace redblue
