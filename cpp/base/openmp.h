// The OpenMP threads of another library in this process, PyTorch's in general.
//
// OpenMP's threads spin for milliseconds after each parallel region; threads of our own would share the CPUs with
// them. So while they spin, they do our work. When they sleep, our own threads are better: they wake on CPUs of their
// own, and a call need not wait for a thread that finds no CPU, as OpenMP's regions do.
#pragma once
#include <string>

#include "base/job.h"

namespace redblue {

// Finds the OpenMP runtime that a loaded library uses; an empty path forgets it. Returns whether there is one.
bool find_openmp(const std::string& path);

// Does a job on the caller's OpenMP team of `threads` threads. Returns false, and does nothing, if the team sleeps or
// does not exist yet, if no runtime has been found, if this process was forked since (OpenMP's threads are not in the
// child), or if another thread is in here.
bool run_on_openmp(Job& job, int threads);

}  // namespace redblue
