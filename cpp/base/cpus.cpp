#include "base/cpus.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <mutex>
#endif

namespace redblue {

#if defined(__linux__)
namespace {

// Gives a thread the CPUs that `narrow` leaves of its affinity, if any, and then its affinity again.
template <class Narrow>
void move(ThreadId thread, Narrow narrow) {
  static std::mutex moving;  // two moves of one thread at the same time could leave the narrow affinity behind
  const std::unique_lock<std::mutex> lock(moving, std::try_to_lock);
  cpu_set_t all;
  if (!lock || !thread || sched_getaffinity(thread, sizeof all, &all)) return;
  cpu_set_t few = all;
  narrow(few);
  if (CPU_COUNT(&few) == 0 || CPU_EQUAL(&few, &all)) return;
  if (!sched_setaffinity(thread, sizeof few, &few)) sched_setaffinity(thread, sizeof all, &all);
}

}  // namespace

int current_cpu() { return sched_getcpu(); }

ThreadId this_thread() {
  static thread_local const ThreadId id = static_cast<ThreadId>(syscall(SYS_gettid));
  return id;
}

void move_away(ThreadId thread, int cpu) {
  if (cpu >= 0 && cpu < CPU_SETSIZE) move(thread, [=](cpu_set_t& cpus) { CPU_CLR(cpu, &cpus); });
}

void move_to(ThreadId thread, int cpu) {
  if (cpu >= 0 && cpu < CPU_SETSIZE) move(thread, [=](cpu_set_t& cpus) {
    const bool allowed = CPU_ISSET(cpu, &cpus);
    CPU_ZERO(&cpus);
    if (allowed) CPU_SET(cpu, &cpus);
  });
}

CpuTime cpu_time(ThreadId thread) {
  timespec time{};
  const auto clock = static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6);  // Linux: CPU time of a thread
  return clock_gettime(clock, &time) ? 0 : time.tv_sec * CpuTime{1'000'000'000} + time.tv_nsec;
}
#else
int current_cpu() { return -1; }
ThreadId this_thread() { return 0; }
void move_away(ThreadId, int) {}
void move_to(ThreadId, int) {}
CpuTime cpu_time(ThreadId) { return 0; }
#endif

}  // namespace redblue
