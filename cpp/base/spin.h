// Waits without sleeping.
#pragma once
#include <chrono>
#include <thread>

namespace redblue {

// How long a thread spins before it sleeps: a little longer than a sleeping thread takes to wake up.
constexpr std::chrono::microseconds kSpin{100};

// Waits until `done()`, at most for `limit`; returns whether it is done. Yields the CPU to other threads that want it.
template <class Done>
bool spin(Done done, std::chrono::microseconds limit = kSpin) {
  const auto start = std::chrono::steady_clock::now();
  while (!done()) {
    if (std::chrono::steady_clock::now() - start > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace redblue
