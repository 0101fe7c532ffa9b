// Rows of K and V for the products of few queries (decode.h), and their software prefetching. Included once inside each
// target region (vector/region.h).

// The prefetch distance in bytes: a sixth of the L1 cache (4 and 16 KB are as fast or slower; measured, Zen 5).
constexpr long kBytesAhead = 8192;

// Rows of K or V for dots and weighted_sum: consecutive rows from `first` on or, if there is a list, the listed rows.
// later(x): the address to prefetch while row x is read, `ahead` numbers beyond row x.
template <class T>
struct KeyRows {
  const T* base;
  std::int64_t step;
  long first;
  const long* list;
  std::int64_t ahead = 0;
  const T* operator()(long x) const { return base + (list ? list[x] : first + x) * step; }
  const T* later(long x) const { return (*this)(x) + ahead; }
};

// The same for paged rows: each begins `shift` numbers after its listed address. Stretches prefetches these rows.
template <class T>
struct PagedRows {
  const T* const* rows;
  std::int64_t shift;
  const T* operator()(long x) const { return rows[x] + shift; }
  const T* later(long x) const { return rows[x] + shift; }
};

// How often a loop prefetches: `lines` cache lines in each step whose number has no bit of `skip`.
struct Pace {
  long lines = 0, skip = 0;
  // At least `wanted` lines, which is at least 1, in the first `steps` steps and in each `steps` steps after them.
  static constexpr Pace of(long wanted, long steps) {
    long every = 1;
    while (2 * every * wanted <= steps) every *= 2;
    return {(wanted * every + steps - 1) / steps, every - 1};
  }
  bool fetches(long step) const { return !(step & skip); }
};
static_assert(Pace::of(64, 16).lines == 4 && Pace::of(64, 16).skip == 0, "four lines in every step");
static_assert(Pace::of(16, 32).lines == 1 && Pace::of(16, 32).skip == 1, "half a line is a line in every other step");
static_assert(Pace::of(16, 96).lines == 1 && Pace::of(16, 96).skip == 3, "a sixth of a line is rounded up");

// Prefetches the rows later(first), later(first + 1), ... later(last) line by line, in memory order. The prefetches are
// spread over all passes over the same keys: if the first pass issued all of them, it would wait for memory, and memory
// would be idle during the other passes.
template <class T, class Row>
class Trail {
 public:
  Trail(const Row& rows, long first, long last, long columns)
      : rows_(rows), row_(first), last_(last), columns_(columns), next_(rows.later(first)), left_(columns) {}
  void fetch(long lines) {
    for (long x = 0; x < lines; x++) {
      prefetch_once(next_, into_l2_);
      next_ += kLine, left_ -= kLine;
      if (left_ > 0) continue;
      row_ = std::min(row_ + 1, last_);  // each pass rounds its number of lines up, so the last pass asks for too many
      next_ = rows_.later(row_), left_ = columns_;
    }
  }
  void fetch_beside(const T*) { fetch(1); }
  template <class X>
  void after(const X&) {}  // same interface as Stretches::Cursor; here a delay is not needed
  static constexpr long kLine = 64 / sizeof(T);
  template <long L>
  static constexpr long kVectors = kLine / L;  // vectors of L numbers per cache line

 private:
  const Row& rows_;
  long row_, last_, columns_;
  const T* next_;
  long left_;
  const bool into_l2_ = kPrefetchIntoL2;
};

// Prefetches one later vector for every vector that is read.
template <class T>
struct EachVector {
  const bool into_l2 = kPrefetchIntoL2;
  void fetch_beside(const T* later) { prefetch_once(later, into_l2); }
  template <long L>
  static constexpr long kVectors = 1;
};

// A list of contiguous memory ranges that are prefetched one after another.
template <class T>
class Stretches {
 public:
  Stretches(Arena& arena, long most) : list_(arena.take<Bytes>(most)) {}
  void clear() { count_ = at_ = 0; }
  void add(const T* from, long numbers) {
    const char* const start = reinterpret_cast<const char*>(from);
    const long bytes = numbers * long(sizeof(T));
    if (count_ && list_[count_ - 1].stop == start)
      list_[count_ - 1].stop = start + bytes;
    else
      list_[count_++] = {start, start + bytes};
  }
  // Prefetches the ranges, beginning where the previous cursor ended. A product keeps its cursor in a local variable,
  // so that the compiler can hold it in registers.
  class Cursor {
   public:
    static constexpr long kLine = 64 / sizeof(T);
    template <long L>
    static constexpr long kVectors = kLine / L;
    void fetch_beside(const T*) { fetch(1); }
    explicit Cursor(Stretches& all) : all_(all) { begin(); }
    ~Cursor() {
      if (step_) all_.list_[all_.at_].start = next_;
    }
    // Delays the next prefetches until the vector x is computed. Without the delay, prefetches run ahead of products
    // that wait for memory, and the CPU probably drops them when its miss buffers are full. In weighted sums the delay
    // saves 8 to 14 % of the time of a call in float32 and bfloat16; in dot products it gains nothing (measured, Zen
    // 4).
    template <class X>
    void after([[maybe_unused]] const X& x) {
#if defined(REDBLUE_AVX512)
      unsigned zero;
      asm("vmovd %x1, %0\n\tandl $0, %0" : "=r"(zero) : "v"(x) : "cc");  // always 0, but the CPU waits for x
      next_ += zero;
#endif
    }
    // Inlined, because a call would spill the registers that hold the sums of the product.
    __attribute__((always_inline)) void fetch(long lines) {
      if (lines == 4 && next_ + 4 * step_ < stop_) {  // the usual case, without branches between the lines
#pragma GCC unroll 4
        for (long x = 0; x < 4; x++) __builtin_prefetch(next_ + x * 64, 0, 2);
        next_ += 4 * 64;
      } else {
        for (long x = 0; x < lines; x++) fetch_line();
      }
    }

   private:
    __attribute__((always_inline)) void fetch_line() {
      __builtin_prefetch(next_, 0, 2);
      next_ += step_;
      if (next_ >= stop_) all_.at_++, begin();
    }
    __attribute__((always_inline)) void begin() {
      const bool more = all_.at_ < all_.count_;
      next_ = more ? all_.list_[all_.at_].start : nullptr;
      stop_ = more ? all_.list_[all_.at_].stop : next_ + 1;
      step_ = more ? 64 : 0;
    }
    Stretches& all_;
    const char *next_, *stop_;
    long step_;
  };

 private:
  struct Bytes {
    const char *start, *stop;
  };
  Bytes* list_;
  long count_ = 0, at_ = 0;
};
