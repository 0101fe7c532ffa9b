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
  // The pool of this process. A forked child has none of its parent's threads, so it gets its own pool. It does not
  // touch the parent's pool, which may be in any state. Pools are never destroyed, because workers sleep in them until
  // the process ends.
  static Pool& of_this_process();

  // Runs a job on the caller and up to `helpers` workers; on fewer if the system refuses threads or memory. Workers
  // hold the job by shared_ptr, because a worker may still look for a task after the caller has returned.
  void run(const std::shared_ptr<Job>& job, int helpers);

  int workers();  // number of workers created so far

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
  std::deque<std::shared_ptr<Job>> jobs_;  // one entry per worker that a job still wants
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<std::uint64_t> posts_{0};  // grows with every post; spinning workers watch it without the mutex
};

}  // namespace redblue
