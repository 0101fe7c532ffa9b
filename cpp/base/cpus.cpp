#include "base/cpus.h"

#if defined(__linux__)
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#endif

namespace redblue {

#if defined(__linux__)
namespace {

// Whether the number still belongs to a thread of this process. The system may give the number of an ended thread to
// another process, whose affinity must not change.
bool is_ours(ThreadId thread) { return thread && !syscall(SYS_tgkill, getpid(), thread, 0); }  // signal 0 only checks

// Narrows a thread's affinity by `narrow`, if that leaves any CPU, and then restores it.
template <class Narrow>
void move(ThreadId thread, Narrow narrow) {
  static std::mutex moving;  // two concurrent moves of one thread could leave its affinity narrow
  const std::unique_lock<std::mutex> lock(moving, std::try_to_lock);
  cpu_set_t all;
  if (!lock || !is_ours(thread) || sched_getaffinity(thread, sizeof all, &all)) return;
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

int thread_count() {
  struct stat folder;  // it has two links of its own and one per subfolder; each thread has a subfolder
  return stat("/proc/self/task", &folder) ? 0 : static_cast<int>(folder.st_nlink) - 2;
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
  // Linux's clock of a thread's CPU time.
  const auto clock = static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6);
  return clock_gettime(clock, &time) ? 0 : time.tv_sec * CpuTime{1'000'000'000} + time.tv_nsec;
}

Place place_of(ThreadId thread) {
  char path[64], text[512];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t size = file < 0 ? 0 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  text[std::max<ssize_t>(0, size)] = 0;
  // proc(5): the end of the thread's name in parentheses, then the state, 36 fields, and the CPU.
  const char* at = std::strrchr(text, ')');
  if (!at || at[1] != ' ') return {false, -1};
  at += 2;
  const bool awake = *at == 'R';
  for (int field = 0; field < 36 && at; field++) at = std::strchr(at + 1, ' ');
  return {awake, at ? std::atoi(at) : -1};
}
#else
int current_cpu() { return -1; }
ThreadId this_thread() { return 0; }
int thread_count() { return 0; }
void move_away(ThreadId, int) {}
void move_to(ThreadId, int) {}
CpuTime cpu_time(ThreadId) { return 0; }
Place place_of(ThreadId) { return {false, -1}; }
#endif

}  // namespace redblue
