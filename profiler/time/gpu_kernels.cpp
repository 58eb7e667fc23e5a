#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "ir/analysis/module_tree.h"
#include "ir/operators/operator_name.h"
#include "profiler/time/kernel_work.h"

namespace shadowgraph {
namespace {

using K = KernelClass;

// Start and end overhead of a tile of kLargest elements, on A100 and V100 alike. Hopper's tiles overlap.
constexpr double kTileSeconds = 3e-6;
constexpr double kTileSecondsOfHopper = 1.5e-6;
constexpr double kLargest = 128 * 256;
// Fraction of a product's writes that is not hidden by compute.
constexpr double kWrittenAfter = 0.5;

// cuBLAS picks the fastest tile; smaller tiles read their operands more often.
struct Tile {
  double rows, columns, share;
  bool of_hopper = false;
};
constexpr Tile kTiles[] = {{128, 256, 1},  {256, 128, 1},  {128, 192, 1, true}, {192, 128, 1, true}, {128, 128, 0.95},
                           {64, 128, 0.8}, {64, 64, 0.65}, {16, 128, 0.5},      {128, 16, 0.5}};
constexpr double kMaxParts = 16;     // split-K factor
constexpr double kMinInner = 512;    // k per split
constexpr double kPartialBytes = 8;  // per element and split: float32, written and read

// Hopper's tensor cores take TF32 operands only if they are contiguous along k (PTX ISA, wgmma: only 16-bit operands
// can be transposed). Fitted to layers of OPT on GH200, of eth-easl/sailor.
constexpr double kTransposedTf32 = 0.6;

// 16-bit operands whose rows are not aligned to 16-byte vectors; measured on an H100, 1,000 by 2,500.
constexpr double kBrokenVectors = 0.35;

// Fraction of the peak that float32 products reach without tensor cores. Fitted to OPT on V100, of eth-easl/sailor.
constexpr double kFloat32 = 0.93;
constexpr double kFloat32OfHopper = 0.82;  // measured on an H100 (bench/gpu)

// 8-bit products draw so much power that an H100 lowers its clock further (bench/gpu/h100/float8.json).
constexpr double kFloat8OfHopper = 0.92;

// Keys per block (attention_work).
constexpr double kBlock = 128;
constexpr int64_t kNarrow = 64;
constexpr double kNarrowShare = 0.88;

// Attention kernels other than FlashAttention-2, measured on an H100 (bench/gpu).
constexpr double kCudnnAttention = 0.56;
constexpr double kEfficientAttention = 2.0;
constexpr double kFlexAttention = 1 / 0.9;           // "FlexAttention", pytorch.org/blog/flexattention: 90 %
constexpr double kFlexAttentionBackward = 1 / 0.85;  // and 85 % of FlashAttention-2, on an A100
constexpr double kEfficientFloat32 = 0.57;           // in float32, relative to 16 bits
constexpr double kEfficientFloat32Backward = 0.37;

// Elements per second on all multiprocessors of an H100.
constexpr double kMultiprocessors = 132;
constexpr double kByElement = 350e9;     // different layouts, casts, broadcasts
constexpr double kTransposed = 125e9;    // neither side is accessed along the other's innermost dimension
constexpr double kCastOnTheWay = 230e9;  // into an existing result of another dtype
constexpr double kShortRuns = 250e9;     // cat of short pieces
constexpr int64_t kShortRun = 512;       // elements
constexpr double kTopOfLongRows = 74e9;
constexpr int64_t kLongRow = 4096;        // elements
constexpr double kWideSoftmax = 330e9;    // rows too long for a block
constexpr int64_t kWideRow = 1024;        // elements
constexpr double kNormRows = 0.9e9;       // rows of layer norms
constexpr double kScatter = 200e9;        // rows that may be written concurrently
constexpr double kChannelsFirst = 300e9;  // convolutions with channels-first layout
constexpr double kTaps = 1.4e12;          // window elements of depthwise convolutions, forward
constexpr double kRecurrentStep = 10e-6;  // seconds
constexpr double kRecurrentStepBackward = 20e-6;
constexpr double kTapsChannelsLast = 6.5e12;

struct NamedRate {
  std::string_view part;  // substring of an operator's name
  double element_rate;
};
// The first match applies.
constexpr NamedRate kNamed[] = {{"batch_norm_backward", 112e9},
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

// A call's tensors: single tensor operands, and the first result.
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

// Returns the rate for an operand in a layout or dtype other than the result's; 0 for full vectors.
double rate_for_operand(const Graph& graph, ValueId operand, ValueId result) {
  const auto sizes = graph.sizes(result), strides = graph.strides(result);
  const auto others = graph.sizes(operand), their = graph.strides(operand);
  if (graph.numel(operand) <= 1 || graph.numel(operand) > graph.numel(result)) return 0;  // only parts of it are read
  if (others.size() != sizes.size() || graph.numel(operand) != graph.numel(result)) return kByElement;
  // Narrow elements converted to wider ones are not read in full vectors; bool ones are.
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

double layout_rate(const Call& call) {
  double slowest = 0;
  const auto take = [&](double element_rate) {
    if (element_rate > 0 && (slowest == 0 || element_rate < slowest)) slowest = element_rate;
  };
  if (call.result().valid()) {
    call.each_operand([&](ValueId operand) { take(rate_for_operand(call.graph(), operand, call.result())); });
    if (const ValueId out = call.tensor("out"); out.valid()) {
      const Argument& first = call.graph().arguments(call.node())[0];
      const bool alike = first.kind != ArgumentKind::kValue ||
                         call.graph().value(first.ref.value).dtype == call.graph().value(out).dtype;
      take(alike ? 0 : kCastOnTheWay);
    }
  }
  return slowest;
}

// `cat` copies its pieces one after another along a dimension.
double cat_rate(const Call& call) {
  if (!call.result().valid()) return 0;
  const auto sizes = call.graph().sizes(call.result());
  const auto rank = static_cast<int64_t>(sizes.size());
  int64_t dim = call.number("dim").value_or(0);
  if (dim < 0) dim += rank;
  if (dim <= 0 || dim >= rank) return 0;  // pieces are contiguous
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
    double taps = call.elements(out) * (call.backward() ? 3 : 1);  // backward has two passes, each slower
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
  return {.more = kMultiprocessors * elements / kChannelsFirst};
}

// The steps of a layer are sequential, each a few cuDNN kernels.
ElementWork recurrent(const Call& call) {
  const ValueId input = call.tensor("input");
  const auto sizes = input.valid() ? call.graph().sizes(input) : std::span<const int64_t>();
  if (sizes.size() != 3) return {};
  const auto steps = static_cast<double>(sizes[call.flag("batch_first") ? 1 : 0]);
  const auto layers = static_cast<double>(call.number("num_layers").value_or(1)) * (call.flag("bidirectional") ? 2 : 1);
  return {.steps = steps * layers * (call.backward() ? kRecurrentStepBackward : kRecurrentStep)};
}

ElementWork at_rate(double elements, double element_rate) {
  return {.seconds = element_rate > 0 ? kMultiprocessors * elements / element_rate : 0};
}

// Returns the tensor that is scattered into an existing one.
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

// `topk` of long rows takes less time per element.
double rate_by_name(const Call& call, double element_rate) {
  if (!names(call.name(), "topk") || !call.tensor("self").valid()) return element_rate;
  const auto rows = call.graph().sizes(call.tensor("self"));
  return !rows.empty() && rows.back() > kLongRow ? kTopOfLongRows : element_rate;
}

ElementWork work_by_class(const Call& call, KernelClass kind) {
  switch (kind) {
    case K::kPointwise:
    case K::kPointwiseInPlace:
    case K::kTranscendental:
    case K::kCopy:
      return at_rate(call.largest(), names(call.name(), "cat") ? cat_rate(call) : layout_rate(call));
    case K::kSoftmax:
      return at_rate(call.largest(), !call.backward() && row_of(call) > kWideRow ? kWideSoftmax : 0);
    case K::kNormalization:
      return at_rate(norm_rows(call), kNormRows);
    case K::kPooling:
      return at_rate(call.largest(), call.backward() ? 60e9 : 250e9);
    case K::kRandom:
      return at_rate(call.largest(), 450e9);
    case K::kScatter:
      return at_rate(call.elements(scattered(call)), kScatter);
    case K::kRecurrent:
      return recurrent(call);
    default:
      return is_convolution(kind) ? convolution(call, kind) : ElementWork();
  }
}

// Returns the bytes that eager PyTorch's kernels move beyond a call's traffic.
double extra_traffic(const Call& call, KernelClass kind, const NodeTraffic& traffic) {
  const auto read = static_cast<double>(traffic.read), all = static_cast<double>(traffic.total());
  if (kind == K::kSoftmax) {
    if (call.backward()) return names(call.name(), "log") ? 0 : all;  // multiplies first
    return row_of(call) > kWideRow ? read : 0;
  }
  // Weight gradients are computed by a separate kernel, which reads everything again.
  if (kind == K::kNormalization) return call.backward() ? read : 0;
  if (kind != K::kScatter || !call.name().ends_with('_')) return 0;
  const ValueId source = scattered(call);
  return source.valid() ? 3 * static_cast<double>(call.graph().logical_bytes(source)) - all : 0;
}

}  // namespace

bool is_convolution(KernelClass kind) { return kind >= K::kConvolution && kind <= K::kDepthwiseConvolutionBackward; }

bool is_attention(KernelClass kind) { return kind == K::kAttention || kind == K::kAttentionBackward; }

bool is_hopper(const DeviceSpec& spec) { return spec.architecture == "sm_90"; }

double gpu_fixed_seconds(const DeviceSpec& spec, KernelClass kind) {
  switch (kind) {
    case K::kConvolutionBackward:
    case K::kPointwiseConvolutionBackward:
    case K::kGroupedConvolutionBackward:
    case K::kDepthwiseConvolutionBackward:
      return 4e-6;  // two kernels
    case K::kAttentionBackward:
      return 6e-6;
    case K::kSort:
      return is_hopper(spec) ? 40e-6 : 10e-6;
    default:
      return 2e-6;
  }
}

double gpu_compute_fraction(const DeviceSpec& spec, KernelClass kind) {
  const GpuSpec& gpu = *spec.gpu;
  const bool hopper = is_hopper(spec);
  switch (kind) {
    case K::kConvolution:
      return (hopper ? 0.50 : 0.55) * gpu.sustained;
    case K::kConvolutionBackward:
      return (hopper ? 0.36 : 0.47) * gpu.sustained;
    case K::kPointwiseConvolution:
      return 0.50 * gpu.sustained;
    case K::kPointwiseConvolutionBackward:
      return (hopper ? 0.36 : 0.43) * gpu.sustained;
    case K::kGroupedConvolution:
    case K::kGroupedConvolutionBackward:
      return hopper ? 0.04 * gpu.sustained : 0;
    case K::kDepthwiseConvolution:
    case K::kDepthwiseConvolutionBackward:
      return 0;  // memory-bound
    case K::kAttention:
      return gpu.attention;
    case K::kAttentionBackward:
      return gpu.attention_backward;
    default:
      return gpu.matmul * gpu.sustained;
  }
}

// Fractions for kernels with an element rate are those of large, wide ones (kernel_work.h).
static double memory_fraction_on_hopper(KernelClass kind, double all) {
  switch (kind) {
    case K::kPooling:
      return all;
    case K::kNormalization:
      return 0.62;
    case K::kScatter:
    case K::kGather:
      return 0.92;
    default:
      return 1;
  }
}

double gpu_memory_fraction(const DeviceSpec& spec, KernelClass kind) {
  switch (kind) {
    case K::kCopy:
    case K::kPointwise:
    case K::kRandom:
    case K::kReduction:
    case K::kSoftmax:
    case K::kTranscendental:
      return spec.gpu->moved;
    case K::kMatmul:
      return 0.96;
    default:
      if (is_hopper(spec)) return memory_fraction_on_hopper(kind, spec.gpu->moved);
  }
  switch (kind) {
    case K::kNormalization:
      return 0.6;
    case K::kGroupedConvolution:
    case K::kDepthwiseConvolution:
    case K::kScatter:
    case K::kGather:
      return 0.5;
    case K::kGroupedConvolutionBackward:
    case K::kDepthwiseConvolutionBackward:
      return 0.3;
    case K::kSort:
      return 0.1;
    default:
      return 1;
  }
}

// Returns the FLOP/s of a product of this dtype whose tiles fill the device.
static double rate_of(const DeviceSpec& spec, const ProductShape& product, c10::ScalarType dtype) {
  if (dtype == c10::kFloat && product.tensor_float32 && spec.gpu->tensor_float32 > 0) {
    return spec.gpu->tensor_float32 * gpu_compute_fraction(spec, K::kMatmul);
  }
  const double peak = spec.peak(K::kMatmul, dtype), rate = spec.compute_rate(K::kMatmul, 0, dtype);
  if (is_hopper(spec) && c10::elementSize(dtype) == 1 && c10::isFloatingType(dtype)) return kFloat8OfHopper * rate;
  if (dtype != c10::kFloat || spec.vector == 0) return rate;
  if (peak <= spec.vector) {  // without tensor cores
    return (is_hopper(spec) ? kFloat32OfHopper : kFloat32) * spec.gpu->sustained * peak;
  }
  return is_hopper(spec) && !product.along_inner ? kTransposedTf32 * rate : rate;
}

ProductSeconds gpu_product(const DeviceSpec& spec, const ProductShape& product, c10::ScalarType dtype) {
  const GpuSpec& gpu = *spec.gpu;
  const bool hopper = is_hopper(spec);
  const double share = product.whole_vectors || dtype == c10::kFloat || !hopper ? 1 : kBrokenVectors;
  const double rate = share * rate_of(spec, product, dtype) / static_cast<double>(gpu.multiprocessors);
  const double stream = spec.memory_rate(K::kCopy, 0);  // for results; operands are read at the full rate
  double best = std::numeric_limits<double>::infinity();
  const double begun = hopper ? kTileSecondsOfHopper : kTileSeconds;
  for (const Tile& tile : kTiles) {
    if (tile.of_hopper && !hopper) continue;
    const double size = tile.rows * tile.columns;
    const double tiles =
        product.batch * std::ceil(product.rows / tile.rows) * std::ceil(product.columns / tile.columns);
    for (double parts = 1; parts <= kMaxParts; parts *= 2) {
      if (parts > 1 && product.inner / parts < kMinInner) break;
      const double waves = std::ceil(tiles * parts / static_cast<double>(gpu.multiprocessors));
      const double each = 2 * size * product.inner / parts / (rate * tile.share) + begun * size / kLargest;
      const double joined = parts > 1 ? parts * product.batch * product.rows * product.columns * kPartialBytes : 0;
      best = std::min(best, waves * each + joined / stream);
    }
  }
  return {.compute = best, .written_after = kWrittenAfter * product.result_bytes / stream};
}

double attention_kernel(std::string_view name, KernelClass kind, c10::ScalarType dtype) {
  const auto is = [&](std::string_view part) { return name.find(part) != name.npos; };
  if (is("cudnn")) return kCudnnAttention;
  if (is("flex")) return kind == K::kAttention ? kFlexAttention : kFlexAttentionBackward;
  if (!is("efficient")) return 1;
  if (dtype != c10::kFloat) return kEfficientAttention;
  return kind == K::kAttention ? kEfficientFloat32 : kEfficientFloat32Backward;
}

double attention_work(const AttentionShape& attention) {
  const auto blocks = std::max(1.0, std::ceil(static_cast<double>(attention.keys) / kBlock));
  const bool skips = attention.causal && attention.queries == attention.keys;
  const double done = (skips ? (blocks + 1) / 2 : blocks) + (attention.backward ? 4 : 2);
  return done / blocks / (attention.width <= kNarrow ? kNarrowShare : 1);
}

const ElementWorks::OfTarget& ElementWorks::target_of(NodeId node) {
  OfTarget& target = targets_[graph_.node(node).target];
  if (target.known) return target;
  target.known = true;
  const std::string_view whole = graph_.target(node).name(), name = short_name(whole);
  target.measured = whole.starts_with("aten::");
  for (const NamedRate& named : kNamed) {
    if (!names(name, named.part)) continue;
    target.element_rate = named.element_rate;
    target.trains = named.part == "batch_norm";
    break;
  }
  return target;
}

ElementWork ElementWorks::of(NodeId node, KernelClass kind, const NodeTraffic& traffic) {
  const OfTarget& target = target_of(node);
  if (kind == K::kFree || !target.measured) return {};  // only PyTorch's kernels were measured
  if (graph_.has_notes(node) && graph_.note(node, kKernelNote) == kCompiledKernel) return {};
  const Call call(graph_, node);
  const bool running = target.trains && !call.flag("training") && !call.flag("train");  // pointwise
  ElementWork work = target.element_rate > 0 && !running
                         ? at_rate(elements_by_name(call, kind), rate_by_name(call, target.element_rate))
                         : work_by_class(call, kind);
  work.again = extra_traffic(call, kind, traffic);
  return work;
}

}  // namespace shadowgraph
