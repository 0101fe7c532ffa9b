// All states that a search has reached, numbered in the order of discovery.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace redblue {

template <class State>
class PebbleStates {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t(0);

  struct Met {
    State state;
    std::uint32_t from;  // the previous state on the cheapest known path
    std::int32_t cost;   // of that path
    std::int32_t due;    // the total cost at which it is expanded next
  };

  PebbleStates() : slots_(1 << 12, kNone) {}

  std::uint32_t size() const { return size_; }
  Met& operator[](std::uint32_t i) { return (*chunks_[i >> kChunkBits])[i & (kChunk - 1)]; }

  // Bytes in use, and the bytes that the next growth of the table of slots would take.
  std::int64_t bytes() const { return std::int64_t(chunks_.size()) * sizeof(Chunk) + std::int64_t(slots_.size()) * 12; }

  // The state's number, or kNone.
  std::uint32_t find(const State& state) { return slots_[slot(state)]; }

  std::uint32_t add(const State& state, std::uint32_t from, std::int64_t cost, std::int64_t due) {
    if (2 * std::size_t(size_) >= slots_.size()) grow();
    if (size_ >> kChunkBits == chunks_.size()) chunks_.push_back(std::make_unique<Chunk>());
    const std::uint32_t i = size_++;
    (*this)[i] = {state, from, std::int32_t(cost), std::int32_t(due)};
    slots_[slot(state)] = i;
    return i;
  }

 private:
  static constexpr int kChunkBits = 14;
  static constexpr std::uint32_t kChunk = 1 << kChunkBits;
  using Chunk = std::array<Met, kChunk>;

  std::size_t slot(const State& state) {
    std::size_t at = state.hash() & (slots_.size() - 1);
    while (slots_[at] != kNone && !((*this)[slots_[at]].state == state)) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow() {
    slots_.assign(2 * slots_.size(), kNone);
    for (std::uint32_t i = 0; i < size_; ++i) slots_[slot((*this)[i].state)] = i;
  }

  std::uint32_t size_ = 0;
  std::vector<std::uint32_t> slots_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
};

}  // namespace redblue
