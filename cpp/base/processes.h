// The number of this process, by which a forked child knows that its threads are gone.
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
