// Working memory of one thread: aligned pieces that are allocated one after another and freed together.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace redblue {

class Arena {
 public:
  template <class T>
  T* take(std::int64_t count) {
    const std::size_t bytes = (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    taken_ += bytes;
    if (used_ + bytes > size_) {
      if (block_) full_.push_back(std::move(block_));  // its pieces stay valid until clear()
      allocate(std::max({bytes, size_, wanted_}));
    }
    T* const piece = reinterpret_cast<T*>(block_.get() + used_);
    used_ += bytes;
    return piece;
  }

  void clear() {
    if (!full_.empty()) {  // several blocks were needed: the next block holds as much as all of them
      full_.clear();
      wanted_ = taken_;
      release();
    }
    used_ = taken_ = 0;
  }

  // Frees all pieces. Keeps the block only if it has at most `most` bytes.
  void clear_and_keep(std::size_t most) {
    clear();
    if (wanted_ > most) wanted_ = 0;
    if (size_ > most) release();
  }

 private:
  static constexpr std::size_t kAlign = 64;
  static constexpr std::align_val_t kPage{4096};
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, kPage); }
  };
  void release() {
    block_.reset();
    size_ = used_ = 0;
  }
  void allocate(std::size_t bytes) {  // throws std::bad_alloc; the arena is then empty
    release();
    wanted_ = 0;
    block_.reset(static_cast<char*>(::operator new(bytes, kPage)));
    size_ = bytes;
  }
  std::unique_ptr<char, Free> block_;
  std::vector<std::unique_ptr<char, Free>> full_;
  std::size_t size_ = 0, used_ = 0, taken_ = 0, wanted_ = 0;
};

}  // namespace redblue
