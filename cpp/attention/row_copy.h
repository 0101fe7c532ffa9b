// Copies new keys or values into rows of pages, whatever their number type.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention/tasks.h"

namespace redblue {

// Copies row i, `heads` x `width` numbers of `size` bytes each, to row rows[i] of page pages[i]. Strides are in bytes.
struct RowCopy {
  const std::int64_t *pages = nullptr, *rows = nullptr;
  std::int64_t count = 0, heads = 0, width = 0, size = 0;
  std::int64_t from_row = 0, from_head = 0, from_column = 0;
  std::int64_t to_page = 0, to_row = 0, to_head = 0, to_column = 0;

  void run(const char* from, char* to, int threads) const {
    constexpr std::int64_t kBytes = 1 << 18;  // per task; less is not worth another thread
    const std::int64_t each = std::max<std::int64_t>(1, kBytes / std::max<std::int64_t>(1, heads * width * size));
    share_out(ceil_div(count, each), threads, [&](std::int64_t task) {
      for (std::int64_t i = task * each; i < std::min(count, (task + 1) * each); i++)
        copy_row(from + i * from_row, to + pages[i] * to_page + rows[i] * to_row);
    });
  }

 private:
  void copy_row(const char* from, char* to) const {
    const bool dense = from_column == size && to_column == size, whole = dense && from_head == width * size;
    if (whole && to_head == from_head) {
      std::memcpy(to, from, heads * width * size);
      return;
    }
    for (std::int64_t h = 0; h < heads; h++, from += from_head, to += to_head)
      if (dense)
        std::memcpy(to, from, width * size);
      else
        for (std::int64_t c = 0; c < width; c++) std::memcpy(to + c * to_column, from + c * from_column, size);
  }
};

}  // namespace redblue
