// The tasks of one call. The caller and its workers take them in order.
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
  // Constructed by the caller. `work` must live until `finish` returns.
  Job(std::int64_t tasks, const std::function<void(std::int64_t)>& work) : tasks_(tasks), work_(work) {}

  // Called on the caller: takes tasks until none is left.
  void run();

  // The same on a worker, which may arrive after the last task. A worker on the caller's CPU first moves to another
  // CPU.
  void run_on_worker();

  // Called on the caller after `run`: waits until no worker is in a task.
  void finish();

  // Waits up to kSpin until no thread is in a task; returns whether that is so. If not, moves the threads that used no
  // CPU time in the meantime to this CPU, because they wait behind another program or thread.
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
  std::atomic<int> working_{0}, seats_{0}, moving_{0};  // threads in a task; seats taken; threads that move others
  std::array<std::atomic<ThreadId>, kSeats> seated_{};  // the thread of each seat while it takes tasks, else 0
  std::mutex mutex_;                                    // guards error_
  std::condition_variable done_;
  std::exception_ptr error_;
};

}  // namespace redblue
