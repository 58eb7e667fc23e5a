#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <unordered_map>

#include "core/calls/node_calls.h"
#include "core/libtorch/error_text.h"
#include "ir/text/words.h"
#include "profiler/measure/allocation_counter.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/measure.h"
#include "support/files.h"
#include "support/json.h"
#include "support/stopwatch.h"

namespace shadowgraph {
namespace {

class CallText {
 public:
  explicit CallText(const Graph& graph) : graph_(graph) {}

  std::string of(NodeId node) {
    graph_.for_each_input(node, [&](ValueId value) {
      const StorageId storage = graph_.value(value).storage;
      if (storage.valid()) ++uses_[storage.index];
    });
    text_ = graph_.target(node).name();
    text_ += '(';
    add(graph_.arguments(node), 0);
    text_ += ')';
    return std::move(text_);
  }

 private:
  void add(std::span<const Argument> arguments, int depth) {
    bool first = true;
    for (const Argument& argument : arguments) {
      if (!first) text_ += ", ";
      first = false;
      add(argument, depth);
    }
  }

  void add(const Argument& argument, int depth) {
    switch (argument.kind) {
      case ArgumentKind::kNone:
        text_ += "None";
        return;
      case ArgumentKind::kValue:
        return add_value(argument.ref.value);
      case ArgumentKind::kInt:
        return append_int(text_, argument.i);
      case ArgumentKind::kFloat:
        return append_float(text_, argument.d);
      case ArgumentKind::kBool:
        text_ += argument.b ? "true" : "false";
        return;
      case ArgumentKind::kString:
        return append_quoted(text_, graph_.text(argument.string));
      case ArgumentKind::kDevice:
        return append_device(text_, argument.device());
      case ArgumentKind::kIntList:
        text_ += '[';
        for (const int64_t element : graph_.ints(argument)) text_ += fmt::format("{},", element);
        text_ += ']';
        return;
      case ArgumentKind::kList:
        text_ += '[';
        if (depth < kMaxListDepth) add(graph_.list(argument), depth + 1);
        text_ += ']';
        return;
      case ArgumentKind::kConstant: {
        const auto constant = graph_.constant_meta(argument.constant);
        if (!constant) {
          text_ += "None";
          return;
        }
        text_ += "constant ";
        return add_tensor(constant->dtype, constant->sizes, constant->strides);
      }
      case ArgumentKind::kComplex:
      case ArgumentKind::kGenerator:
      case ArgumentKind::kOpaque:
        text_ += '*';
        return;
    }
  }

  void add_value(ValueId id) {
    const Value& value = graph_.value(id);
    if (value.kind != ValueKind::kTensor) {
      text_ += "number";
      return;
    }
    add_tensor(value.dtype, graph_.sizes(id), graph_.strides(id));
    // Records which operands share memory, and at which offsets.
    if (value.storage.valid() && uses_[value.storage.index] > 1) {
      const auto place = places_.try_emplace(value.storage.index, places_.size()).first;
      text_ += fmt::format("@{}+{}", place->second, value.offset);
    }
  }

  template <class Sizes>
  void add_tensor(c10::ScalarType dtype, const Sizes& sizes, const Sizes& strides) {
    text_ += dtype_word(dtype);
    text_ += '[';
    for (const int64_t size : sizes) text_ += fmt::format("{},", size);
    text_ += "]{";
    for (const int64_t stride : strides) text_ += fmt::format("{},", stride);
    text_ += '}';
  }

  const Graph& graph_;
  std::string text_;
  std::unordered_map<uint32_t, int> uses_;       // of storages, in this call
  std::unordered_map<uint32_t, size_t> places_;  // numbers of the shared ones, in order of appearance
};

using nlohmann::json;
constexpr int kVersion = 1;

class GeneratorGuard {
 public:
  GeneratorGuard() : generator_(at::globalContext().defaultGenerator(c10::kCPU)), state_(generator_.get_state()) {}
  ~GeneratorGuard() { generator_.set_state(state_); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

struct ReplayScope {
  c10::AutoGradMode grad_mode{false};
  c10::impl::ExcludeDispatchKeyGuard keys{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                          c10::autocast_dispatch_keyset};
};

// Runs a graph's calls one by one, on tensors created for each.
class Bench {
 public:
  Bench(const Graph& graph, const MeasureOptions& options) : graph_(graph), options_(options), templates_(graph) {}

  // Returns the reason that a call cannot be measured; empty if it can.
  std::string refusal(NodeId node) {
    const Target& target = graph_.target(node);
    std::string why;
    int64_t bytes = 0;
    const auto see = [&](ValueId id) {
      const Value& value = graph_.value(id);
      if (value.kind != ValueKind::kTensor) {
        why = "an argument is a number computed by the program";
      } else if (!value.storage.valid() || value.layout != c10::Layout::Strided || c10::isQIntType(value.dtype)) {
        why = "a tensor is not strided";
      } else if (!value.device().is_cpu()) {
        why = "on " + value.device().str();
      } else {
        bytes += graph_.storage(value.storage).bytes;
      }
    };
    graph_.for_each_input(node, see);
    graph_.for_each_output(node, [&](ValueId id) {
      const Value& value = graph_.value(id);
      if (value.kind == ValueKind::kTensor && !value.device().is_cpu()) why = "on " + value.device().str();
      if (value.storage.valid()) bytes += graph_.storage(value.storage).bytes;
    });
    if (!why.empty()) return why;
    if (bytes > options_.bytes) return "its tensors exceed the memory limit for measuring";
    if (!find_operator(target)) return "the operator is not registered in this process";
    if (target.name().starts_with("aten::from_file")) return "it would create or read a file";
    // Kernels do not check their arguments.
    const Signature& formals = graph_.target(node).signature();
    const auto arguments = graph_.arguments(node);
    for (size_t i = 0; i < formals.arguments.size(); ++i) {
      const FormalType& type = formals.arguments[i].type;
      const bool missing = i >= arguments.size() || arguments[i].kind == ArgumentKind::kNone;
      if (missing && !type.optional && type.type != TypeClass::kTensor) return "a required argument is missing";
    }
    return why;
  }

  // Rethrows exceptions of the operator.
  MeasuredCall measure(NodeId node) {
    const c10::OperatorHandle op = *find_operator(graph_.target(node));
    templates_.clear();
    std::string problem;
    const auto note = [&](const std::string& what) { problem = what; };
    const auto same = [](c10::Device device) { return device; };
    const CallTemplates::Call call =
        templates_.add(node, graph_.target(node).signature(), {.device = same, .problem = note});
    if (!problem.empty()) throw Error(problem);
    make_tensors(node);

    const ReplayScope below;
    MeasuredCall measured;
    {
      const auto counter = std::make_shared<AllocationCounter>();
      const c10::DebugInfoGuard count(c10::DebugInfoKind::PROFILER_STATE, counter);
      torch::jit::Stack stack = arguments(call);
      op.callBoxed(stack);
      // Memory of results is still live when the call returns; it is part of the graph already.
      measured.scratch = counter->most - std::max<int64_t>(counter->live, 0);
    }
    std::vector<double> seconds;
    for (int i = 0; i < options_.repeats; ++i) {
      torch::jit::Stack stack = arguments(call);
      const Stopwatch watch;
      op.callBoxed(stack);
      seconds.push_back(watch.seconds());
    }
    if (!seconds.empty()) {
      std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                       seconds.end());
      measured.seconds = seconds[seconds.size() / 2];
    }
    tensors_.clear();
    return measured;
  }

 private:
  torch::jit::Stack arguments(const CallTemplates::Call& call) const {
    torch::jit::Stack stack;
    templates_.push(
        call, [&](ValueId value) { return c10::IValue(tensors_.at(value)); }, stack);
    return stack;
  }

  // Creates a call's operands. They share storages as in the graph; only the range in use is allocated.
  void make_tensors(NodeId node) {
    struct Reach {
      int64_t begin = std::numeric_limits<int64_t>::max();  // bytes
      int64_t end = 0;
      c10::ScalarType dtype = c10::kByte;
      at::Tensor bytes;
    };
    tensors_.clear();
    std::unordered_map<uint32_t, Reach> storages;
    graph_.for_each_input(node, [&](ValueId id) {
      const Value& value = graph_.value(id);
      const auto sizes = graph_.sizes(id);
      const auto strides = graph_.strides(id);
      const auto item = static_cast<int64_t>(c10::elementSize(value.dtype));
      int64_t last = 0;  // element, from the first
      bool empty = false;
      for (size_t d = 0; d < sizes.size(); ++d) {
        empty |= sizes[d] == 0;
        last += (sizes[d] - 1) * strides[d];
      }
      Reach& reach = storages[value.storage.index];
      const int64_t begin = value.offset * item;
      reach.begin = std::min(reach.begin, begin);
      reach.end = std::max(reach.end, empty ? begin : begin + (last + 1) * item);
      reach.dtype = value.dtype;
    });
    for (auto& [storage, reach] : storages) {
      reach.begin = reach.begin / 64 * 64;  // keeps the alignment of the program
      const auto item = static_cast<int64_t>(c10::elementSize(reach.dtype));
      const int64_t bytes = std::max<int64_t>(0, reach.end - reach.begin) / item * item + item;
      reach.bytes = at::empty({bytes}, at::TensorOptions(c10::kByte));
      at::Tensor filled = at::empty({0}, at::TensorOptions(reach.dtype));
      filled.set_(reach.bytes.storage(), 0, {bytes / item}, {1});
      filled.fill_(c10::isFloatingType(reach.dtype) || c10::isComplexType(reach.dtype) ? 0.5 : 0.0);
    }
    graph_.for_each_input(node, [&](ValueId id) {
      const Value& value = graph_.value(id);
      const Reach& reach = storages.at(value.storage.index);
      const auto item = static_cast<int64_t>(c10::elementSize(value.dtype));
      const auto sizes = graph_.sizes(id);
      const auto strides = graph_.strides(id);
      at::Tensor tensor = at::empty({0}, at::TensorOptions(value.dtype));
      tensor.set_(reach.bytes.storage(), value.offset - reach.begin / item, {sizes.data(), sizes.size()},
                  {strides.data(), strides.size()});
      tensors_.insert_or_assign(id, std::move(tensor));
    });
  }

  struct ValueHash {
    size_t operator()(ValueId id) const { return id.index; }
  };
  const Graph& graph_;
  const MeasureOptions& options_;
  CallTemplates templates_;
  std::unordered_map<ValueId, at::Tensor, ValueHash> tensors_;
};

}  // namespace

std::string call_signature(const Graph& graph, NodeId node) { return CallText(graph).of(node); }

std::string MeasuredCalls::this_machine() {
  const CpuProfile& cpu = CpuProfile::this_machine();
  return fmt::format("libtorch {}, {}, oneDNN{}{}{}, {} thread{}", libtorch_version(), at::get_cpu_capability(),
                     at::globalContext().userEnabledMkldnn() ? "" : " off", cpu.mkldnn_bf16 ? " bf16" : "",
                     cpu.mkldnn_fp16 ? " fp16" : "", at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s");
}

std::string MeasuredCalls::default_file() { return cache_folder() / "measured-calls.json"; }

MeasuredCalls MeasuredCalls::read_file(const std::string& path) {
  MeasuredCalls calls;
  if (!is_file(path)) return calls;
  const std::string heading = path + ": not a file of measured calls; remove it to measure again";
  std::string text;
  if (path == default_file()) {
    try {
      text = read_private_file(path);
    } catch (const FileError& error) {
      TORCH_WARN_ONCE("measurements of this machine are ignored: ", error.what());
      return calls;
    }
  } else {
    text = shadowgraph::read_file(path);
  }
  const json file = parse_json(text, path);
  const JsonPlace place(file, heading);
  if (place["version"].integer() != kVersion) place["version"].fail("must be 1");
  const bool other_machine = place["machine"].text() != calls.machine_;
  for (const auto& [signature, figures] : place["calls"].members()) {
    if (figures.size() != 2) figures.fail("must be a pair [bytes of scratch memory, seconds]");
    const MeasuredCall call{figures[0].integer(0, int64_t{1} << 60), figures[1].seconds()};
    if (!other_machine) calls.calls_[signature] = call;
  }
  place.refuse_other_keys("measured calls");
  return calls;
}

void MeasuredCalls::write_file(const std::string& path) const {
  json file{{"version", kVersion}, {"machine", machine_}, {"calls", json::object()}};
  for (const auto& [signature, call] : calls_) file["calls"][signature] = {call.scratch, call.seconds};
  const std::string text = json_text(file, 1) + "\n";
  if (path == default_file()) {
    replace_private_file(path, text);
    return;
  }
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty()) make_folder(folder);
  shadowgraph::write_file(path, text);
}

MeasureReport measure_calls(const Graph& graph, MeasuredCalls& into, const MeasureOptions& options) {
  if (detect_fake_mode({}) != nullptr) {
    throw Error("measure_calls runs operators on real tensors; call it outside of fake tensor modes and captures");
  }
  MeasureReport report;
  std::map<std::pair<std::string, std::string>, int64_t> left_out;
  std::unordered_map<std::string, std::string> refused;  // signature to reason
  struct Wanted {
    NodeId node;
    std::string signature;
  };
  std::vector<Wanted> wanted;
  std::unordered_map<std::string, int64_t> calls;
  Bench bench(graph, options);
  for (const NodeId node : graph.nodes()) {
    const Target& target = graph.target(node);
    if (target.kind() != TargetKind::kOperator || graph.facts(node).is_view || graph.facts(node).collective) continue;
    std::string signature = call_signature(graph, node);
    if (into.find(signature) != nullptr) {
      if (calls.emplace(std::move(signature), 1).second) ++report.known;
      continue;
    }
    if (++calls[signature] > 1) continue;
    wanted.push_back({node, std::move(signature)});
  }

  const GeneratorGuard generator;
  const Stopwatch watch;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (options.progress) options.progress(i, wanted.size());
    const NodeId node = wanted[i].node;
    std::string why = bench.refusal(node);
    if (why.empty() && watch.seconds() > options.seconds) why = "the time limit is reached";
    if (why.empty()) {
      try {
        into.set(wanted[i].signature, bench.measure(node));
        ++report.measured;
        continue;
      } catch (const std::exception& error) {  // the operator rejects operands filled with one half or zero
        why = message_of(error);
        why = why.substr(0, why.find('\n'));
      }
    }
    left_out[{graph.target(node).name(), why}] += calls[wanted[i].signature];
  }
  for (auto& [what, count] : left_out) report.left_out.push_back({what.first, what.second, count});
  return report;
}

}  // namespace shadowgraph
