#include "base/openmp.h"

#if defined(__linux__)
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>

#include "base/pool.h"
#include "base/processes.h"
#include "base/spin.h"
#endif

namespace redblue {

#if defined(__linux__)
namespace {

// The entry points of GNU's OpenMP runtime. Intel's and LLVM's runtimes export them too, for programs compiled by GCC.
struct Runtime {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*thread)();
  int (*threads)();
  long process;
};

std::atomic<const Runtime*> runtime{nullptr};  // never freed: a call may be using it
std::atomic<bool> in_use{false};

constexpr int kMaxTeam = 256;

// The threads of the caller's OpenMP team, recorded in its last parallel region of redblue.
struct Team {
  int threads = 0;
  std::array<std::atomic<ThreadId>, kMaxTeam> ids{};  // index: the number in the team; 0, the caller, is unused
  std::array<CpuTime, kMaxMoves> used{};              // CPU time of the first workers at the last call of is_awake

  // Whether the workers would start at once: they run on other CPUs, or wait for the caller's CPU, from which they can
  // be moved. If the team's threads are not recorded, returns whether this process has enough threads for a team: the
  // child of a fork has not, and a parallel region would wait forever for the parent's threads.
  bool is_awake(int size) {
    if (threads != size) return thread_count() - Pool::of_this_process().workers() >= size;
    const int count = std::min(size - 1, kMaxMoves);
    const std::array<CpuTime, kMaxMoves> before = used;
    for (int i = 0; i < count; i++) {
      const CpuTime now = cpu_time(ids[i + 1]);
      if (!now && before[i]) {  // this thread has ended: the runtime has changed the team
        threads = 0;
        return is_awake(size);
      }
      used[i] = now;
    }
    for (int i = 0; i < count; i++) {
      if (cpu_time(ids[i + 1]) > used[i]) continue;  // it runs
      if (used[i] == before[i]) return false;        // it has slept since the last call
      const Place place = place_of(ids[i + 1]);
      if (!place.awake || place.cpu != current_cpu()) return false;
    }
    return true;
  }
};

struct Region {
  Job& job;
  const Runtime& openmp;
  Team& team;
  std::array<std::atomic<bool>, kMaxTeam> present{};

  void worker(int number) {
    team.ids[number] = this_thread();
    present[number] = true;
    job.run_on_worker();
  }

  void caller() {
    const int size = openmp.threads();
    all_present(size, kPrompt);  // spinning threads arrive at once
    move_late(size, [&](ThreadId id) { move_away(id, job.caller_cpu()); });
    job.run();
    job.finish();
    // The region ends when all threads have arrived. Threads that still wait for a CPU may use this one.
    while (!all_present(size, kLate)) move_late(size, [&](ThreadId id) { move_to(id, current_cpu()); });
  }

 private:
  static constexpr std::chrono::microseconds kPrompt{3}, kLate{20};

  bool is_late(int number) const { return !present[number].load(std::memory_order_relaxed); }

  // Waits for all threads up to `limit`; returns whether all have arrived.
  bool all_present(int size, std::chrono::microseconds limit) const {
    int number = 1;
    return spin([&] {
      while (number < size && !is_late(number)) number++;
      return number >= size;
    }, limit);
  }

  template <class Move>
  void move_late(int size, Move move) const {
    int moved = 0;
    for (int number = 1; number < size && moved < kMaxMoves; number++)
      if (is_late(number)) move(team.ids[number]), moved++;
  }
};

void enter(void* data) {
  Region& region = *static_cast<Region*>(data);
  const int number = region.openmp.thread();
  if (number) region.worker(number);
  else region.caller();
}

}  // namespace

bool find_openmp(const std::string& path) {
  runtime = nullptr;
  if (path.empty()) return false;
  void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return false;
  // Searches in the order in which the loader bound the library's calls: a preloaded runtime first, then the library
  // and its dependencies. A runtime that the library does not use would start a second team of threads. The library is
  // never closed.
  const auto symbol = [&](const char* name) {
    void* const found = dlsym(RTLD_DEFAULT, name);
    return found ? found : dlsym(library, name);
  };
  const Runtime entries{reinterpret_cast<decltype(Runtime::parallel)>(symbol("GOMP_parallel")),
                      reinterpret_cast<decltype(Runtime::thread)>(symbol("omp_get_thread_num")),
                      reinterpret_cast<decltype(Runtime::threads)>(symbol("omp_get_num_threads")),
                      this_process()};
  if (!entries.parallel || !entries.thread || !entries.threads) return false;
  runtime = new Runtime(entries);
  return true;
}

bool run_on_openmp(Job& job, int threads) {
  const Runtime* const openmp = runtime;
  static thread_local Team team;
  if (!openmp || threads > kMaxTeam || openmp->process != this_process() || !team.is_awake(threads)) return false;
  if (in_use.exchange(true)) return false;
  Region region{job, *openmp, team};
  openmp->parallel(enter, &region, static_cast<unsigned>(threads), 0);
  team.threads = threads;
  in_use = false;
  return true;
}
#else
bool find_openmp(const std::string&) { return false; }
bool run_on_openmp(Job&, int) { return false; }
#endif

}  // namespace redblue
