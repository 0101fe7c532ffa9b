#include "meter/meter.h"

#include <algorithm>
#include <utility>

namespace redblue {
namespace {

// Makes a client request by valgrind's documented protocol (its manual, "The Client Request mechanism"; valgrind.h):
// rotations that cancel out and an exchange of a register with itself, which valgrind recognises. Returns 0 outside
// valgrind.
std::uint64_t request(std::uint64_t code, std::uint64_t argument = 0) {
  volatile std::uint64_t arguments[6] = {code, argument, 0, 0, 0, 0};
  std::uint64_t result = 0;
#if defined(__x86_64__)
  __asm__ volatile(
      "rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\t"
      "xchgq %%rbx, %%rbx"
      : "=d"(result)
      : "a"(&arguments[0]), "0"(result)
      : "cc", "memory");
#elif defined(__aarch64__)
  __asm__ volatile(
      "mov x3, %1\n\tmov x4, %2\n\t"
      "ror x12, x12, #3\n\tror x12, x12, #13\n\tror x12, x12, #51\n\tror x12, x12, #61\n\t"
      "orr x10, x10, x10\n\tmov %0, x3"
      : "=r"(result)
      : "r"(std::uint64_t(0)), "r"(&arguments[0])
      : "cc", "memory", "x3", "x4");
#else
  (void)arguments;
#endif
  return result;
}

constexpr std::uint64_t kRunningOnValgrind = 0x1001;
constexpr std::uint64_t kCallgrind = std::uint64_t('C') << 24 | std::uint64_t('T') << 16;  // callgrind.h
constexpr std::uint64_t kDumpAt = kCallgrind + 3, kStart = kCallgrind + 4, kStop = kCallgrind + 5;

void dump(const char* name) { request(kDumpAt, reinterpret_cast<std::uintptr_t>(name)); }

}  // namespace

void Meter::arm(std::vector<Output> outputs, std::size_t line_bytes) {
  outputs_ = std::move(outputs);
  line_bytes_ = std::max<std::size_t>(1, line_bytes);
}

void Meter::start() { request(kStart); }  // callgrind empties its caches

// Dumps the counts so far, then touches every line of the outputs and dumps again: the misses of the second dump are
// the lines that the cache no longer held. All outputs are touched from both ends at once, because the lines written
// last lie at one end and must be touched before missing lines evict them.
void Meter::stop() {
  dump("kernel");
  unsigned sum = 0;  // valgrind omits loads whose value is not used
  bool more = true;
  for (std::uintptr_t i = 0; more; i++) {
    more = false;
    for (const Output& output : outputs_) {
      const std::uintptr_t end = output.address + output.bytes, first = output.address / line_bytes_;
      const std::uintptr_t lines = output.bytes ? (end - 1) / line_bytes_ - first + 1 : 0;
      if (2 * i >= lines) continue;
      more = true;
      for (const std::uintptr_t line : {first + i, first + lines - 1 - i})
        sum += *reinterpret_cast<const unsigned char*>(std::max(line * line_bytes_, output.address));
    }
  }
  [[maybe_unused]] static volatile unsigned used;  // a store that the compiler must keep
  used = sum;
  dump("outputs");
  request(kStop);
  outputs_.clear();
  line_bytes_ = 0;
}

Meter& meter() {
  static Meter one;
  return one;
}

bool under_valgrind() { return request(kRunningOnValgrind) != 0; }

void copy_loop(double* to, const double* from, std::size_t count) {
  for (std::size_t i = 0; i < count; i++) to[i] = from[i];
}

double strided_loop(const double* from, std::size_t count, std::size_t stride, int times) {
  double sum = 0;
  for (int t = 0; t < times; t++)
    for (std::size_t i = 0; i < count; i += stride) sum += from[i];
  return sum;
}

void product_loop(double* c, const double* a, const double* b, std::size_t n, std::size_t tile) {
  for (std::size_t i0 = 0; i0 < n; i0 += tile)
    for (std::size_t j0 = 0; j0 < n; j0 += tile)
      for (std::size_t k0 = 0; k0 < n; k0 += tile)
        for (std::size_t i = i0; i < std::min(i0 + tile, n); i++)
          for (std::size_t k = k0; k < std::min(k0 + tile, n); k++)
            for (std::size_t j = j0; j < std::min(j0 + tile, n); j++) c[i * n + j] += a[i * n + k] * b[k * n + j];
}

}  // namespace redblue
