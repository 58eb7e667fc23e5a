// Answers what-if questions, each one about intervals: a storage is alive from one node to another, with so many bytes,
// for some purpose. The answer is the most bytes alive at once.
//
//     recorded    n0 ....... last backward | O ... optimizer
//     dtype       bytes of float32 storages halve; what losses and statistics keep in float32 does not
//     accumulate  a second list, for later micro-batches: gradients are there from n0 on, and each new one only until
//                 it has been added
//     optimizer   what is born from O on goes; the intervals of another optimizer's step follow instead
//     ZeRO        bytes of a kind are divided by the ranks
#include "shadowgraph/profile/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "profiler/what_if/question.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/error.h"
#include "shadowgraph/passes/checkpoint.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

using namespace step_lives;

void check(const WhatIf& change) {
  const auto refuse = [](const std::string& message) { throw Error("what_if: " + message); };
  if (change.dtype && *change.dtype != c10::ScalarType::BFloat16 && *change.dtype != c10::ScalarType::Half) {
    refuse(std::string("dtype is bfloat16 or float16, in place of float32; not ") + c10::toString(*change.dtype));
  }
  static constexpr std::string_view kOptimizers[] = {"", "none", "sgd", "sgd_momentum", "adam", "adamw"};
  if (std::find(std::begin(kOptimizers), std::end(kOptimizers), change.optimizer) == std::end(kOptimizers)) {
    refuse("there is no optimizer '" + change.optimizer + "'; none, sgd, sgd_momentum, adam and adamw are known");
  }
  if (change.accumulate < 1) refuse(fmt::format("accumulate is at least 1, not {}", change.accumulate));
  if (change.zero_stage < 0 || change.zero_stage > 3) {
    refuse(fmt::format("a ZeRO stage is 0, 1, 2 or 3, not {}", change.zero_stage));
  }
  if (change.ranks < 1) refuse(fmt::format("ranks are at least 1, not {}", change.ranks));
  if (change.zero_stage > 0 && change.ranks < 2) refuse("ZeRO spreads over at least 2 ranks: give ranks");
  if (change.zero_stage == 0 && change.ranks > 1) refuse("ranks without a ZeRO stage change nothing: give zero_stage");
}

int64_t flops_of(const Graph& graph, const Flops& flops) {
  int64_t sum = 0;
  for (uint32_t i = 0; i < graph.phase_count(); ++i) sum += flops.of_phase(PhaseId(i)).matmul;
  return sum;
}

// Returns the most bytes of a step as asked, and what it ends with; `steady` where another optimizer is asked for.
std::pair<Most, BytesByKind> as_asked(const Question& question, const WhatIf& change, std::optional<bool> steady) {
  Lives first = question.recorded();
  if (change.dtype) question.convert(first);
  std::vector<Lives> lists;
  if (change.accumulate > 1) lists.push_back(question.later_micro_batch(first));
  lists.push_back(std::move(first));
  for (Lives& lives : lists) {
    if (steady) lives = question.with_optimizer(lives, change.optimizer, *steady);
    if (change.zero_stage > 0) question.spread(lives);
  }
  Most most;
  for (const Lives& lives : lists) {
    const Most here = most_of(lives);
    if (here.bytes > most.bytes) most = here;
  }
  return std::pair(most, held_at_end(lists.back()));
}

std::vector<std::string> left_out(const Question& question, const WhatIf& change) {
  std::vector<std::string> ignored;
  ignored.push_back("the caching allocator, scratch inside kernels and times: live bytes alone");
  if (change.dtype) {
    ignored.push_back(
        "casts that do nothing in float32 are not in the step: losses are taken to be computed in float32 from a copy "
        "of "
        "what they are given, everything else in the new type; a model that computes norms in float32 holds more");
    ignored.push_back("attention may take another kernel in the new type");
  }
  if (!change.optimizer.empty() && change.optimizer != "none") {
    ignored.push_back(
        "the optimizer steps a parameter at a time, as libtorch's do; Python's foreach ones hold temporaries of all");
  }
  if (!change.optimizer.empty() && question.clips_or_scales()) {
    ignored.push_back("clipping, a GradScaler and averages that the recorded step has before and after its optimizer");
  }
  if (change.accumulate > 1) ignored.push_back("4 bytes a micro-batch of the loss that is divided");
  if (change.zero_stage > 0) {
    ignored.push_back("buckets and buffers of collectives, and padding of the parts to equal size");
    if (change.zero_stage == 3) {
      ignored.push_back("prefetching: the parameters of the largest module alone are whole at any time");
    }
  }
  return ignored;
}

}  // namespace

WhatIfAnswer what_if(const Graph& graph, const WhatIf& change) {
  check(change);
  WhatIfAnswer answer;
  const Question before(graph, change);
  answer.peak_before = most_of(before.recorded()).bytes;
  answer.held_before = held_at_end(before.recorded());
  answer.flops_before = flops_of(graph, before.costs().flops());
  if (change.dtype && !before.has_float32_parameters()) {
    throw Error("what_if: no parameter of this step is float32, so there is nothing to convert");
  }

  std::optional<Graph> rewritten;
  if (!change.checkpoint.empty()) {
    rewritten = clone(graph);
    const CheckpointResult done = checkpoint_modules(*rewritten, {.modules = change.checkpoint});
    answer.changes.push_back(
        fmt::format("{} segments are computed again in backward, {} nodes more", done.segments, done.recomputed));
  }
  std::optional<Question> after;
  if (rewritten) after.emplace(*rewritten, change);
  const Question& question = after ? *after : before;
  answer.flops = flops_of(rewritten ? *rewritten : graph, question.costs().flops());

  std::optional<bool> steady;
  if (!change.optimizer.empty()) steady = question.is_steady();
  const auto [most, held] = as_asked(question, change, steady);
  answer.peak = most.bytes;
  answer.by_kind = most.by_kind;
  answer.phase = question.phase_at(most.step);
  answer.held = held;
  if (steady) {
    answer.first_step_peak = as_asked(question, change, false).first.bytes;
    answer.steady_peak = as_asked(question, change, true).first.bytes;
  }

  for (const StorageKind kind : {StorageKind::kParameter, StorageKind::kGradient, StorageKind::kOptimizerState}) {
    const int64_t was = answer.held_before[static_cast<size_t>(kind)], is = held[static_cast<size_t>(kind)];
    if (was != is) {
      answer.changes.push_back(fmt::format("{}: {} instead of {}", to_string(kind), human_bytes(is), human_bytes(was)));
    }
  }
  answer.ignored = left_out(question, change);
  return answer;
}

}  // namespace shadowgraph
