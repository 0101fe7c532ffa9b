// Where threads run.
//
// Some kernels wake a thread on the CPU of the thread that wakes it, even if another CPU is idle (those of virtual
// machines that pack virtual CPUs, for one). The woken thread then waits until the caller has done all the work alone.
// So a late thread is moved once: its affinity is narrowed to the wanted CPUs, which moves it, and restored
// immediately, so that the system may move it again.
#pragma once
#include <cstdint>

namespace redblue {

using ThreadId = int;  // as the system numbers threads; 0: unknown
using CpuTime = std::int64_t;

// The CPU that this thread runs on; -1 if the system does not say.
int current_cpu();

ThreadId this_thread();

// The number of threads of this process; 0 if the system does not say.
int thread_count();

// Moves a thread off a CPU, if its affinity allows another one. Does nothing where the system cannot do so.
void move_away(ThreadId thread, int cpu);

// Moves a thread to a CPU, if its affinity allows it.
void move_to(ThreadId thread, int cpu);

// The CPU time that a thread has used, in ns. It stands still while the thread waits for a CPU. 0 if unknown.
CpuTime cpu_time(ThreadId thread);

// Whether a thread runs or waits for a CPU, and its CPU. Asks the system's files: about 10 us.
struct Place {
  bool awake;
  int cpu;
};
Place place_of(ThreadId thread);

// Threads that one call moves at most: a move costs about 3 us, and one of many late threads matters little.
constexpr int kMaxMoves = 8;

}  // namespace redblue
