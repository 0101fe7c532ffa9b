#include "base/pool.h"

#include <algorithm>
#include <exception>
#include <new>
#include <thread>

#include "base/processes.h"
#include "base/spin.h"

namespace redblue {

Pool& Pool::of_this_process() {
  static std::atomic<Pool*> current{nullptr};
  for (;;) {
    Pool* pool = current.load();
    if (pool && pool->process_ == this_process()) return *pool;
    std::unique_ptr<Pool> made(new Pool(this_process()));
    if (current.compare_exchange_strong(pool, made.get())) return *made.release();
  }
}

void Pool::run(const std::shared_ptr<Job>& job, int helpers) {
  try {
    post(job, helpers);
  } catch (const std::bad_alloc&) {
    // Fewer workers, or none, then get the job. `withdraw` removes the entries that no worker has taken.
  }
  job->run();
  withdraw(job);
  job->finish();
}

int Pool::workers() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(workers_.size());
}

void Pool::post(const std::shared_ptr<Job>& job, int helpers) {
  std::vector<Worker*> woken;
  woken.reserve(helpers);  // no allocation may fail between a worker's change of state and its wake-up
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    create_workers(helpers);
    helpers = std::min<int>(helpers, static_cast<int>(workers_.size()));
    for (int i = 0; i < helpers; i++) jobs_.push_back(job);
    posts_.fetch_add(1);
    // Entries of other callers count as well, because a looking worker takes only one entry.
    std::size_t looking = std::count_if(workers_.begin(), workers_.end(),
                                        [](const auto& worker) { return worker->state == State::kLooking; });
    for (const auto& worker : workers_) {
      if (looking >= jobs_.size() || static_cast<int>(woken.size()) == helpers) break;
      if (worker->state != State::kAsleep) continue;
      worker->state = State::kLooking;
      woken.push_back(worker.get());
      looking++;
    }
  }
  for (Worker* worker : woken) worker->wake.notify_one();
  for (std::size_t i = 0; i < woken.size() && i < kMaxMoves; i++) move_away(woken[i]->id, job->caller_cpu());
}

// Creates workers until there are `count`. If the system refuses threads or memory, fewer workers do the same work.
void Pool::create_workers(int count) {
  try {
    workers_.reserve(count);  // a running worker must be kept, so nothing may fail after its thread has started
    while (static_cast<int>(workers_.size()) < count) {
      auto worker = std::make_unique<Worker>();
      std::thread([this, mine = worker.get()] { serve(*mine); }).detach();
      workers_.push_back(std::move(worker));
    }
  } catch (const std::exception&) {
  }
}

// Removes the job's entries that no worker has taken.
void Pool::withdraw(const std::shared_ptr<Job>& job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
}

void Pool::serve(Worker& worker) {
  worker.id = this_thread();
  for (;;) {
    const std::shared_ptr<Job> job = take(worker);
    job->run_on_worker();
    job->help_stalled();
  }
}

// Waits for a job: spins, then sleeps.
std::shared_ptr<Job> Pool::take(Worker& worker) {
  std::unique_lock<std::mutex> lock(mutex_);
  worker.state = State::kLooking;
  if (jobs_.empty()) {
    const std::uint64_t seen = posts_;
    lock.unlock();
    spin([&] { return posts_ != seen; });
    lock.lock();
  }
  while (jobs_.empty()) {
    worker.state = State::kAsleep;
    worker.wake.wait(lock, [&] { return worker.state != State::kAsleep; });
  }
  worker.state = State::kBusy;
  std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

}  // namespace redblue
