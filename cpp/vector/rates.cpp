#include "vector/rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace redblue {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Threads wait here until all have arrived.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    const int round = round_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_.store(0);
      round_.store(round + 1);
    } else {
      while (round_.load() == round) std::this_thread::yield();
    }
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0}, round_{0};
};

constexpr int kMaxThreads = 1024, kMaxSeconds = 60, kRepetitions = 10;

void check(int threads, double seconds) {
  if (threads < 1 || threads > kMaxThreads)
    throw std::invalid_argument("threads must be 1 to " + std::to_string(kMaxThreads) + ", got " +
                                std::to_string(threads));
  if (!(seconds > 0 && seconds <= kMaxSeconds))
    throw std::invalid_argument("seconds must be above 0 and at most " + std::to_string(kMaxSeconds) + ", got " +
                                std::to_string(seconds));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Each thread calls prepare(thread) once; then all threads repeatedly call work(thread, passes) at the same moment.
// Returns the median rate of passes per second, summed over the threads; a jump of the clock would spoil the maximum.
// The first, short repetitions only determine the number of passes.
double median_rate(int threads, double seconds, const std::function<void(int)>& prepare,
                 const std::function<void(int, long)>& work) {
  Barrier barrier(threads);
  std::vector<double> starts(threads), ends(threads);
  std::vector<double> rates;
  const auto run = [&](int thread) {
    prepare(thread);
    long passes = 1;
    for (int repetition = 0; repetition < kRepetitions;) {
      barrier.wait();
      starts[thread] = now();
      work(thread, passes);
      ends[thread] = now();
      barrier.wait();
      // All threads read the same times and so decide alike; the next barrier keeps the times unchanged.
      const double elapsed =
          *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
      const double wanted = seconds / kRepetitions;
      if (elapsed < 0.5 * wanted && repetition == 0) {
        passes *= elapsed > 0.05 * wanted ? static_cast<long>(std::max(2.0, wanted / elapsed)) : 10;
        continue;
      }
      if (thread == 0) rates.push_back(passes * threads / elapsed);
      repetition += std::max(1, static_cast<int>(std::min<double>(kRepetitions, elapsed / wanted + 0.5)));
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; thread++) others.emplace_back(run, thread);
  run(0);
  for (std::thread& other : others) other.join();
  return median(rates);
}

constexpr std::size_t kPage = std::size_t(2) << 20;

struct Free {
  void operator()(char* memory) const { ::operator delete(memory, std::align_val_t(kPage)); }
};
using Buffer = std::unique_ptr<char, Free>;

// Uses large pages if the system has them, so that address translation does not slow down the reads.
Buffer make_buffer(std::size_t bytes) {
  Buffer buffer(static_cast<char*>(::operator new(bytes, std::align_val_t(kPage))));
#if defined(__linux__)
  madvise(buffer.get(), bytes, MADV_HUGEPAGE);
#endif
  return buffer;
}

// Whether dtype is "bfloat16" rather than "float32". Throws for other dtypes, and if the instruction set lacks
// bfloat16.
bool is_bfloat16(const std::string& dtype, const Isa& isa) {
  if (dtype == "float32") return false;
  if (dtype != "bfloat16")
    throw std::invalid_argument("dtype must be 'float32' or 'bfloat16', got '" + dtype + "'");
  if (!isa.chains_bf16)
    throw std::invalid_argument(std::string(isa.name) + " has no bfloat16 multiply-add; use 'float32'");
  return true;
}

}  // namespace

// The functions below call the row's function pointers, so the compiler can neither merge nor drop the work.

double multiply_add_rate(const std::string& dtype, int threads, double seconds, const Isa& isa) {
  check(threads, seconds);
  const bool bf16 = is_bfloat16(dtype, isa);
  const auto chains = bf16 ? isa.chains_bf16 : isa.chains_fp32;
  constexpr long kSteps = 1000;
  const double passes = median_rate(
      threads, seconds, [](int) {}, [&](int, long count) { chains(count * kSteps, 0.5f, 0.5f); });
  return passes * kSteps * (bf16 ? isa.flops_per_step_bf16 : isa.flops_per_step_fp32);
}

float multiply_add(float a, float b, float c, const std::string& dtype, const Isa& isa) {
  return (is_bfloat16(dtype, isa) ? isa.multiply_add_bf16 : isa.multiply_add_fp32)(a, b, c);
}

double read_rate(std::size_t bytes_per_thread, int threads, double seconds, const Isa& isa) {
  check(threads, seconds);
  const std::size_t bytes = std::max<std::size_t>(1024, bytes_per_thread / 1024 * 1024);
  std::vector<Buffer> buffers;
  for (int thread = 0; thread < threads; thread++) buffers.push_back(make_buffer(bytes));
  const double passes = median_rate(
      threads, seconds,
      // The thread that will read a buffer touches it first, so that its pages lie near that thread (NUMA).
      [&](int thread) { std::memset(buffers[thread].get(), 1, bytes); },
      [&](int thread, long count) {
        for (long pass = 0; pass < count; pass++) isa.read(buffers[thread].get(), bytes);
      });
  return passes * bytes;
}

}  // namespace redblue
