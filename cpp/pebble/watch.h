// Ends a search at its time limit or when its caller says so.
#pragma once
#include <chrono>

#include "pebble/task.h"

namespace redblue {

// The parts of one search (symmetries, beam searches, A*) share a watch, so that they share the time limit.
class PebbleWatch {
 public:
  explicit PebbleWatch(const PebbleLimits& limits) : limits_(limits), started_(Clock::now()) {}

  bool stopped() const { return stopped_; }

  // Reads the clock and, several times per second, calls `keep_on`. Returns whether the search may continue.
  bool goes_on(const PebbleProgress& at) {
    const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
    stopped_ = stopped_ || (limits_.seconds > 0 && seconds > limits_.seconds);
    if (seconds >= asked_ + kAskEvery) {
      asked_ = seconds;
      stopped_ = stopped_ || !limits_.keep_on(at);
    }
    return !stopped_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kAskEvery = 0.05;  // seconds

  const PebbleLimits& limits_;
  Clock::time_point started_;
  double asked_ = 0;  // seconds
  bool stopped_ = false;
};

}  // namespace redblue
