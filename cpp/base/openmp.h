// The OpenMP threads of another library in this process, PyTorch's in general.
//
// OpenMP's threads spin for milliseconds after each parallel region. Threads of our own would have to share the CPUs
// with them, and they with ours.
#pragma once
#include <string>

#include "base/job.h"

namespace redblue {

// Finds the OpenMP runtime that a loaded library uses; an empty path forgets it. Returns whether there is one.
bool find_openmp(const std::string& path);

// Does a job on the caller's OpenMP team of `threads` threads. Returns false, and does nothing, if no runtime has been
// found, if this process was forked since (OpenMP's threads are not in the child), or if another thread is in here.
bool run_on_openmp(Job& job, int threads);

}  // namespace redblue
