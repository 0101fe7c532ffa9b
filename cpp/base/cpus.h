// Finds out and changes where threads run.
//
// Some operating systems wake a thread on the CPU of its waker even if another CPU is idle, for example on virtual
// machines that pack virtual CPUs. The woken thread then waits until the caller has done all the work alone. To move
// such a late thread, its affinity is narrowed to the wanted CPUs and restored immediately, so that the system may move
// it again.
#pragma once
#include <cstdint>

namespace redblue {

using ThreadId = int;  // the system's number of a thread; 0: unknown
using CpuTime = std::int64_t;

// The CPU that this thread runs on; -1 if the system does not say.
int current_cpu();

ThreadId this_thread();

// The number of threads of this process; 0 if the system does not say.
int thread_count();

// Moves a thread off a CPU, if its affinity allows another CPU. Does nothing if the system has no such call.
void move_away(ThreadId thread, int cpu);

// Moves a thread to a CPU, if its affinity allows it.
void move_to(ThreadId thread, int cpu);

// The CPU time that a thread has used, in ns; 0 if unknown. It does not grow while the thread waits for a CPU.
CpuTime cpu_time(ThreadId thread);

// awake: whether a thread runs or waits for a CPU; cpu: its CPU. Reading both from /proc takes about 10 us.
struct Place {
  bool awake;
  int cpu;
};
Place place_of(ThreadId thread);

// The most threads that one call moves. A move costs about 3 us, and a single one of many late threads matters little.
constexpr int kMaxMoves = 8;

}  // namespace redblue
