// Matches the calls of a trace with operators, and recreates their arguments as fake tensors. A trace has operators
// without overload names, tensors as sizes, and numbers as text.
#include "profiler/device_trace/trace_calls.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/calls/call_record.h"
#include "core/libtorch/error_text.h"
#include "profiler/program_costs.h"
#include "profiler/time/kernel_work.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/graph.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

using c10::TypeKind;

c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

bool is_number_type(TypeKind kind) {
  return kind == TypeKind::IntType || kind == TypeKind::FloatType || kind == TypeKind::BoolType ||
         kind == TypeKind::NumberType || kind == TypeKind::SymIntType || kind == TypeKind::SymFloatType ||
         kind == TypeKind::SymBoolType || kind == TypeKind::ScalarTypeType || kind == TypeKind::LayoutType ||
         kind == TypeKind::MemoryFormatType;
}

bool takes_input(const TraceInput& input, const c10::Argument& argument) {
  const c10::TypePtr type = without_optional(argument.type());
  const auto list = type->cast<c10::ListType>();
  if (input.is_tensor()) return type->kind() == TypeKind::TensorType;
  if (input.is_tensors()) return list && without_optional(list->getElementType())->kind() == TypeKind::TensorType;
  if (input.type == "Scalar") return is_number_type(type->kind());
  if (input.type == "ScalarList") return list && is_number_type(list->getElementType()->kind());
  if (input.type == "GenericList") return list != nullptr;
  return true;  // None, a string, a device, a generator
}

struct Number {
  bool is_bool = false, is_int = false;
  int64_t whole = 0;
  double real = 0;
};

std::optional<Number> number_of(std::string_view text) {
  if (text == "True" || text == "False") {
    const int64_t value = text == "True" ? 1 : 0;
    return Number{.is_bool = true, .whole = value, .real = static_cast<double>(value)};
  }
  if (const auto whole = parse_number<int64_t>(text)) {
    return Number{.is_int = true, .whole = *whole, .real = static_cast<double>(*whole)};
  }
  const auto real = parse_number<double>(text);
  if (!real) return std::nullopt;
  return Number{.whole = std::abs(*real) < 9e18 ? static_cast<int64_t>(*real) : 0, .real = *real};
}

std::optional<std::vector<Number>> numbers_of(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::vector<Number> numbers;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view one = text.substr(0, comma);
    while (one.starts_with(' ')) one.remove_prefix(1);
    const auto number = number_of(one);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return numbers;
}

c10::IValue value_of(const Number& number, TypeKind kind) {
  switch (kind) {
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return number.whole != 0;
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return number.real;
    case TypeKind::NumberType:
      if (number.is_bool) return number.whole != 0;
      return number.is_int ? c10::IValue(number.whole) : c10::IValue(number.real);
    default:
      return number.whole;
  }
}

c10::IValue list_of(const std::vector<Number>& numbers, TypeKind kind) {
  const auto list = [&](auto like, const auto& value) {
    c10::List<decltype(like)> result;
    for (const Number& number : numbers) result.push_back(value(number));
    return c10::IValue(std::move(result));
  };
  if (kind == TypeKind::BoolType) return list(false, [](const Number& n) { return n.whole != 0; });
  if (kind == TypeKind::FloatType) return list(0.0, [](const Number& n) { return n.real; });
  if (kind == TypeKind::NumberType) {
    c10::List<c10::IValue> result(c10::NumberType::get());
    for (const Number& number : numbers) result.push_back(value_of(number, kind));
    return c10::IValue(std::move(result));
  }
  return list(int64_t{0}, [](const Number& n) { return n.whole; });
}

at::Tensor fake_tensor_of(const TraceInput& input, size_t place, c10::ScalarType dtype, c10::Device device) {
  const auto options = at::TensorOptions(dtype).device(device);
  if (place < input.strides.size()) return at::empty_strided(input.sizes[place], input.strides[place], options);
  return at::empty(input.sizes[place], options);
}

c10::IValue argument_value(const TraceInput& input, const c10::Argument& formal, c10::Device device,
                           c10::ScalarType list_dtype) {
  const c10::TypePtr type = without_optional(formal.type());
  const bool optional = type != formal.type();
  if (input.is_tensor()) return fake_tensor_of(input, 0, *input.dtype, device);
  if (input.is_tensors()) {
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < input.sizes.size(); ++i) tensors.push_back(fake_tensor_of(input, i, list_dtype, device));
    const auto element = type->expectRef<c10::ListType>().getElementType();
    if (element->kind() != TypeKind::OptionalType) return c10::List<at::Tensor>(tensors);
    c10::List<std::optional<at::Tensor>> list;
    for (const at::Tensor& tensor : tensors) list.push_back(tensor);
    return list;
  }
  if (!input.text.empty()) {
    if (const auto list = type->cast<c10::ListType>()) {
      if (const auto numbers = numbers_of(input.text)) return list_of(*numbers, list->getElementType()->kind());
    } else if (const auto number = number_of(input.text); number && is_number_type(type->kind())) {
      return value_of(*number, type->kind());
    }
  }
  if (formal.default_value() && input.text.empty() && input.type.empty()) return *formal.default_value();
  if (optional) return {};
  if (type->kind() == TypeKind::TensorType) return at::Tensor();
  if (type->kind() == TypeKind::DeviceObjType) return device;
  if (formal.default_value()) return *formal.default_value();
  throw Error("the trace has no value for argument " + formal.name());
}

class CallResolver {
 public:
  CallResolver() {
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      overloads_[name.name].push_back(name);
    }
    for (auto& [name, overloads] : overloads_) {
      std::ranges::sort(overloads, {}, &c10::OperatorName::overload_name);  // default overload first
    }
  }

  // Returns the overload that accepts the inputs; nullopt if this process has no such operator.
  std::optional<c10::OperatorHandle> find(const TraceOp& op) {
    if (op.name.find("::") == op.name.npos) return std::nullopt;
    std::string key = op.name;
    for (const TraceInput& input : op.inputs) key += ',' + input.type;
    const auto [known, fresh] = found_.try_emplace(std::move(key), std::nullopt);
    if (!fresh) return known->second;
    const size_t dot = std::min(op.name.find('.'), op.name.size());
    const auto overloads = overloads_.find(op.name.substr(0, dot));
    if (overloads == overloads_.end()) return std::nullopt;
    for (const c10::OperatorName& name : overloads->second) {
      if (dot < op.name.size() && name.overload_name != op.name.substr(dot + 1)) continue;
      const auto handle = c10::Dispatcher::singleton().findSchema(name);
      if (!handle) continue;
      const auto& formals = handle->schema().arguments();
      bool all = formals.size() == op.inputs.size();
      for (size_t i = 0; all && i < formals.size(); ++i) all = takes_input(op.inputs[i], formals[i]);
      if (!all) continue;
      known->second = *handle;
      break;
    }
    return known->second;
  }

  // Creates the arguments of a call, with tensors on `device`; call it in a fake tensor mode. `list_dtype` is the dtype
  // of tensor lists, which traces lack. Throws Error for an argument whose value is not in the trace.
  static torch::jit::Stack arguments(const c10::OperatorHandle& op, const TraceOp& call, c10::Device device,
                                     c10::ScalarType list_dtype) {
    torch::jit::Stack stack;
    const auto& formals = op.schema().arguments();
    for (size_t i = 0; i < formals.size(); ++i) {
      stack.push_back(argument_value(call.inputs.at(i), formals[i], device, list_dtype));
    }
    return stack;
  }

 private:
  std::map<std::string, std::vector<c10::OperatorName>> overloads_;
  std::map<std::string, std::optional<c10::OperatorHandle>> found_;  // by name and input types
};

constexpr double kMicrosecond = 1e-6;
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// Returns a key of the call: calls with equal keys do the same work, as far as the trace shows.
std::string text_of(const TraceOp& op, c10::ScalarType list_dtype) {
  std::string text = op.name;
  for (const TraceInput& input : op.inputs) {
    text += '|' + input.type + ':' + input.text;
    for (const auto* lists : {&input.sizes, &input.strides}) {
      for (const auto& list : *lists) {
        text += '[';
        for (const int64_t value : list) text += std::to_string(value) + ',';
        text += ']';
      }
    }
    if (input.is_tensors()) text += c10::toString(list_dtype);
  }
  return text;
}

std::optional<c10::ScalarType> first_float(const TraceOp& op) {
  for (const TraceInput& input : op.inputs) {
    if (input.is_tensor() && c10::isFloatingType(*input.dtype)) return input.dtype;
  }
  return std::nullopt;
}

class CallPicker {
 public:
  explicit CallPicker(TracedCalls& into) : into_(into), events_(into.events) {}

  void pick() {
    find_range();
    const c10::ScalarType common = common_dtype();
    call_of_op_.assign(events_.ops.size(), kNone);
    parent_.assign(events_.ops.size(), kNone);
    walk();
    give_kernels();
    for (size_t i = 0; i < picked_.size(); ++i) keep(picked_[i], common);
    sum_other_ops();
    measure_span();
  }

 private:
  struct Picked {
    uint32_t op = 0;
    bool free = false;  // a view, without a kernel
    std::optional<c10::ScalarType> list_dtype;
    double seconds = 0;
    int64_t kernels = 0;
  };

  void find_range() {
    into_.on_device = !events_.kernels.empty();
    if (events_.steps.empty()) return;
    into_.steps = static_cast<int64_t>(events_.steps.size());
    begin_ = events_.steps.front().start;
    for (const TraceStep& step : events_.steps) end_ = std::max(end_, step.end);
    stepped_ = true;
  }
  bool in_range(double time) const { return !stepped_ || (time >= begin_ && time <= end_); }

  // Traces have no dtype for tensor lists; returns the dtype of most floating-point elements instead.
  c10::ScalarType common_dtype() const {
    std::map<c10::ScalarType, double> elements;
    for (const TraceOp& op : events_.ops) {
      for (const TraceInput& input : op.inputs) {
        if (!input.is_tensor() || !c10::isFloatingType(*input.dtype)) continue;
        double product = 1;
        for (const int64_t size : input.sizes.front()) product *= static_cast<double>(size);
        elements[*input.dtype] += product;
      }
    }
    c10::ScalarType most = c10::kFloat;
    for (const auto& [dtype, count] : elements) {
      if (count > elements[most]) most = dtype;
    }
    return most;
  }

  // Walks each thread's intervals as a tree. The outermost non-composite operator is the call.
  void walk() {
    std::vector<uint32_t> open;
    for (uint32_t i = 0; i < events_.ops.size(); ++i) {
      const TraceOp& op = events_.ops[i];
      while (!open.empty() && !is_inside(op, events_.ops[open.back()])) open.pop_back();
      parent_[i] = open.empty() ? kNone : open.back();
      if (parent_[i] != kNone) call_of_op_[i] = call_of_op_[parent_[i]];
      open.push_back(i);
      if (call_of_op_[i] != kNone) {
        Picked& call = picked_[call_of_op_[i]];
        if (!call.list_dtype) call.list_dtype = first_float(op);
        continue;
      }
      if (!op.has_shapes || !in_range(op.start)) continue;
      const auto handle = resolver_.find(op);
      if (!handle || is_decomposed(*handle)) continue;
      call_of_op_[i] = static_cast<uint32_t>(picked_.size());
      picked_.push_back({.op = i, .free = is_free(*handle), .list_dtype = first_float(op)});
    }
  }

  // Times are rounded to nanoseconds, so a call may seem to end slightly after its parent.
  static bool is_inside(const TraceOp& op, const TraceOp& outer) {
    constexpr double kRounding = 0.01;  // microseconds
    return op.thread == outer.thread && op.start < outer.end() && op.end() <= outer.end() + kRounding;
  }

  bool is_free(const c10::OperatorHandle& op) {
    const auto [known, fresh] = free_.try_emplace(c10::toString(op.operator_name()), false);
    if (fresh) {
      known->second = kernel_class(names_.target(names_.intern_operator(known->first))).kind == KernelClass::kFree;
    }
    return known->second;
  }

  // Returns the innermost operator of a thread at a time.
  uint32_t op_at(const std::string& thread, double time) const {
    const auto after = std::ranges::partition_point(
        events_.ops, [&](const TraceOp& op) { return op.thread != thread ? op.thread < thread : op.start <= time; });
    if (after == events_.ops.begin()) return kNone;
    auto at = static_cast<uint32_t>(after - events_.ops.begin() - 1);
    if (events_.ops[at].thread != thread) return kNone;
    while (at != kNone && events_.ops[at].end() < time) at = parent_[at];
    return at;
  }

  void give_kernels() {
    std::unordered_map<int64_t, uint32_t> op_of_id;
    for (uint32_t i = 0; i < events_.ops.size(); ++i) {
      if (events_.ops[i].id >= 0) op_of_id.emplace(events_.ops[i].id, i);
    }
    std::unordered_map<int64_t, const TraceLaunch*> launches;
    for (const TraceLaunch& launch : events_.launches) launches.emplace(launch.correlation, &launch);
    for (const TraceKernel& kernel : events_.kernels) {
      uint32_t op = kNone;
      if (const auto found = op_of_id.find(kernel.id); found != op_of_id.end()) op = found->second;
      if (const auto launch = launches.find(kernel.correlation); op == kNone && launch != launches.end()) {
        op = op_at(launch->second->thread, launch->second->start);
      }
      if (kernel.collective) {
        if (in_range(op == kNone ? kernel.start : events_.ops[op].start)) {
          into_.collectives.push_back(
              {*kernel.collective, kernel.start * kMicrosecond, kernel.duration * kMicrosecond});
        }
        continue;
      }
      const uint32_t call = op == kNone ? kNone : call_of_op_[op];
      if (call == kNone) {
        if (in_range(op == kNone ? kernel.start : events_.ops[op].start)) {
          OtherTime& other = into_.other[kernel.name];
          ++other.calls;
          other.seconds += kernel.duration * kMicrosecond;
        }
        continue;
      }
      picked_[call].seconds += kernel.duration * kMicrosecond;
      ++picked_[call].kernels;
    }
  }

  void keep(const Picked& call, c10::ScalarType common) {
    const TraceOp& op = events_.ops[call.op];
    if (into_.on_device ? call.kernels == 0 : call.free) return;
    const c10::ScalarType list_dtype = call.list_dtype.value_or(common);
    const auto [known, fresh] =
        distinct_.try_emplace(text_of(op, list_dtype), static_cast<uint32_t>(into_.distinct.size()));
    if (fresh) into_.distinct.push_back({call.op, list_dtype});
    TracedCall made{.distinct = known->second,
                    .start = op.start * kMicrosecond,
                    .seconds = into_.on_device ? call.seconds : op.duration * kMicrosecond,
                    .kernels = call.kernels};
    if (last_ != nullptr && events_.ops[last_->op].thread == op.thread) {
      into_.calls.back().issues_next = true;
      into_.calls.back().until_next = (op.start - events_.ops[last_->op].start) * kMicrosecond;
    }
    last_ = &call;
    into_.calls.push_back(made);
  }

  // On a CPU, includes operators that are not registered in this process.
  void sum_other_ops() {
    if (into_.on_device) return;
    for (uint32_t i = 0; i < events_.ops.size(); ++i) {
      const TraceOp& op = events_.ops[i];
      const bool leaf = i + 1 == events_.ops.size() || parent_[i + 1] != i;
      if (call_of_op_[i] != kNone || !leaf || !in_range(op.start) || op.name.find("::") == op.name.npos) continue;
      if (op.name.starts_with("autograd::") || op.name.starts_with("torch::autograd")) continue;
      if (op.has_shapes && resolver_.find(op)) continue;  // a composite without calls
      OtherTime& other = into_.other[op.name];
      ++other.calls;
      other.seconds += op.duration * kMicrosecond;
    }
  }

  void measure_span() {
    std::vector<std::pair<double, double>> intervals;
    if (into_.on_device) {
      for (const TraceKernel& kernel : events_.kernels) {
        if (!kernel.collective && in_range(kernel.start))
          intervals.emplace_back(kernel.start, kernel.start + kernel.duration);
      }
    } else {
      for (const Picked& call : picked_) {
        const TraceOp& op = events_.ops[call.op];
        if (!call.free) intervals.emplace_back(op.start, op.end());
      }
    }
    std::ranges::sort(intervals);
    double covered = 0;
    double reach = -HUGE_VAL;
    for (const auto& [from, to] : intervals) {
      covered += std::max(0.0, to - std::max(from, reach));
      reach = std::max(reach, to);
    }
    into_.busy = covered * kMicrosecond;
    if (stepped_) {
      into_.span = (std::max(end_, reach) - begin_) * kMicrosecond;
    } else if (!intervals.empty()) {
      into_.span = (reach - intervals.front().first) * kMicrosecond;
    }
  }

  TracedCalls& into_;
  const TraceEvents& events_;
  CallResolver resolver_;
  Graph names_;  // operator facts
  std::vector<uint32_t> call_of_op_, parent_;
  std::vector<Picked> picked_;
  std::unordered_map<std::string, bool> free_;
  std::unordered_map<std::string, uint32_t> distinct_;
  const Picked* last_ = nullptr;
  double begin_ = 0, end_ = 0;
  bool stepped_ = false;
};

constexpr std::string_view kPhase = "call ";

std::string failure_text(const std::exception& error) {
  const std::string text = message_of(error);
  return text.substr(0, std::min(text.find('\n'), text.find(". ")));  // without the advice, which is about captures
}

// Runs each distinct call in a separate phase.
Graph calls_captured(const TracedCalls& calls, std::vector<TracedWork>& into) {
  const c10::Device device(calls.on_device ? c10::kCUDA : c10::kCPU);
  CaptureOptions options{.mode = {.device = device}, .saved_tensors = false, .guards = false};
  Capture session(options);
  const c10::AutoGradMode no_history(false);
  CallResolver resolver;
  for (size_t i = 0; i < calls.distinct.size(); ++i) {
    const TraceOp& op = calls.events.ops[calls.distinct[i].op];
    const PhaseScope phase(fmt::format("{}{}", kPhase, i));
    try {
      const auto handle = resolver.find(op);
      if (!handle) throw Error("no operator accepts these inputs");
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

TracedCalls TracedCalls::of(TraceEvents events) {
  TracedCalls calls;
  calls.events = std::move(events);
  CallPicker(calls).pick();
  return calls;
}

TracedCalls TracedCalls::read_file(const std::string& path) { return of(TraceEvents::read_file(path)); }

std::vector<TracedWork> traced_work(const TracedCalls& calls) {
  if (detect_fake_mode({}) != nullptr) {
    throw Error("cannot read a trace in a fake tensor mode or capture: its calls run on fake tensors themselves");
  }
  std::vector<TracedWork> result(calls.distinct.size());
  for (size_t i = 0; i < result.size(); ++i) result[i].op = calls.events.ops[calls.distinct[i].op].name;
  const Graph graph = calls_captured(calls, result);
  const ProgramCosts costs(graph);
  KernelWorks works(costs, {});                   // for classes, FLOPs and bytes only
  std::vector<double> weight(result.size(), -1);  // of the node that determines the class
  for (const NodeId node : graph.nodes()) {
    const std::string& phase = graph.phase_name(graph.node(node).phase);
    if (!phase.starts_with(kPhase)) continue;
    size_t place = 0;
    std::from_chars(phase.data() + kPhase.size(), phase.data() + phase.size(), place);
    if (place >= result.size() || !result[place].problem.empty()) continue;
    const KernelWork work = works.of(node);
    if (work.kind == KernelClass::kFree) continue;
    // A call captured as several nodes has the class of the one with the most work.
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
  for (size_t i = 0; i < result.size(); ++i) result[i].free = result[i].problem.empty() && weight[i] < 0;
  return result;
}

}  // namespace shadowgraph
