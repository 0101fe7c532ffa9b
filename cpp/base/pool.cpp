#include "base/pool.h"

#include <algorithm>
#include <system_error>
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
  post(job, helpers);
  job->run();
  withdraw(job);
  job->finish();
}

void Pool::post(const std::shared_ptr<Job>& job, int helpers) {
  std::vector<Worker*> woken;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int created = create_workers(helpers);
    helpers = std::min<int>(helpers, static_cast<int>(workers_.size()));
    for (int i = 0; i < helpers; i++) jobs_.push_back(job);
    for (const auto& worker : workers_) {
      if (static_cast<int>(woken.size()) >= helpers - created - spinning_) break;
      if (!worker->asleep) continue;
      worker->asleep = false;
      woken.push_back(worker.get());
    }
    posts_.fetch_add(1);
  }
  for (Worker* worker : woken) worker->wake.notify_one();
  for (std::size_t i = 0; i < woken.size() && i < kMaxMoves; i++) move_away(woken[i]->id, job->caller_cpu());
}

// Returns how many it creates. The system may refuse threads; fewer then do the same work.
int Pool::create_workers(int count) {
  const std::size_t before = workers_.size();
  try {
    while (static_cast<int>(workers_.size()) < count) {
      auto worker = std::make_unique<Worker>();
      std::thread([this, mine = worker.get()] { serve(*mine); }).detach();
      workers_.push_back(std::move(worker));
    }
  } catch (const std::system_error&) {
  }
  return static_cast<int>(workers_.size() - before);
}

// Withdraws the places that no worker has taken.
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
  if (jobs_.empty()) {
    const std::uint64_t seen = posts_;
    spinning_++;
    lock.unlock();
    spin([&] { return posts_ != seen; });
    lock.lock();
    spinning_--;
  }
  while (jobs_.empty()) {
    worker.asleep = true;
    worker.wake.wait(lock, [&] { return !worker.asleep; });
  }
  std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

}  // namespace redblue
