// Runs kernels on the threads of this process: the default launch of back ends.
#include "kernels/replay/launch.h"

#include <ATen/Parallel.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>

#include "shadowgraph/kernels/program.h"
#include "support/text.h"

namespace shadowgraph {
bool KernelBackend::launch(KernelFunction kernel, const KernelLaunch& launch) const {
  int64_t wrong = 0;
  c10::SmallVector<void*, 40> data(launch.data.begin(), launch.data.end());
  data.push_back(&wrong);
  const auto run = [&](int64_t begin, int64_t end) {
    kernel(data.data(), launch.sizes.data(), launch.strides.data(), launch.scalars.data(), begin, end);
  };
  if (launch.range * launch.row_work <= kElementsOfAThread || at::get_num_threads() == 1 || at::in_parallel_region()) {
    run(0, launch.range);
  } else {
    at::parallel_for(0, launch.range, std::max<int64_t>(kElementsOfAThread / launch.row_work, 1), run);
  }
  return wrong == 0;
}

Trial::Trial(KernelCache& cache, KernelRef kernel, std::string subject, const KernelMeasureOptions& options)
    : cache_(cache), kernel_(std::move(kernel)), subject_(std::move(subject)), options_(options) {
  if (!options_.enabled) {
    verdict_ = Implementation::kKernel;
    return;
  }
  // "kernel 1200 3400": the verdict, and the best nanoseconds of both.
  const std::string known = cache_.verdict(kernel_, subject_);
  const size_t word = std::min(known.find(' '), known.size());
  const auto verdict = find_named<Implementation>(known.substr(0, word));
  const auto times = parse_numbers<int64_t>(known.substr(std::min(word + 1, known.size())), ' ');
  if (!verdict || !times || times->size() != 2) return;
  verdict_ = *verdict;
  kernel_best_ = times->front();
  original_best_ = times->back();
}

// The order is k o o k k o o k ..., so that two alternating calls of a step (which differ in cache contents) get both
// implementations equally often.
Trial::Implementation Trial::next() {
  const std::lock_guard lock(mutex_);
  const int64_t turn = turns_++ % 4;
  return turn == 0 || turn == 3 ? Implementation::kKernel : Implementation::kOriginal;
}

void Trial::took(Implementation implementation, int64_t nanoseconds) {
  std::string decided;
  {
    const std::lock_guard lock(mutex_);
    const bool kernel = implementation == Implementation::kKernel;
    int64_t& samples = kernel ? kernel_samples_ : original_samples_;
    int64_t& best = kernel ? kernel_best_ : original_best_;
    best = samples++ == 0 ? nanoseconds : std::min(best, nanoseconds);
    const int64_t wanted = std::max(options_.samples, 1);
    if (verdict() != Implementation::kUnknown || kernel_samples_ < wanted || original_samples_ < wanted) return;
    // A few samples do not distinguish similar times, within a 32nd; the original is kept then.
    const bool pays = kernel_best_ + kernel_best_ / 32 < original_best_;
    const Implementation faster = pays ? Implementation::kKernel : Implementation::kOriginal;
    decided = fmt::format("{} {} {}", to_string(faster), kernel_best_, original_best_);
    verdict_.store(faster, std::memory_order_release);
  }
  cache_.set_verdict(kernel_, subject_, decided);
}

int64_t Trial::now() const {
  if (options_.clock) return options_.clock();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t Trial::best(Implementation implementation) const {
  const std::lock_guard lock(mutex_);
  return implementation == Implementation::kKernel ? kernel_best_ : original_best_;
}

Trial& Trials::of(const KernelRef& kernel, const std::string& original, int64_t work) {
  std::string subject =
      fmt::format("{}, 2^{} elements, {} threads", original,
                  std::bit_width(static_cast<uint64_t>(std::max<int64_t>(work, 0))), at::get_num_threads());
  const std::lock_guard lock(mutex_);
  auto& trial = trials_[{kernel.get(), subject}];
  if (trial == nullptr) trial = std::make_unique<Trial>(cache_, kernel, subject, options_);
  return *trial;
}

}  // namespace shadowgraph
