// redblue's own worker threads, which sleep between calls and are shared by all callers.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/job.h"

namespace redblue {

class Pool {
 public:
  // The pool of this process. A forked child has none of its parent's threads, so it gets a pool of its own, and does
  // not touch its parent's, which may be in any state. Never destroyed: workers sleep in it until the process ends.
  static Pool& of_this_process();

  // Does a job on the caller and up to `helpers` workers, or fewer where the system refuses threads or memory. Workers
  // hold the job by shared_ptr, because one may still look for a task when the caller has left.
  void run(const std::shared_ptr<Job>& job, int helpers);

  int workers();  // that it has created

 private:
  enum class State { kLooking, kBusy, kAsleep };  // a looking worker takes the next job without being woken
  struct Worker {
    std::atomic<ThreadId> id{0};
    State state = State::kLooking;
    std::condition_variable wake;
  };

  explicit Pool(long process) : process_(process) {}
  void post(const std::shared_ptr<Job>& job, int helpers);
  void withdraw(const std::shared_ptr<Job>& job);
  void create_workers(int count);
  void serve(Worker& worker);
  std::shared_ptr<Job> take(Worker& worker);

  const long process_;                     // the process that the workers belong to
  std::mutex mutex_;                       // guards all below, and Worker::state
  std::deque<std::shared_ptr<Job>> jobs_;  // a job stands here once for each worker that it still wants
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<std::uint64_t> posts_{0};  // changes with every post, for workers that look without the mutex
};

}  // namespace redblue
