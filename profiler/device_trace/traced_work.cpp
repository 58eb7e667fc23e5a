#include "profiler/device_trace/traced_work.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "profiler/device_trace/call_resolver.h"
#include "profiler/program_costs.h"
#include "shadowgraph/capture.h"
#include "shadowgraph/error.h"
#include "shadowgraph/fake.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kPhase = "call ";

std::string failure_text(const std::exception& error) {
  const auto* libtorch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = libtorch != nullptr ? libtorch->what_without_backtrace() : error.what();
  return text.substr(0, std::min(text.find('\n'), text.find(". ")));  // what to do about it is for those who capture
}

// Makes each distinct call in a phase of its own.
Graph calls_captured(const TracedCalls& calls, std::vector<TracedWork>& into) {
  const c10::Device device(calls.on_device ? c10::kCUDA : c10::kCPU);
  CaptureOptions options{.mode = {.device = device}, .saved_tensors = false, .guards = false};
  CaptureSession session(options);
  const c10::AutoGradMode no_history(false);
  CallResolver resolver;
  for (size_t i = 0; i < calls.distinct.size(); ++i) {
    const TraceOp& op = calls.events.ops[calls.distinct[i].op];
    const PhaseScope phase(fmt::format("{}{}", kPhase, i));
    try {
      const auto handle = resolver.find(op);
      if (!handle) throw Error("no operator here takes such inputs");
      into[i].op = c10::toString(handle->operator_name());
      torch::jit::Stack stack = CallResolver::arguments(*handle, op, device, calls.distinct[i].list_dtype);
      handle->callBoxed(stack);
    } catch (const std::exception& error) {
      into[i].problem = failure_text(error);
    }
  }
  return session.finish({});
}

}  // namespace

std::vector<TracedWork> traced_work(const TracedCalls& calls) {
  if (detect_fake_mode({}) != nullptr) {
    throw Error("a trace is read outside of fake modes and captures: its calls are made on fake tensors");
  }
  std::vector<TracedWork> result(calls.distinct.size());
  for (size_t i = 0; i < result.size(); ++i) result[i].op = calls.events.ops[calls.distinct[i].op].name;
  const Graph graph = calls_captured(calls, result);
  const ProgramCosts costs(graph);
  KernelWorks works(costs, {});                   // of classes, FLOPs and bytes alone
  std::vector<double> weight(result.size(), -1);  // of the node that gives the class
  for (const NodeId node : graph.nodes()) {
    const std::string& phase = graph.phase_name(graph.node(node).phase);
    if (!phase.starts_with(kPhase)) continue;
    size_t place = 0;
    std::from_chars(phase.data() + kPhase.size(), phase.data() + phase.size(), place);
    if (place >= result.size() || !result[place].problem.empty()) continue;
    const KernelWork work = works.of(node);
    if (work.kind == KernelClass::kFree) continue;
    // A call that is several nodes here is of the class of the one that does most.
    KernelWork& sum = result[place].work;
    const double flops = sum.flops + work.flops;
    const double bytes = sum.bytes + work.bytes;
    if (work.flops + work.bytes > weight[place]) {
      weight[place] = work.flops + work.bytes;
      sum = work;
    }
    sum.flops = flops;
    sum.bytes = bytes;
  }
  for (size_t i = 0; i < result.size(); ++i) {
    result[i].free = result[i].problem.empty() && weight[i] < 0;
  }
  return result;
}

}  // namespace shadowgraph
