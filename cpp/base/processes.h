// The number of this process. A forked child has another number, which tells it that its parent's threads are gone.
#pragma once
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace redblue {

inline long this_process() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;
#endif
}

}  // namespace redblue
