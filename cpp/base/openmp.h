// Runs jobs on the OpenMP threads of another library in this process, usually PyTorch.
//
// OpenMP's threads spin for milliseconds after each parallel region and would compete with redblue's own threads for
// the CPUs. While they spin, they therefore do redblue's tasks. When they sleep, redblue's own threads are better: each
// wakes on its own CPU, and a call does not wait for a thread without a CPU, as an OpenMP region does.
#pragma once
#include <string>

#include "base/job.h"

namespace redblue {

// Finds the OpenMP runtime that a loaded library uses. An empty path forgets the runtime. Returns whether there is one.
bool find_openmp(const std::string& path);

// Runs a job on the caller's OpenMP team of `threads` threads. Does nothing and returns false if the team sleeps or
// does not exist yet, if there is no runtime, if the process was forked in the meantime (the child has no OpenMP
// threads), or if another thread is in this function.
bool run_on_openmp(Job& job, int threads);

}  // namespace redblue
