#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "profiler/profile/metrics.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

constexpr int64_t kMinStake = 16 * kMebibyte;  // smaller findings are not reported

double share(int64_t part, int64_t whole) {
  return whole <= 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

class Search {
 public:
  explicit Search(const Profile& profile)
      : profile_(profile), peak_(profile.leading_peak()), costs_(ProgramCosts::of(profile)), graph_(profile.graph()) {}

  std::vector<Finding> all() {
    activations();
    cheap_activations();
    states();
    logits();
    layout_copies();
    fragmentation();
    does_not_fit();
    waiting();
    full_precision();
    unknown();
    std::stable_sort(found_.begin(), found_.end(),
                     [&](const Finding& a, const Finding& b) { return stake(a) > stake(b); });
    for (Finding& finding : found_) finding.seconds = per_step(finding.seconds);
    return std::move(found_);
  }

 private:
  double per_step(double seconds) const { return profile_.time() ? profile_.time()->per_step(seconds) : seconds; }
  // Returns the larger of the finding's shares of the peak and of the step time, to rank bytes and seconds together.
  double stake(const Finding& finding) const {
    const double seconds = profile_.time() != nullptr ? profile_.time()->seconds() : 0;
    return std::max(share(finding.bytes, peak_.bytes), seconds > 0 ? finding.seconds / seconds : 0);
  }
  int64_t at_peak(StorageKind kind) const { return peak_.by_kind[static_cast<size_t>(kind)]; }

  void activations() {
    const int64_t bytes = at_peak(StorageKind::kActivation);
    if (share(bytes, peak_.bytes) < 0.4 || bytes < kMinStake || profile_.saved.activations == 0) return;
    found_.push_back(
        {.name = "activations",
         .seen = fmt::format("{} of the peak ({:.0f} %) are activations kept for backward", human_bytes(bytes),
                             100 * share(bytes, peak_.bytes)),
         .remedy = "recompute them in backward: --checkpoint auto, or --checkpoint 'layers.*' for selected modules "
                   "(about 33 % more FLOPs)",
         .bytes = bytes});
  }

  void cheap_activations() {
    int64_t bytes = 0, flops = 0;
    std::map<std::string, int64_t> by_op;
    // Only storages alive at the peak: those of another micro-batch, or freed by backward already, would free nothing.
    std::vector<bool> seen(graph_.storage_count(), true);
    for (const StorageId id : profile_.timeline().alive_at(peak_.node, graph_.storage_count())) seen[id.index] = false;
    for (const NodeId node : costs_.nodes) {
      for (const SavedTensor& saved : graph_.saved(node)) {
        const StorageId id = graph_.value(saved.value).storage;
        if (!id.valid() || seen[id.index] || profile_.kind(id) != StorageKind::kActivation) continue;
        seen[id.index] = true;
        const Storage& storage = graph_.storage(id);
        if (!storage.born.valid() || graph_.is_erased(storage.born)) continue;
        if (profile_.of(storage.born).matmul > 0 || graph_.facts(storage.born).random) continue;
        bytes += storage.bytes;
        flops += profile_.of(storage.born).elementwise;
        by_op[graph_.target(storage.born).name()] += storage.bytes;
      }
    }
    if (share(bytes, peak_.bytes) < 0.15 || bytes < kMinStake) return;
    const auto most =
        std::max_element(by_op.begin(), by_op.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    found_.push_back(
        {.name = "cheap-activations",
         .seen = fmt::format("{} saved for backward at the peak are outputs of operators without matrix products "
                             "(largest share: {}, {}); recomputing them takes {} FLOPs",
                             human_bytes(bytes), most->first, human_bytes(most->second), human_count(flops)),
         .remedy = "--checkpoint on the modules that produce them (--export storages-csv lists paths and bytes); fused "
                   "kernels save fewer of them",
         .bytes = bytes});
  }

  void states() {
    const int64_t state = at_peak(StorageKind::kOptimizerState);
    const int64_t gradients = at_peak(StorageKind::kGradient);
    const int64_t parameters = at_peak(StorageKind::kParameter);
    const int64_t all = state + gradients + parameters;
    if (share(all, peak_.bytes) < 0.5 || all < 64 * kMinStake || state == 0) return;
    found_.push_back(
        {.name = "optimizer-state",
         .seen = fmt::format("{} of the peak ({:.0f} %) are parameters, gradients and optimizer state ({} of state)",
                             human_bytes(all), 100 * share(all, peak_.bytes), human_bytes(state)),
         .remedy = "shard them (ZeRO, FSDP), use an 8-bit optimizer, or one with less state (--optimizer sgd)",
         .bytes = state});
  }

  // Finds several tensors of the size of a language model's logits.
  void logits() {
    struct Alike {
      int64_t count = 0, bytes = 0, largest = 0;
    };
    std::map<std::vector<int64_t>, Alike> by_shape;
    for (const LiveStorage& live : live_storages(graph_, profile_.timeline(), peak_.node, 32)) {
      if (live.shape.size() < 2 || live.shape.back() < 8192 || live.bytes < kMinStake) continue;
      if (live.kind == StorageKind::kParameter || live.kind == StorageKind::kGradient ||
          live.kind == StorageKind::kOptimizerState)
        continue;
      int64_t rows = 1;
      for (size_t d = 0; d + 1 < live.shape.size(); ++d) rows *= live.shape[d];
      Alike& alike = by_shape[{rows, live.shape.back()}];
      ++alike.count;
      alike.bytes += live.bytes;
      alike.largest = std::max(alike.largest, live.bytes);
    }
    for (const auto& [shape, copies] : by_shape) {
      if (copies.count < 2) continue;
      found_.push_back({.name = "logits",
                        .seen = fmt::format(
                            "{} tensors of {} x {} are alive at the peak, up to {} each: logits, softmax and gradient",
                            copies.count, shape[0], shape[1], human_bytes(copies.largest)),
                        .remedy = "compute the loss in chunks of rows, or use a fused linear cross entropy, which does "
                                  "not materialize them",
                        .bytes = copies.bytes - copies.largest});
    }
  }

  void layout_copies() {
    const Traffic& traffic = costs_.traffic();
    int64_t copied = 0, moved = 0, calls = 0;
    double seconds = 0;
    for (const NodeId node : costs_.nodes) {
      const int64_t bytes = traffic.of(node).total();
      moved += bytes;
      const std::string& op = graph_.target(node).name();
      if (op != "aten::clone" && op != "aten::contiguous" && op != "aten::_to_copy" && op != "aten::copy_") continue;
      copied += bytes;
      ++calls;
      if (profile_.time() != nullptr) seconds += profile_.time()->of(node).seconds;
    }
    if (share(copied, moved) < 0.1 || copied < kMinStake) return;
    found_.push_back(
        {.name = "layout-copies",
         .seen = fmt::format("{} copies move {} of {} ({:.0f} %): layout or dtype changes between operators", calls,
                             human_bytes(copied), human_bytes(moved), 100 * share(copied, moved)),
         .remedy =
             "keep one memory format (channels_last for convolutions) and one dtype; --export nodes-csv lists the "
             "copies",
         .seconds = profile_.time() == nullptr ? 0 : std::min(seconds, profile_.time()->seconds())});
  }

  void fragmentation() {
    if (!profile_.device_memory) return;
    const DeviceMemory& memory = *profile_.device_memory;
    const int64_t waste = memory.reserved_peak - memory.allocated_peak;
    if (share(waste, memory.reserved_peak) < 0.05 || waste < kMinStake) return;
    const auto others = other_settings(costs_, memory.options);
    if (others.empty() || others.front().reserved_peak > memory.reserved_peak - waste / 4) return;
    const std::string& settings = others.front().settings;
    found_.push_back(
        {.name = "fragmentation",
         .seen = fmt::format("the caching allocator reserves {}, {} more than the allocated peak{}",
                             human_bytes(memory.reserved_peak), human_bytes(waste), pinned(memory.options)),
         .remedy = fmt::format("PYTORCH_ALLOC_CONF={} reserves {} here (try --allocator {})",
                               settings.empty() ? "(unset)" : settings, human_bytes(others.front().reserved_peak),
                               settings.empty() ? "''" : settings),
         .bytes = memory.reserved_peak - others.front().reserved_peak});
  }

  // Describes the segment with the most unusable free memory.
  std::string pinned(const DeviceMemoryOptions& options) const {
    const auto all = fragmentation_causes(costs_, options);
    if (all.empty() || all.front().stuck < kMebibyte) return {};
    const FragmentationCause& most = all.front();
    std::string holder = "a workspace";
    if (most.storage.valid()) {
      const LiveStorage live = describe_storages(graph_, profile_.timeline(), {most.storage}).front();
      holder = human_bytes(live.bytes) + " of " + (live.module.empty() ? "" : live.module + " ") + live.producer;
    }
    return fmt::format("; at the peak {} segments are partly free, the largest with {} of {} free, held by {}",
                       all.size(), human_bytes(most.stuck), human_bytes(most.segment), holder);
  }

  void does_not_fit() {
    if (profile_.out_of_memory.empty()) return;
    found_.push_back({.name = "does-not-fit",
                      .seen = profile_.out_of_memory,
                      .remedy = "reduce --batch, or add --checkpoint auto or --allocator expandable_segments:True",
                      .bytes = peak_.bytes});
  }

  void waiting() {
    const StepTime* time = profile_.time();
    if (time == nullptr || time->seconds() <= 0 || time->waiting() < 0.15 * time->seconds()) return;
    int64_t optimizer = 0;
    for (const NodeId node : costs_.nodes) {
      optimizer += graph_.node(node).phase == Graph::kOptimizer && time->of(node).kind != KernelClass::kFree ? 1 : 0;
    }
    const bool many = optimizer > time->calls() / 3;
    found_.push_back(
        {.name = "launch-bound",
         .seen =
             fmt::format("the device is idle for {} of {}, waiting for the host: {} kernels, many shorter than their "
                         "launch{}",
                         human_seconds(per_step(time->waiting())), human_seconds(per_step(time->seconds())),
                         time->calls(), many ? fmt::format(" ({} of them in the optimizer)", optimizer) : ""),
         .remedy =
             many ? "use a fused optimizer (fused=True in Python); then CUDA graphs, torch.compile or a larger batch"
                  : "a larger batch, CUDA graphs or torch.compile",
         .seconds = time->waiting()});
  }

  void full_precision() {
    const StepTime* time = profile_.time();
    if (time == nullptr || time->host() <= 0) return;  // not an accelerator
    double seconds = 0;
    for (const NodeId node : costs_.nodes) {
      const NodeTime& at = time->of(node);
      if (at.bound != TimeBound::kCompute || at.kind != KernelClass::kMatmul) continue;
      bool full = false;
      graph_.for_each_input(node, [&](ValueId value) { full |= graph_.value(value).dtype == c10::kFloat; });
      if (full) seconds += at.compute;
    }
    if (seconds < 0.2 * time->seconds()) return;
    found_.push_back(
        {.name = "float32-products",
         .seen = fmt::format("{} of {} are matrix products in float32, without tensor cores",
                             human_seconds(per_step(seconds)), human_seconds(per_step(time->seconds()))),
         .remedy = "--dtype bf16 (autocast in the program), or torch.set_float32_matmul_precision('high') for TF32",
         .seconds = seconds * 0.8});
  }

  void unknown() {
    if (profile_.unknown_scratch.empty() || !profile_.timeline().steps()) return;
    if (!profile_.device.is_cpu()) return;  // only this machine's CPU can be measured
    found_.push_back({.name = "unknown-scratch",
                      .seen = fmt::format("the scratch memory of {} calls is unknown and not included",
                                          call_count(profile_.unknown_scratch)),
                      .remedy = "--measure measures it by running each distinct call once on this machine"});
  }

  const Profile& profile_;
  const PeakInfo& peak_;  // of the steady state if there is one
  const ProgramCosts& costs_;
  const Graph& graph_;
  std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> findings(const Profile& profile) {
  ProfileViews& views = ProgramCosts::views(profile);
  std::call_once(views.findings_once, [&] { views.findings = Search(profile).all(); });
  return views.findings;
}

std::string to_text(const std::vector<Finding>& findings) {
  std::string text;
  for (size_t i = 0; i < findings.size(); ++i) {
    const Finding& finding = findings[i];
    std::string stake;
    if (finding.bytes > 0) stake = human_bytes(finding.bytes);
    if (finding.seconds > 0) stake += (stake.empty() ? "" : ", ") + human_seconds(finding.seconds);
    text += fmt::format("{:>3}. {}{}\n     {}\n     -> {}\n", i + 1, finding.name,
                        stake.empty() ? "" : " (" + stake + " at stake)", finding.seen, finding.remedy);
  }
  return text;
}

}  // namespace shadowgraph
