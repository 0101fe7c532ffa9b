// Distributes the tasks of a pass over threads.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace redblue {

// Thrown by a task that stops because another task of its call has failed. share_out rethrows the other task's
// exception.
struct Stopped {};

// Calls work(0), work(1), ... work(tasks - 1), each once, on up to `threads` threads including the caller; tasks start
// in this order. Returns when all are done. Rethrows the first exception; no task starts after an exception. Callers on
// different threads share the workers; a task must not call this function. Safe after fork: the child starts its own
// workers.
void share_out(std::int64_t tasks, int threads, const std::function<void(std::int64_t)>& work);

// Uses the OpenMP threads of a loaded library from now on, so that the process has one pool of threads (see openmp.h).
// path: of the library; an empty path selects redblue's own threads again. Returns whether OpenMP is used.
bool use_openmp_of(const std::string& path);

}  // namespace redblue
