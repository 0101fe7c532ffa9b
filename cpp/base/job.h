// The tasks of one call, which several threads take in order.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

#include "base/cpus.h"
#include "base/share_out.h"

namespace redblue {

class Job {
 public:
  Job(std::int64_t tasks, const std::function<void(std::int64_t)>& work) : tasks_(tasks), work_(work) {}

  // Takes tasks until none is left. The first exception ends the job.
  void run() {
    for (std::int64_t task; (task = next_.fetch_add(1)) < tasks_;) try {
        work_(task);
      } catch (const Stopped&) {
        next_ = tasks_;
      } catch (...) {
        next_ = tasks_;
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
  }

  // The same on a worker. A worker that was woken on the caller's CPU leaves it, or the two would share one CPU.
  void run_on_worker() {
    if (current_cpu() == caller_cpu_) move_away(this_thread(), caller_cpu_);
    run();
  }

  int caller_cpu() const { return caller_cpu_; }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const std::int64_t tasks_;
  const std::function<void(std::int64_t)>& work_;
  const int caller_cpu_ = current_cpu();
  std::atomic<std::int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace redblue
