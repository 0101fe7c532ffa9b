// Rows of K and V for the products of few queries (decode.h), and the rows that are prefetched beside them. Included
// once inside each target region (vector/region.h).

// The prefetch distance: a sixth of the L1 cache (4 and 16 KB are as fast or slower; measured, Zen 5).
constexpr long kBytesAhead = 8192;

// Rows of K or V for dots and weighted_sum: consecutive rows from `first` on or, if there is a list, the listed rows.
// later(x): the row to prefetch while row x is read, `ahead` numbers further on.
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

// The same for rows that lie in pages: `shift` numbers behind the listed addresses; prefetched otherwise.
template <class T>
struct PagedRows {
  const T* const* rows;
  std::int64_t shift;
  const T* operator()(long x) const { return rows[x] + shift; }
  const T* later(long x) const { return rows[x] + shift; }
};

// Prefetches the rows later(first), later(first + 1), ... later(last) line by line, in the order of memory. Several
// passes over the same keys share the lines: if the first fetched them all, it would wait for memory, which would then
// be idle during the other passes.
template <class T, class Row>
class Trail {
 public:
  Trail(const Row& rows, long first, long last, long columns)
      : rows_(rows), row_(first), last_(last), columns_(columns), next_(rows.later(first)), left_(columns) {}
  void fetch(long lines) {
    for (long x = 0; x < lines; x++) {
      __builtin_prefetch(next_, 0, 0);
      next_ += kLine, left_ -= kLine;
      if (left_ > 0) continue;
      row_ = std::min(row_ + 1, last_);  // passes round their lines up, so that the last one asks for too many
      next_ = rows_.later(row_), left_ = columns_;
    }
  }
  void fetch_beside(const T*) { fetch(1); }
  template <class X>
  void after(const X&) {}  // as Stretches::Cursor::after; these rows are near
  static constexpr long kLine = 64 / sizeof(T);
  template <long L>
  static constexpr long kVectors = kLine / L;  // of L numbers in a line

 private:
  const Row& rows_;
  long row_, last_, columns_;
  const T* next_;
  long left_;
};

// Prefetches, beside every vector, a later one, without keeping its line (5 % faster than prefetching into the L2
// cache; measured, Zen 5).
template <class T>
struct EachVector {
  void fetch_beside(const T* later) { __builtin_prefetch(later, 0, 0); }
  template <long L>
  static constexpr long kVectors = 1;
};

// Prefetches stretches of memory, one after another.
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
  // Continues where the cursor before it ended. It is a local variable of a product, so that it lies in registers.
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
    // Lets the next fetches begin when the vector x is computed. Fetches that wait for nothing run ahead of products
    // that wait for memory; the core probably drops them when its miss buffers are full. In weighted sums this delay
    // takes 8 to 14 % off the time of a call in float32 and bfloat16; beside dot products it gains nothing (measured,
    // Zen 4).
    template <class X>
    void after([[maybe_unused]] const X& x) {
#if defined(REDBLUE_AVX512)
      unsigned zero;
      asm("vmovd %x1, %0\n\tandl $0, %0" : "=r"(zero) : "v"(x) : "cc");  // the processor does not know that it is 0
      next_ += zero;
#endif
    }
    void fetch(long lines) {
      if (lines == 4 && next_ + 4 * step_ < stop_) {  // the usual case, without branches between the lines
#pragma GCC unroll 4
        for (long x = 0; x < 4; x++) __builtin_prefetch(next_ + x * 64, 0, 2);
        next_ += 4 * 64;
      } else {
        for (long x = 0; x < lines; x++) fetch_line();
      }
    }

   private:
    void fetch_line() {
      __builtin_prefetch(next_, 0, 2);
      next_ += step_;
      if (next_ >= stop_) all_.at_++, begin();
    }
    void begin() {
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
