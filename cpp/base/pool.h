// Threads that wait asleep for work; one set per process, shared by all callers.
#pragma once
#include <cstdint>
#include <functional>

namespace redblue {

// What a task throws that gives up because another one of its call has failed: the other's exception is the one to report.
struct Stopped {};

// Calls work(0), work(1), ... work(tasks - 1), each once, on up to `threads` threads, the caller among them; tasks are
// begun in that order. Returns when all are done; rethrows the first exception, after which no task is begun. Callers on
// different threads share the workers; a task may not call this. Safe after fork: the child starts workers of its own.
void share_out(std::int64_t tasks, int threads, const std::function<void(std::int64_t)>& work);

}  // namespace redblue
