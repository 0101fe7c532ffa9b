// Tells valgrind's callgrind where a measurement begins and ends; does nothing without valgrind.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace redblue {

// Output memory. Lines that the cache still holds at the end will be written back later.
struct Output {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
};

class Meter {
 public:
  // The next object of class Measured will measure. line_bytes: size of a cache line.
  void arm(std::vector<Output> outputs, std::size_t line_bytes);
  void start();
  void stop();
  bool armed() const { return line_bytes_ != 0; }

 private:
  std::vector<Output> outputs_;
  std::size_t line_bytes_ = 0;
};

Meter& meter();

// Measures its own lifetime if the meter is armed.
class Measured {
 public:
  Measured() : on_(meter().armed()) {
    if (on_) meter().start();
  }
  ~Measured() {
    if (on_) meter().stop();
  }
  Measured(const Measured&) = delete;
  Measured& operator=(const Measured&) = delete;

 private:
  const bool on_;
};

// Whether valgrind runs this process.
bool under_valgrind();

// Loops over arrays of doubles with known memory traffic, for tests of meters.
void copy_loop(double* to, const double* from, std::size_t count);
double strided_loop(const double* from, std::size_t count, std::size_t stride, int times);
// C += A B, all n x n, in tiles of `tile` x `tile`.
void product_loop(double* c, const double* a, const double* b, std::size_t n, std::size_t tile);

}  // namespace redblue
