#include "base/pool.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace redblue {
namespace {

// One call of share_out. Workers hold it by shared_ptr, so a late worker still finds the job, without tasks.
struct Job {
  std::int64_t tasks;
  const std::function<void(std::int64_t)>* work;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> busy{0};  // workers inside run()
  std::mutex mutex;
  std::condition_variable idle;
  std::exception_ptr error;

  void run() {
    for (std::int64_t task; (task = next.fetch_add(1)) < tasks;) try {
        (*work)(task);
      } catch (const Stopped&) {
        next = tasks;
      } catch (...) {
        next = tasks;
        const std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
      }
  }
};

class Pool {
 public:
  explicit Pool(long owner) : owner_(owner) {}
  long owner() const { return owner_; }

  // Asks up to `helpers` workers to join, as many as the system lets run.
  void post(const std::shared_ptr<Job>& job, int helpers) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      try {
        for (; workers_ < helpers; workers_++) std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
      }
      for (int i = 0; i < helpers && i < workers_; i++) jobs_.push_back(job);
    }
    if (helpers == 1) wake_.notify_one();
    else wake_.notify_all();
  }
  // Withdraws the requests that no worker has taken: from now on, only busy workers know the job.
  void withdraw(const std::shared_ptr<Job>& job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = jobs_.begin(); it != jobs_.end();) it = *it == job ? jobs_.erase(it) : it + 1;
  }

 private:
  void serve() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return !jobs_.empty(); });
        job = std::move(jobs_.front());
        jobs_.pop_front();
        job->busy.fetch_add(1);
      }
      job->run();
      {
        const std::lock_guard<std::mutex> lock(job->mutex);
        job->busy.fetch_sub(1);
      }
      job->idle.notify_one();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;
  int workers_ = 0;
  const long owner_;  // the process that the workers belong to
};

long this_process() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;
#endif
}

// Never destroyed: workers sleep in the pool until the process ends. A forked child has none of its parent's threads,
// so it creates its own pool and does not touch the parent's, which may be in any state.
Pool& pool() {
  static std::atomic<Pool*> current{nullptr};
  for (;;) {
    Pool* found = current.load();
    if (found && found->owner() == this_process()) return *found;
    auto made = std::make_unique<Pool>(this_process());
    if (current.compare_exchange_strong(found, made.get())) return *made.release();
  }
}

}  // namespace

void share_out(std::int64_t tasks, int threads, const std::function<void(std::int64_t)>& work) {
  if (tasks <= 1 || threads <= 1) {
    for (std::int64_t task = 0; task < tasks; task++) work(task);
    return;
  }
  const auto job = std::make_shared<Job>();
  job->tasks = tasks;
  job->work = &work;
  const int helpers = static_cast<int>(tasks < threads ? tasks : threads) - 1;
  pool().post(job, helpers);
  job->run();
  pool().withdraw(job);
  std::unique_lock<std::mutex> lock(job->mutex);
  job->idle.wait(lock, [&] { return job->busy == 0; });
  if (job->error) std::rethrow_exception(job->error);
}

}  // namespace redblue
