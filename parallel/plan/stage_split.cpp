#include "parallel/plan/stage_split.h"

#include <algorithm>

namespace shadowgraph {

// Where units that are computed again end, the join is that of units that are kept.
StageFigures figures_of(const LayoutChains& chains, const ChainStage& stage) {
  if (stage.again == 0) return chains.kept.stage(stage.first, stage.last);
  if (stage.again == stage.last - stage.first) return chains.again.stage(stage.first, stage.last);
  const int64_t middle = stage.first + stage.again;
  return LayerChain::joined(chains.again, stage.first, middle, chains.kept, stage.last);
}

double seconds_of(const LayoutChains& chains, const ChainStage& stage) {
  const int64_t middle = stage.first + stage.again;
  if (stage.again == 0) return chains.kept.seconds(stage.first, stage.last);
  if (middle == stage.last) return chains.again.seconds(stage.first, stage.last);
  return chains.again.seconds(stage.first, middle) + chains.kept.seconds(middle, stage.last);
}

int64_t passing_of(const LayoutChains& chains, const ChainStage& stage) {
  const int64_t middle = stage.first + stage.again;
  return std::max(stage.again > 0 ? chains.again.passing(stage.first, middle) : 0,
                  middle < stage.last ? chains.kept.passing(middle, stage.last) : 0);
}

namespace {

using Figure = int64_t (LayerChain::*)(int64_t first, int64_t last) const;
int64_t sum_of(const LayoutChains& chains, const ChainStage& stage, Figure figure) {
  const int64_t middle = stage.first + stage.again;
  return (stage.again > 0 ? (chains.again.*figure)(stage.first, middle) : 0) +
         (middle < stage.last ? (chains.kept.*figure)(middle, stage.last) : 0);
}

}  // namespace

int64_t bytes_of(const LayoutChains& chains, const ChainStage& stage, Between between, const SplitLimits& limits) {
  int64_t bytes = held_by(chains.kept.standing(stage.first, stage.last), limits.replicas).all();
  bytes += chains.kept.fixed(stage.first, stage.last);
  bytes += between.gradients * sum_of(chains, stage, &LayerChain::carried);
  if (between.weights > 0) bytes += between.weights * sum_of(chains, stage, &LayerChain::awaiting);
  return bytes + passing_of(chains, stage) / limits.stages_per_rank;
}

namespace {

class Splitter {
 public:
  Splitter(const LayoutChains& chains, const SplitLimits& limits)
      : chains_(chains), limits_(limits), units_(chains.kept.size()), stages_(std::ssize(limits.between)) {}

  std::optional<std::vector<ChainStage>> run() const {
    if (stages_ > units_) return std::nullopt;
    double most = chains_.again.seconds(0, units_) + chains_.kept.seconds(0, units_), least = 0;
    std::optional<std::vector<ChainStage>> found = under(most);
    if (!found) return std::nullopt;
    for (int i = 0; i < kHalvings && most - least > kClose * most; ++i) {
      const double middle = (least + most) / 2;
      if (auto better = under(middle)) {
        found = std::move(better);
        most = middle;
      } else {
        least = middle;
      }
    }
    return found;
  }

 private:
  static constexpr int kHalvings = 40;
  static constexpr double kClose = 1e-4;

  // The least number of units computed again with which a stage fits; nothing: none.
  std::optional<int64_t> again(int64_t first, int64_t last, size_t stage) const {
    const auto fits = [&](int64_t n) {
      return bytes_of(chains_, {first, last, n}, limits_.between[stage], limits_) <= limits_.memory[stage];
    };
    if (fits(0)) return 0;
    int64_t least = 0, most = last - first;
    if (!fits(most)) return std::nullopt;
    while (most - least > 1) {
      const int64_t middle = (least + most) / 2;
      (fits(middle) ? most : least) = middle;
    }
    return most;
  }

  std::optional<ChainStage> stage(int64_t first, int64_t last, size_t number, double seconds) const {
    const std::optional<int64_t> computed_again = again(first, last, number);
    if (!computed_again) return std::nullopt;
    const ChainStage made{first, last, *computed_again};
    return seconds_of(chains_, made) <= seconds ? std::optional(made) : std::nullopt;
  }

  std::optional<std::vector<ChainStage>> under(double seconds) const {
    std::vector<ChainStage> made;
    int64_t first = 0;
    for (int64_t s = 0; s < stages_; ++s) {
      const int64_t end = units_ - (stages_ - s - 1);  // one for each stage behind
      std::optional<ChainStage> largest = stage(first, first + 1, static_cast<size_t>(s), seconds);
      if (!largest) return std::nullopt;
      int64_t fits = first + 1, step = 1;
      while (fits < end) {
        const int64_t next = std::min(end, fits + step);
        const auto larger = stage(first, next, static_cast<size_t>(s), seconds);
        if (larger) {
          largest = larger;
          fits = next;
          step *= 2;
        } else if (step == 1) {
          break;
        } else {
          step = std::max<int64_t>(1, step / 4);
        }
      }
      made.push_back(*largest);
      first = fits;
    }
    return first == units_ ? std::optional(made) : std::nullopt;
  }

  const LayoutChains& chains_;
  const SplitLimits& limits_;
  const int64_t units_, stages_;
};

}  // namespace

std::optional<std::vector<ChainStage>> split(const LayoutChains& chains, const SplitLimits& limits) {
  return Splitter(chains, limits).run();
}

}  // namespace shadowgraph
