// Writes a profile as a Chrome trace, with the fields that tools for torch.profiler traces read.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <string>

#include "ir/analysis/module_tree.h"
#include "ir/text/words.h"
#include "profiler/device_trace/trace_calls.h"
#include "profiler/program_costs.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/profile/traces.h"
#include "support/json.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == text.npos) text += '.';
  return text;
}

struct KinetoInput {
  std::string type;
  std::string text;
  json sizes = json::array();
  json strides = json::array();
};

json json_list(std::span<const int64_t> values) { return std::vector<int64_t>(values.begin(), values.end()); }

KinetoInput input_of(const Graph& graph, const Argument& argument) {
  switch (argument.kind) {
    case ArgumentKind::kValue: {
      const Value& value = graph.value(argument.ref.value);
      if (value.kind != ValueKind::kTensor) return {.type = "Scalar"};
      return {.type = kineto_type(value.dtype),
              .sizes = json_list(graph.sizes(argument.ref.value)),
              .strides = json_list(graph.strides(argument.ref.value))};
    }
    case ArgumentKind::kConstant: {
      const auto constant = graph.constant_meta(argument.constant);
      if (!constant) return {};
      return {.type = kineto_type(constant->dtype),
              .sizes = json_list(constant->sizes),
              .strides = json_list(constant->strides)};
    }
    case ArgumentKind::kInt:
      return {.type = "Scalar", .text = std::to_string(argument.i)};
    case ArgumentKind::kFloat:
      return {.type = "Scalar", .text = real_text(argument.d)};
    case ArgumentKind::kBool:
      return {.type = "Scalar", .text = argument.b ? "True" : "False"};
    case ArgumentKind::kIntList:
      return {.type = "ScalarList", .text = fmt::format("[{}]", fmt::join(graph.ints(argument), ", "))};
    case ArgumentKind::kList: {
      KinetoInput input{.type = "TensorList"};
      std::string numbers;
      bool tensors = false;
      for (const Argument& element : graph.list(argument)) {
        if (element.kind == ArgumentKind::kList) continue;
        const KinetoInput one = input_of(graph, element);
        if (one.type == "Scalar") numbers += (numbers.empty() ? "" : ", ") + one.text;
        if (one.type == "Scalar" || one.type.empty()) continue;
        tensors = true;
        input.sizes.push_back(one.sizes);
        input.strides.push_back(one.strides);
      }
      return tensors ? input : KinetoInput{.type = "ScalarList", .text = "[" + numbers + "]"};
    }
    default:
      return {};
  }
}

// Adds "Input Dims", "Input Strides", "Input type" and "Concrete Inputs", as record_shapes=True does.
void add_kineto_inputs(const Graph& graph, NodeId node, json& into) {
  json& dims = into["Input Dims"] = json::array();
  json& strides = into["Input Strides"] = json::array();
  json& types = into["Input type"] = json::array();
  json& concrete = into["Concrete Inputs"] = json::array();
  const auto& formals = graph.target(node).signature().arguments;
  const auto arguments = graph.arguments(node);
  for (size_t i = 0; i < arguments.size(); ++i) {
    KinetoInput input = input_of(graph, arguments[i]);
    // A number passed for a tensor is recorded as a 0-dimensional tensor.
    if (input.type == "Scalar" && i < formals.size() && formals[i].type.type == TypeClass::kTensor) {
      const bool real = arguments[i].kind == ArgumentKind::kFloat;
      input = {.type = real ? "double" : arguments[i].kind == ArgumentKind::kBool ? "bool" : "long int"};
    }
    types.push_back(std::move(input.type));
    concrete.push_back(std::move(input.text));
    dims.push_back(std::move(input.sizes));
    strides.push_back(std::move(input.strides));
  }
}

// Adds "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size", "Process Group Name" and "Process
// Group Ranks". The dtype is Byte, so elements are bytes.
void add_kineto_collective(const Collective& sent, const ProcessGroupInfo& group, json& into) {
  const int64_t part = sent.payload / group.size;
  const bool gathers = sent.kind == CollectiveKind::kAllGather || sent.kind == CollectiveKind::kGather;
  const bool scatters = sent.kind == CollectiveKind::kReduceScatter || sent.kind == CollectiveKind::kScatter;
  into["Collective name"] = std::string(to_string(sent.kind));
  into["In msg nelems"] = gathers ? part : sent.payload;
  into["Out msg nelems"] = scatters ? part : sent.payload;
  into["dtype"] = "Byte";
  into["Group size"] = group.size;
  into["Process Group Name"] = group.name;
  into["Process Group Ranks"] = fmt::format("[{}]", fmt::join(group.ranks, ", "));
}

constexpr int kProcess = 1;
constexpr int kModules = 1;  // rows
constexpr int kHost = 2;
constexpr int kDevice = 3;
constexpr int kGroups = 4;  // one per group, followed by one per stream except the default one

int row_of_stream(uint32_t stream, const Communication& communication) {
  return stream == 0 ? kDevice : kGroups - 1 + static_cast<int>(communication.groups().size() + stream);
}

// Returns the modules around a node, outermost first. The innermost has the rest of a deeper path.
std::vector<std::string> path_of(const Graph& graph, NodeId node) {
  constexpr size_t kDeepest = 16;
  const std::string path = module_path(graph, node);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < path.size();) {
    const size_t dot = parts.size() + 1 < kDeepest ? std::min(path.find('.', begin), path.size()) : path.size();
    parts.push_back(path.substr(0, dot));
    begin = dot + 1;
  }
  return parts;
}

json slice(std::string name, int row, double start, double seconds) {
  return {{"name", std::move(name)}, {"ph", "X"},           {"pid", kProcess}, {"tid", row},
          {"ts", start * 1e6},       {"dur", seconds * 1e6}};
}

json counter(const char* name, double at, json figures) {
  return {{"name", name}, {"ph", "C"}, {"pid", kProcess}, {"ts", at * 1e6}, {"args", std::move(figures)}};
}

// Text of a list of events: as json values they would take ten times the memory.
class Events {
 public:
  explicit Events(std::string text) : text_(std::move(text)) {}
  void push_back(const json& event) {
    text_ += text_.ends_with('[') ? "\n" : ",\n";
    text_ += json_text(event);
  }
  std::string finish(std::string_view end) && { return std::move(text_ += end); }

 private:
  std::string text_;
};

// Builds one slice for each run of consecutive nodes of a module, and likewise for its parents.
class ModuleSlices {
 public:
  explicit ModuleSlices(Events& events) : events_(events) {}

  void see(const std::vector<std::string>& path, const std::string& phase, double start, double end) {
    std::vector<std::string> wanted{phase};
    wanted.insert(wanted.end(), path.begin(), path.end());
    size_t same = 0;
    while (same < wanted.size() && same < open_.size() && wanted[same] == open_[same].name) ++same;
    close(same);
    for (; same < wanted.size(); ++same) open_.push_back({wanted[same], start});
    end_ = end;
  }
  void close(size_t down_to = 0) {
    while (open_.size() > down_to) {
      events_.push_back(
          slice(open_.back().name, kModules, open_.back().start, std::max(0.0, end_ - open_.back().start)));
      open_.pop_back();
    }
  }

 private:
  struct Open {
    std::string name;
    double start;
  };
  Events& events_;
  std::vector<Open> open_;
  double end_ = 0;
};

json collective_json(const Communication& communication, const Collective& sent) {
  const ProcessGroupInfo& group = communication.groups()[sent.group];
  return {{"kind", std::string(to_string(sent.kind))},
          {"group", group.name},
          {"processes", group.size},
          {"payload_bytes", sent.payload},
          {"wire_bytes", sent.cost.wire},
          {"algorithm", std::string(to_string(sent.cost.algorithm))}};
}

json collective_slice(const Profile& profile, const Collective& sent, double start, uint32_t step) {
  json made = slice(profile.graph().target(sent.node).name(), kGroups + static_cast<int>(sent.group), start,
                    sent.cost.seconds());
  const auto stream = static_cast<int>(sent.group) + 1;  // NCCL's stream, separate from the kernels'
  made["cat"] = "kernel";
  json& about = made["args"] = collective_json(*profile.communication(), sent);
  about["node"] = step;
  about["device"] = 0;
  about["stream"] = kGroups + stream;
  about["correlation"] = step;
  add_kineto_collective(sent, profile.communication()->groups()[sent.group], about);
  return made;
}

// Returns the slice of a node's kernel, or of its call if calls are synchronous, as torch.profiler writes them. Trace
// readers use "cat" and "args".
json kernel_slice(const Profile& profile, NodeId id, const NodeTime& at, uint32_t stream, uint32_t step) {
  const Graph& graph = profile.graph();
  const Node& node = graph.node(id);
  const StepTime* time = profile.time();
  const bool on_host = at.bound == TimeBound::kHost;
  const int row = on_host ? kHost : stream == 0 ? kDevice : row_of_stream(stream, *profile.communication());
  json kernel = slice(graph.target(id).name(), row, at.start, at.seconds);
  json& about = kernel["args"] = {{"node", step}, {"phase", graph.phase_name(node.phase)}};
  if (const std::string path = module_path(graph, id); !path.empty()) about["module"] = path;
  if (node.source.valid()) about["source"] = graph.text(node.source);
  if (profile.of(id).matmul > 0) about["flops"] = profile.of(id).matmul;
  if (time == nullptr) return kernel;
  about["class"] = std::string(to_string(at.kind));
  about["External id"] = step;
  if (time->host() > 0 && !on_host) {
    kernel["cat"] = "kernel";
    about["device"] = 0;
    about["stream"] = stream;
    about["correlation"] = step;
  } else {
    kernel["cat"] = "cpu_op";
    add_kineto_inputs(graph, id, about);
  }
  return kernel;
}

// Returns the slice of the host's call, ahead of the kernel.
json call_slice(const Profile& profile, NodeId id, double issued, uint32_t step) {
  const StepTime& time = *profile.time();
  json call = slice(profile.graph().target(id).name(), kHost, issued, time.host() / static_cast<double>(time.calls()));
  call["cat"] = "cpu_op";
  call["args"]["External id"] = step;
  add_kineto_inputs(profile.graph(), id, call["args"]);
  return call;
}

void name_rows(const Profile& profile, Events& events) {
  const auto name_row = [&](int row, const std::string& name) {
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", kProcess}, {"tid", row}, {"args", {{"name", name}}}});
    events.push_back(
        {{"name", "thread_sort_index"}, {"ph", "M"}, {"pid", kProcess}, {"tid", row}, {"args", {{"sort_index", row}}}});
  };
  const StepTime* time = profile.time();
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", kProcess},
                    {"args", {{"name", profile.model.value_or("step") + " on " + device_text(profile.device)}}}});
  name_row(kModules, "modules");
  if (time != nullptr && time->host() > 0) name_row(kHost, "host calls");
  name_row(kDevice, time != nullptr ? "kernels" : "nodes, 1 us each");
  if (profile.overlap() == nullptr) return;
  std::set<uint32_t> streams;
  for (const NodeId id : profile.graph().nodes()) streams.insert(stream_notes(profile.graph(), id).stream);
  for (const uint32_t stream : streams) {
    if (stream > 0)
      name_row(row_of_stream(stream, *profile.communication()), fmt::format("kernels of stream {}", stream));
  }
  const auto groups = profile.communication()->groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    name_row(kGroups + static_cast<int>(i), "communication of group " + groups[i].name);
  }
}

}  // namespace

std::string chrome_trace(const Profile& profile) {
  const Graph& graph = profile.graph();
  const StepTime* time = profile.time();
  const MemoryTimeline& timeline = profile.timeline();
  const OverlappedStep* overlap = profile.overlap();
  json header{{"schemaVersion", 1}, {"deviceProperties", json::array()}, {"displayTimeUnit", "ms"}};
  if (time != nullptr && time->host() > 0) header["deviceProperties"].push_back({{"id", 0}, {"name", time->spec()}});
  header["otherData"] = {{"shadowgraph", "estimate"},
                         {"links", overlap != nullptr ? profile.communication()->interconnect() : std::string()},
                         {"times", time != nullptr ? "estimated for " + time->spec() : "none: every node takes 1 us"}};
  std::string text = json_text(header);
  text.back() = ',';
  Events events(text + "\"traceEvents\":[");
  name_rows(profile, events);

  ModuleSlices modules(events);
  double now = 0;
  uint32_t step = 0;
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    NodeTime at = time != nullptr ? time->of(id) : NodeTime{.start = now, .seconds = 1e-6};
    uint32_t stream = 0;
    if (overlap != nullptr) {
      stream = stream_notes(graph, id).stream;
      at.start = overlap->start(id);
      if (at.seconds > 0) at.seconds = overlap->end(id) - at.start;
      if (const Collective* sent = profile.communication()->find(id)) {
        events.push_back(collective_slice(profile, *sent, at.start, step));
      }
    }
    if (at.seconds > 0 && graph.target(id).kind() != TargetKind::kBuiltin) {
      events.push_back(kernel_slice(profile, id, at, stream, step));
      if (time != nullptr && time->host() > 0 && at.bound != TimeBound::kHost) {
        events.push_back(call_slice(profile, id, at.issued, step));
      }
      if (stream == 0) {
        modules.see(path_of(graph, id), graph.phase_name(node.phase), at.start, at.start + at.seconds);
        now = at.start + at.seconds;
      }
    }
    if (step == 0 || timeline.live(step) != timeline.live(step - 1)) {
      events.push_back(counter("live bytes", now, kinds_json(timeline.live(step))));
    }
    if (const int64_t inside = profile.scratch(id).bytes; inside > 0) {
      events.push_back(counter("scratch", at.start, {{"bytes", inside}}));
      events.push_back(counter("scratch", now, {{"bytes", 0}}));
    }
    ++step;
  }
  modules.close();
  if (time != nullptr) {
    json whole = slice("ProfilerStep#0", kModules, 0, overlap != nullptr ? overlap->seconds() : time->seconds());
    whole["cat"] = "user_annotation";
    events.push_back(whole);
  }
  return std::move(events).finish("\n]}\n");
}

}  // namespace shadowgraph
