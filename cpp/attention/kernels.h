// The table of attention kernels. A new kernel is a header, its pointer in Kernels and its function in kKernels.
//
// The file has two halves, as options.h has. vector/isa.h includes the pointers; attention/region.h includes the
// kernels themselves, which every instruction set compiles for itself. The order of the headers matters: each uses
// those before it.
#if !defined(REDBLUE_IN_REGION) && !defined(REDBLUE_KERNELS)
#define REDBLUE_KERNELS
#include <cstdint>

namespace redblue {

struct Call;
struct Moved;
struct Spill;
class Arena;
struct Piece {  // a rectangle of pairs of rows and keys
  long row, rows, key, keys;
};

// Unfinished results over some of the keys: `rows` rows for each stream, each (maximum, sum, d_v features). Row r of a
// call is row `shift` + r of its stream.
struct Partial {
  const void* data;
  std::int64_t rows, shift;
};

// The phases of the schedules that write P. A phase starts when all blocks of the previous phase are done.
enum class Phase {
  kScores,   // forward: P, by blocks of rows
  kOutputs,  // forward: O, by blocks of rows
  kDeltas,   // backward: row sums of dout * out, by blocks of rows
  kWeights,  // backward: P, by blocks of rows
  kValues,   // `small_cache`: dV, by blocks of keys
  kProducts, // `small_cache`: dS, by blocks of rows
  kBoth,     // `hybrid`: dV and dS, by blocks of keys
  kQueries,  // dQ, by blocks of rows
  kKeys,     // dK, by blocks of keys
};

// The attention kernels of one number type in one instruction set.
struct Kernels {
  int packed_bytes;  // of a number in a packed panel
  long lanes;        // query rows of a panel
  long few;          // up to this many rows, decode.h computes the scores; 0: never
  Moved (*forward)(const Call& call, std::int64_t stream, Piece piece, void* partial, Arena& arena);
  Moved (*paged)(const Call& call, long head, long heads, Piece piece, void* partial, Arena& arena);  // few rows
  Moved (*merge)(const Call& call, std::int64_t stream, long row, long rows, const Partial* partials, long count,
                 Arena& arena);
  Moved (*deltas)(const Call& call, std::int64_t stream, long row, long rows, Arena& arena);
  Moved (*backward)(const Call& call, std::int64_t stream, long key, long keys, Arena& arena);
  Moved (*queries)(const Call& call, std::int64_t stream, long row, long rows, Arena& arena);
  Moved (*spilled)(const Call& call, const Spill& spill, Phase phase, long first, long count, Arena& arena);
  Moved (*gather_forward)(const Call& call, std::int64_t stream, std::int64_t query, std::int64_t stop, Arena& arena);
  Moved (*gather_queries)(const Call& call, std::int64_t stream, std::int64_t query, std::int64_t stop, Arena& arena);
  Moved (*gather_keys)(const Call& call, std::int64_t stream, std::int64_t key, std::int64_t stop, Arena& arena);
  Moved (*bias_gradient)(const Call& call, const std::int64_t* streams, long count, Piece piece, Arena& arena);
};

}  // namespace redblue

#elif defined(REDBLUE_IN_REGION)

#include "attention/tile.h"
#include "attention/pack.h"
#include "attention/stream.h"
#include "attention/options.h"
#include "attention/dropout.h"
#include "attention/key_rows.h"
#include "attention/decode.h"
#include "attention/weighted_sum.h"
#include "attention/walk.h"
#include "attention/formats.h"
#include "attention/results.h"
#include "attention/forward.h"
#include "attention/paged_few.h"
#include "attention/gradient_tile.h"
#include "attention/backward.h"
#include "attention/query_gradient.h"
#include "attention/bias_gradient.h"
#include "attention/spilled.h"
#include "attention/spilled_backward.h"
#include "attention/gather.h"

// The kernels of one number type.
template <class T, class F>
constexpr Kernels kKernels = {
    sizeof(typename F::Number),
    Formats<T, F>::kLanesAtOnce,
    Wide<T>::kWhole ? Formats<T, F>::kFew : 0,
    Forward<T, F>::run,
    PagedFew<T, F>::run,
    Results<T, F>::merge,
    Backward<T, F>::deltas,
    Backward<T, F>::run,
    Queries<T, F>::run,
    SpilledBackward<T, F>::phase,
    Gather<T, F>::forward,
    Gather<T, F>::query_gradients,
    Gather<T, F>::key_gradients,
    BiasGradient<T, F>::run,
};

#endif
