// The tasks of one call, which the caller and its workers take in order.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

#include "base/cpus.h"

namespace redblue {

class Job {
 public:
  // Made by the caller. work must live until `finish` returns.
  Job(std::int64_t tasks, const std::function<void(std::int64_t)>& work) : tasks_(tasks), work_(work) {}

  // On the caller: takes tasks until none is left.
  void run();

  // The same on a worker, which may come when all is done. A worker on the caller's CPU leaves it first.
  void run_on_worker();

  // On the caller, after `run`: waits until no worker is in a task.
  void finish();

  // Waits until no thread is in a task, for kSpin at most; returns whether that is so. A thread that has used no CPU
  // time meanwhile waits for a CPU, behind another program or another thread of this one: it gets this thread's.
  bool help_stalled();

  // Throws the first exception of a task, after `finish`.
  void rethrow() const;

  int caller_cpu() const { return caller_cpu_; }

 private:
  static constexpr int kSeats = 64;  // threads that can be helped; a job may have more

  // Takes tasks until none is left. The first exception ends the job.
  void take_tasks();
  bool all_done() const { return working_.load() == 0; }
  const std::int64_t tasks_;
  const std::function<void(std::int64_t)>& work_;
  const int caller_cpu_ = current_cpu();
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> working_{0}, seats_{0}, moving_{0};  // moving_: threads that move others
  std::array<std::atomic<ThreadId>, kSeats> seated_{};  // threads in a task; 0: none
  std::mutex mutex_;                                    // guards error_
  std::condition_variable done_;
  std::exception_ptr error_;
};

}  // namespace redblue
