#include "base/share_out.h"

#include <algorithm>
#include <memory>

#include "base/default_floats.h"
#include "base/openmp.h"
#include "base/pool.h"

namespace redblue {

void share_out(std::int64_t tasks, int threads, const std::function<void(std::int64_t)>& work) {
  if (tasks <= 1 || threads <= 1) {
    const DefaultFloats floats;
    for (std::int64_t task = 0; task < tasks; task++) work(task);
    return;
  }
  const auto job = std::make_shared<Job>(tasks, work);
  // OpenMP gets all threads even for fewer tasks, because a change of the team's size ends threads and starts new ones.
  if (!run_on_openmp(*job, threads))
    Pool::of_this_process().run(job, static_cast<int>(std::min<std::int64_t>(tasks, threads)) - 1);
  job->rethrow();
}

bool use_openmp_of(const std::string& path) { return find_openmp(path); }

}  // namespace redblue
