#include "base/pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#include "base/processes.h"

namespace redblue {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread looks for work before it sleeps: as long as it takes to wake it, or a little longer.
constexpr std::chrono::microseconds kSpin{100};

// Spins until `done()`, for kSpin at most. Other threads that want this CPU get it.
template <class Done>
void spin(Done done) {
  for (const auto start = Clock::now(); !done() && Clock::now() - start < kSpin;) std::this_thread::yield();
}

}  // namespace

Pool& Pool::of_this_process() {
  static std::atomic<Pool*> current{nullptr};
  for (;;) {
    Pool* pool = current.load();
    if (pool && pool->process_ == this_process()) return *pool;
    std::unique_ptr<Pool> made(new Pool(this_process()));
    if (current.compare_exchange_strong(pool, made.get())) return *made.release();
  }
}

void Pool::run(Job& job, int helpers) {
  const auto request = std::make_shared<Request>(job);
  post(request, helpers);
  job.run();
  withdraw(request);
  spin([&] { return request->busy == 0; });
  std::unique_lock<std::mutex> lock(request->mutex);
  request->idle.wait(lock, [&] { return request->busy == 0; });
}

void Pool::post(const std::shared_ptr<Request>& request, int helpers) {
  std::vector<Worker*> woken;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int created = create_workers(helpers);
    helpers = std::min<int>(helpers, static_cast<int>(workers_.size()));
    for (int i = 0; i < helpers; i++) requests_.push_back(request);
    for (const auto& worker : workers_) {
      if (static_cast<int>(woken.size()) >= helpers - created - spinning_) break;
      if (!worker->asleep) continue;
      worker->asleep = false;
      woken.push_back(worker.get());
    }
    posts_.fetch_add(1);
  }
  for (Worker* worker : woken) worker->wake.notify_one();
  for (std::size_t i = 0; i < woken.size() && i < kMaxMoves; i++) move_away(woken[i]->id, request->job.caller_cpu());
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

// Withdraws the requests that no worker has taken: from now on, only busy workers know the job.
void Pool::withdraw(const std::shared_ptr<Request>& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  requests_.erase(std::remove(requests_.begin(), requests_.end(), request), requests_.end());
}

void Pool::serve(Worker& worker) {
  worker.id = this_thread();
  for (;;) {
    const std::shared_ptr<Request> request = take(worker);
    request->job.run_on_worker();
    {
      const std::lock_guard<std::mutex> lock(request->mutex);
      request->busy.fetch_sub(1);
    }
    request->idle.notify_one();
  }
}

// Waits for a request: spins, then sleeps.
std::shared_ptr<Pool::Request> Pool::take(Worker& worker) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (requests_.empty()) {
    const std::uint64_t seen = posts_;
    spinning_++;
    lock.unlock();
    spin([&] { return posts_ != seen; });
    lock.lock();
    spinning_--;
  }
  while (requests_.empty()) {
    worker.asleep = true;
    worker.wake.wait(lock, [&] { return !worker.asleep; });
  }
  std::shared_ptr<Request> request = std::move(requests_.front());
  requests_.pop_front();
  request->busy.fetch_add(1);
  return request;
}

}  // namespace redblue
