#include "profiler/time/element_pace.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "ir/analysis/kernel_note.h"
#include "ir/operators/operator_name.h"
#include "profiler/time/gpu_kernels.h"

namespace shadowgraph {
namespace {

using K = KernelClass;

// Elements a second on all multiprocessors of an H100.
constexpr double kMultiprocessors = 132;
constexpr double kByElement = 350e9;     // sides that lie differently, casts, broadcasts
constexpr double kTransposed = 125e9;    // neither side can be read or written along the other's innermost dimension
constexpr double kCastOnTheWay = 230e9;  // into a result of another dtype that was given
constexpr double kShortRuns = 250e9;     // cat of pieces of few elements
constexpr int64_t kShortRun = 512;       // elements
constexpr double kTopOfLongRows = 74e9;
constexpr int64_t kLongRow = 4096;        // elements
constexpr double kWideSoftmax = 330e9;    // rows that no block holds
constexpr int64_t kWideRow = 1024;        // elements
constexpr double kNormRows = 0.9e9;       // rows of layer norms
constexpr double kScatter = 200e9;        // rows that others may write, too
constexpr double kLaidOutAnew = 300e9;    // convolutions whose channels are not last
constexpr double kTaps = 1.4e12;          // elements of windows of depthwise convolutions, one way
constexpr double kRecurrentStep = 10e-6;  // seconds
constexpr double kRecurrentStepBackward = 20e-6;
constexpr double kTapsChannelsLast = 6.5e12;

struct NamedPace {
  std::string_view part;  // of an operator's name
  double pace;
};
// The first that fits.
constexpr NamedPace kNamed[] = {{"batch_norm_backward", 112e9},
                                {"group_norm_backward", 112e9},
                                {"batch_norm", 180e9},
                                {"group_norm", 180e9},
                                {"upsample_nearest", 350e9},
                                {"embedding_dense_backward", 75e9},
                                {"bernoulli", 640e9},
                                {"cumsum", 160e9},
                                {"argmax", 560e9},
                                {"argmin", 560e9},
                                {"var", 520e9},
                                {"roll", 110e9},
                                {"tril", 400e9},
                                {"triu", 400e9},
                                {"topk", 22e9},
                                {"sort", 22e9}};

bool names(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// A call's tensors: operands that are given one by one, and the first result.
class Call {
 public:
  Call(const Graph& graph, NodeId node) : graph_(graph), node_(node), name_(short_name(graph.target(node).name())) {
    graph.for_each_output(node, [&](ValueId value) {
      if (graph.value(value).kind != ValueKind::kTensor) return;
      if (!result_.valid()) result_ = value;
      largest_ = std::max(largest_, graph.numel(value));
    });
    graph.for_each_input(node, [&](ValueId value) {
      if (graph.value(value).kind == ValueKind::kTensor) largest_ = std::max(largest_, graph.numel(value));
    });
  }

  std::string_view name() const { return name_; }
  bool backward() const { return names(name_, "backward"); }
  double largest() const { return static_cast<double>(largest_); }
  ValueId result() const { return result_; }

  ValueId tensor(std::string_view name) const {
    const Argument* given = graph_.find_argument(node_, name);
    return given != nullptr && given->kind == ArgumentKind::kValue ? given->ref.value : ValueId();
  }
  std::optional<int64_t> number(std::string_view name) const {
    const Argument* given = graph_.find_argument(node_, name);
    if (given == nullptr || given->kind != ArgumentKind::kInt) return std::nullopt;
    return given->i;
  }
  bool flag(std::string_view name) const {
    const Argument* given = graph_.find_argument(node_, name);
    return given != nullptr && given->kind == ArgumentKind::kBool && given->b;
  }
  double elements(ValueId value) const { return value.valid() ? static_cast<double>(graph_.numel(value)) : 0; }

  template <class Visit>
  void each_operand(const Visit& visit) const {
    for (const Argument& argument : graph_.arguments(node_)) {
      if (argument.kind == ArgumentKind::kValue && graph_.value(argument.ref.value).kind == ValueKind::kTensor) {
        visit(argument.ref.value);
      }
    }
  }
  const Graph& graph() const { return graph_; }
  NodeId node() const { return node_; }

 private:
  const Graph& graph_;
  NodeId node_;
  std::string_view name_;
  ValueId result_;
  int64_t largest_ = 0;
};

// The pace at which an operand's elements meet the result's; 0: whole vectors.
double pace_beside(const Graph& graph, ValueId operand, ValueId result) {
  const auto sizes = graph.sizes(result), strides = graph.strides(result);
  const auto others = graph.sizes(operand), their = graph.strides(operand);
  if (graph.numel(operand) <= 1 || graph.numel(operand) > graph.numel(result)) return 0;  // parts are taken of it
  if (others.size() != sizes.size() || graph.numel(operand) != graph.numel(result)) return kByElement;
  // Narrow elements that become wide ones are not read in whole vectors; truth values are.
  const auto width = [&](ValueId value) { return c10::elementSize(graph.value(value).dtype); };
  bool alike = width(operand) >= width(result) || graph.value(operand).dtype == c10::kBool;
  int64_t innermost = -1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] <= 1) continue;
    alike &= strides[d] == their[d];
    if (innermost < 0 || strides[d] < strides[static_cast<size_t>(innermost)]) innermost = static_cast<int64_t>(d);
  }
  if (alike || innermost < 0) return 0;
  const int64_t along = their[static_cast<size_t>(innermost)];
  return along <= 1 || strides[static_cast<size_t>(innermost)] != 1 ? kByElement : kTransposed;
}

double layout_pace(const Call& call) {
  double slowest = 0;
  const auto take = [&](double pace) {
    if (pace > 0 && (slowest == 0 || pace < slowest)) slowest = pace;
  };
  if (call.result().valid()) {
    call.each_operand([&](ValueId operand) { take(pace_beside(call.graph(), operand, call.result())); });
    if (const ValueId out = call.tensor("out"); out.valid()) {
      const Argument& first = call.graph().arguments(call.node())[0];
      const bool alike = first.kind != ArgumentKind::kValue ||
                         call.graph().value(first.ref.value).dtype == call.graph().value(out).dtype;
      take(alike ? 0 : kCastOnTheWay);
    }
  }
  return slowest;
}

// `cat` takes pieces one after the other along a dimension.
double cat_pace(const Call& call) {
  if (!call.result().valid()) return 0;
  const auto sizes = call.graph().sizes(call.result());
  const auto rank = static_cast<int64_t>(sizes.size());
  int64_t dim = call.number("dim").value_or(0);
  if (dim < 0) dim += rank;
  if (dim <= 0 || dim >= rank) return 0;  // whole pieces follow each other
  int64_t run = 1;
  for (int64_t d = dim; d < rank; ++d) run *= sizes[static_cast<size_t>(d)];
  return run < kShortRun ? kShortRuns : 0;
}

int64_t row_of(const Call& call) {
  if (!call.result().valid()) return 0;
  const auto sizes = call.graph().sizes(call.result());
  return sizes.empty() ? 0 : sizes.back();
}

double norm_rows(const Call& call) {
  double rows = 0;
  bool first = true;
  call.graph().for_each_output(call.node(), [&](ValueId value) {
    if (!first && call.graph().value(value).kind == ValueKind::kTensor) rows = std::max(rows, call.elements(value));
    first = false;
  });
  return call.backward() ? 0 : rows;
}

bool channels_last(const Graph& graph, ValueId image) {
  const auto sizes = graph.sizes(image), strides = graph.strides(image);
  return sizes.size() < 3 || (strides[1] == 1 && sizes[1] > 1);
}

ElementWork convolution(const Call& call, K kind) {
  const ValueId image = call.tensor("input"), weight = call.tensor("weight");
  if (!image.valid() || !weight.valid()) return {};
  const Graph& graph = call.graph();
  const bool last = channels_last(graph, image);
  if (kind == K::kDepthwiseConvolution || kind == K::kDepthwiseConvolutionBackward) {
    const ValueId out = call.backward() ? call.tensor("grad_output") : call.result();
    const auto window = graph.sizes(weight);
    double taps = call.elements(out) * (call.backward() ? 3 : 1);  // two ways, each slower
    for (size_t d = 2; d < window.size(); ++d) taps *= static_cast<double>(window[d]);
    return {.seconds = kMultiprocessors * taps / (last ? kTapsChannelsLast : kTaps)};
  }
  const bool pointwise = kind == K::kPointwiseConvolution || kind == K::kPointwiseConvolutionBackward;
  if (last || pointwise) return {};
  double elements = 0;
  graph.for_each_output(call.node(), [&](ValueId value) {
    if (graph.value(value).kind == ValueKind::kTensor) elements += call.elements(value);
  });
  call.each_operand([&](ValueId operand) { elements += call.elements(operand); });
  return {.more = kMultiprocessors * elements / kLaidOutAnew};
}

// A layer's steps follow each other, each a few kernels of cuDNN.
ElementWork recurrent(const Call& call) {
  const ValueId input = call.tensor("input");
  const auto sizes = input.valid() ? call.graph().sizes(input) : std::span<const int64_t>();
  if (sizes.size() != 3) return {};
  const auto steps = static_cast<double>(sizes[call.flag("batch_first") ? 1 : 0]);
  const auto layers = static_cast<double>(call.number("num_layers").value_or(1)) * (call.flag("bidirectional") ? 2 : 1);
  return {.steps = steps * layers * (call.backward() ? kRecurrentStepBackward : kRecurrentStep)};
}

ElementWork at_pace(double elements, double pace) {
  return {.seconds = pace > 0 ? kMultiprocessors * elements / pace : 0};
}

// What is scattered into a tensor that was there.
ValueId scattered(const Call& call) {
  for (const char* name : {"source", "src", "values", "tensor"}) {
    if (const ValueId value = call.tensor(name); value.valid()) return value;
  }
  return {};
}

double elements_by_name(const Call& call, KernelClass kind) {
  const ValueId gradient = kind == K::kScatter ? call.tensor("grad_output") : ValueId();
  return gradient.valid() ? call.elements(gradient) : call.largest();
}

// `topk` of long rows is quicker by element.
double pace_by_name(const Call& call, double pace) {
  if (!names(call.name(), "topk") || !call.tensor("self").valid()) return pace;
  const auto rows = call.graph().sizes(call.tensor("self"));
  return !rows.empty() && rows.back() > kLongRow ? kTopOfLongRows : pace;
}

ElementWork work_by_class(const Call& call, KernelClass kind) {
  switch (kind) {
    case K::kPointwise:
    case K::kPointwiseInPlace:
    case K::kTranscendental:
    case K::kCopy:
      return at_pace(call.largest(), names(call.name(), "cat") ? cat_pace(call) : layout_pace(call));
    case K::kSoftmax:
      return at_pace(call.largest(), !call.backward() && row_of(call) > kWideRow ? kWideSoftmax : 0);
    case K::kNormalization:
      return at_pace(norm_rows(call), kNormRows);
    case K::kPooling:
      return at_pace(call.largest(), call.backward() ? 60e9 : 250e9);
    case K::kRandom:
      return at_pace(call.largest(), 450e9);
    case K::kScatter:
      return at_pace(call.elements(scattered(call)), kScatter);
    case K::kRecurrent:
      return recurrent(call);
    default:
      return is_convolution(kind) ? convolution(call, kind) : ElementWork();
  }
}

// Bytes that kernels of eager PyTorch move beyond a call's traffic.
double moved_again(const Call& call, KernelClass kind, const NodeTraffic& traffic) {
  const auto read = static_cast<double>(traffic.read), all = static_cast<double>(traffic.total());
  if (kind == K::kSoftmax) {
    if (call.backward()) return names(call.name(), "log") ? 0 : all;  // a product comes first
    return row_of(call) > kWideRow ? read : 0;
  }
  // Gradients of the weight are a kernel of their own, which reads all again.
  if (kind == K::kNormalization) return call.backward() ? read : 0;
  if (kind != K::kScatter || !call.name().ends_with('_')) return 0;
  const ValueId source = scattered(call);
  return source.valid() ? 3 * static_cast<double>(call.graph().logical_bytes(source)) - all : 0;
}

}  // namespace

const ElementWorks::OfTarget& ElementWorks::target_of(NodeId node) {
  OfTarget& target = targets_[graph_.node(node).target];
  if (target.known) return target;
  target.known = true;
  const std::string_view whole = graph_.target(node).name(), name = short_name(whole);
  target.measured = whole.starts_with("aten::");
  for (const NamedPace& named : kNamed) {
    if (!names(name, named.part)) continue;
    target.pace = named.pace;
    target.trains = named.part == "batch_norm";
    break;
  }
  return target;
}

ElementWork ElementWorks::of(NodeId node, KernelClass kind, const NodeTraffic& traffic) {
  const OfTarget& target = target_of(node);
  if (kind == K::kFree || !target.measured) return {};  // nobody measured kernels of others
  if (graph_.has_notes(node) && graph_.note(node, kKernelNote) == kCompiledKernel) return {};
  const Call call(graph_, node);
  const bool running = target.trains && !call.flag("training") && !call.flag("train");  // pointwise
  ElementWork work = target.pace > 0 && !running
                         ? at_pace(elements_by_name(call, kind), pace_by_name(call, target.pace))
                         : work_by_class(call, kind);
  work.again = moved_again(call, kind, traffic);
  return work;
}

}  // namespace shadowgraph
