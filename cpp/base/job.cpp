#include "base/job.h"

#include <algorithm>
#include <thread>

#include "base/default_floats.h"
#include "base/share_out.h"
#include "base/spin.h"

namespace redblue {

void Job::run() { take_tasks(); }

void Job::run_on_worker() {
  if (next_.load() >= tasks_) return;
  if (current_cpu() == caller_cpu_) move_away(this_thread(), caller_cpu_);
  take_tasks();
}

void Job::finish() {
  while (!help_stalled()) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait_for(lock, kSpin, [this] { return all_done(); });
  }
  // The caller must not return with a narrow affinity: threads that it creates would inherit it, and CPU counts would
  // be wrong.
  while (moving_) std::this_thread::yield();
}

void Job::rethrow() const {
  if (error_) std::rethrow_exception(error_);
}

void Job::take_tasks() {
  const int seat = seats_.fetch_add(1);
  // This thread is counted before it takes a task, so a caller that finds no task left also finds this thread counted.
  working_.fetch_add(1);
  if (seat < kSeats) seated_[seat] = this_thread();
  const DefaultFloats floats;
  for (std::int64_t task; (task = next_.fetch_add(1)) < tasks_;) try {
      work_(task);
    } catch (const Stopped&) {
      next_ = tasks_;
    } catch (...) {
      next_ = tasks_;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  if (seat < kSeats) seated_[seat] = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (working_.fetch_sub(1) == 1) done_.notify_all();
}

bool Job::help_stalled() {
  struct Working {
    int seat;
    ThreadId thread;
    CpuTime used;
  };
  std::array<Working, kMaxMoves> others{};
  int count = 0;
  for (int seat = 0, seats = std::min<int>(seats_, kSeats); seat < seats && count < kMaxMoves; seat++)
    if (const ThreadId thread = seated_[seat]) others[count++] = {seat, thread, cpu_time(thread)};
  if (spin([this] { return all_done(); })) return true;
  // This move is counted before the seats are read, so a caller that is still seated sees it and waits for its end.
  moving_.fetch_add(1);
  for (int i = 0; i < count; i++) {
    const auto& [seat, thread, used] = others[i];
    if (seated_[seat] && cpu_time(thread) == used) move_to(thread, current_cpu());
  }
  moving_.fetch_sub(1);
  return false;
}

}  // namespace redblue
