// The floating-point state in which all tasks run.
#pragma once
#include <cstdint>

namespace redblue {

// Sets the calling thread's default floating-point state while it exists: rounding to nearest, subnormal numbers kept.
// A caller may have set another state (torch.set_flush_denormal, and JAX's threads), and a worker inherits the state of
// the thread that created it. Without this, results would depend on which thread computes a task.
class DefaultFloats {
 public:
  DefaultFloats() : kept_(state()) { set(kDefault); }
  ~DefaultFloats() { set(kept_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
#if defined(__x86_64__)
  using State = unsigned;
  static constexpr State kDefault = 0x1f80;  // MXCSR: all exceptions masked
  static State state() { return __builtin_ia32_stmxcsr(); }
  static void set(State state) { __builtin_ia32_ldmxcsr(state); }
#elif defined(__aarch64__)
  using State = std::uint64_t;
  static constexpr State kDefault = 0;  // FPCR
  static State state() {
    State state;
    asm volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void set(State state) { asm volatile("msr fpcr, %0" : : "r"(state)); }
#else
  using State = int;
  static constexpr State kDefault = 0;
  static State state() { return 0; }
  static void set(State) {}
#endif
  const State kept_;
};

}  // namespace redblue
