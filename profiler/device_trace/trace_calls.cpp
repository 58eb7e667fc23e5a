#include "profiler/device_trace/trace_calls.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/calls/composites.h"
#include "profiler/device_trace/call_resolver.h"
#include "profiler/time/kernel_classes.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {
namespace {

constexpr double kMicrosecond = 1e-6;
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// What a call is, as far as the trace tells: two calls of one text do the same.
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
    bool free = false;  // a view: no kernel
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

  // Lists of tensors have no dtype in a trace: that of most floating-point elements stands in.
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

  // Walks each thread's intervals as a tree. The outermost operator that is no composite is the call.
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
      if (!handle || runs_as_others(*handle)) continue;
      call_of_op_[i] = static_cast<uint32_t>(picked_.size());
      picked_.push_back({.op = i, .free = is_free(*handle), .list_dtype = first_float(op)});
    }
  }

  // Times are rounded to nanoseconds, so that a call may seem to end a little after the one around it.
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

  // The innermost operator of a thread at a time.
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

  // On a CPU, operators that are not known here are the program's, too.
  void sum_other_ops() {
    if (into_.on_device) return;
    for (uint32_t i = 0; i < events_.ops.size(); ++i) {
      const TraceOp& op = events_.ops[i];
      const bool leaf = i + 1 == events_.ops.size() || parent_[i + 1] != i;
      if (call_of_op_[i] != kNone || !leaf || !in_range(op.start) || op.name.find("::") == op.name.npos) continue;
      if (op.name.starts_with("autograd::") || op.name.starts_with("torch::autograd")) continue;
      if (op.has_shapes && resolver_.find(op)) continue;  // a composite that had nothing to do
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
  Graph names_;  // of operators: what is known of them
  std::vector<uint32_t> call_of_op_, parent_;
  std::vector<Picked> picked_;
  std::unordered_map<std::string, bool> free_;
  std::unordered_map<std::string, uint32_t> distinct_;
  const Picked* last_ = nullptr;
  double begin_ = 0, end_ = 0;
  bool stepped_ = false;
};

}  // namespace

TracedCalls TracedCalls::of(TraceEvents events) {
  TracedCalls calls;
  calls.events = std::move(events);
  CallPicker(calls).pick();
  return calls;
}

TracedCalls TracedCalls::read_file(const std::string& path) { return of(TraceEvents::read_file(path)); }

}  // namespace shadowgraph
