#include "shadowgraph/profile/step_time.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "ir/operators/operator_name.h"
#include "profiler/program_costs.h"
#include "profiler/time/copy_engines.h"
#include "profiler/time/kernel_work.h"
#include "profiler/time/operator_tables.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/operator_costs.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

// Returns the dtype in which a call computes: that of its first operand if it is a product of 8-bit integers, else that
// of its first floating-point operand.
c10::ScalarType dtype_of(const Graph& graph, NodeId node, KernelClass kind = KernelClass::kOther) {
  c10::ScalarType dtype = c10::ScalarType::Undefined, first = c10::ScalarType::Undefined;
  graph.for_each_input(node, [&](ValueId value) {
    const c10::ScalarType candidate = graph.value(value).dtype;
    if (first == c10::ScalarType::Undefined) first = candidate;
    if (dtype == c10::ScalarType::Undefined && c10::isFloatingType(candidate)) dtype = candidate;
  });
  if (kind == KernelClass::kMatmul && first == c10::kChar) return c10::kChar;
  return dtype == c10::ScalarType::Undefined ? c10::kFloat : dtype;
}

std::span<const int64_t> sizes_of(const Graph& graph, NodeId node, const char* name) {
  const Argument* tensor = graph.find_argument(node, name);
  return tensor != nullptr && tensor->kind == ArgumentKind::kValue ? graph.sizes(tensor->ref.value)
                                                                   : std::span<const int64_t>();
}

// Returns true if both operands of a product are contiguous along the reduced dimension, or unknown.
bool contiguous_along_inner(const Graph& graph, NodeId node) {
  const auto stride_is_one = [&](const char* name, size_t from_last) {
    const Argument* tensor = graph.find_argument(node, name);
    if (tensor == nullptr || tensor->kind != ArgumentKind::kValue) return true;
    const auto strides = graph.strides(tensor->ref.value);
    const auto sizes = graph.sizes(tensor->ref.value);
    if (strides.size() <= from_last) return true;
    const size_t at = strides.size() - 1 - from_last;
    return strides[at] == 1 || sizes[at] == 1;
  };
  if (graph.find_argument(node, "batch1") != nullptr) return stride_is_one("batch1", 0) && stride_is_one("batch2", 1);
  const bool added = graph.find_argument(node, "mat1") != nullptr;
  return graph.find_argument(node, "mat2") == nullptr ||
         (stride_is_one(added ? "mat1" : "self", 0) && stride_is_one("mat2", 1));
}

// Returns true if the rows of a product's operands are aligned to 16-byte vectors.
bool has_whole_vectors(const Graph& graph, NodeId node) {
  bool whole = true;
  graph.for_each_input(node, [&](ValueId value) {
    const auto size = static_cast<int64_t>(c10::elementSize(graph.value(value).dtype));
    const auto sizes = graph.sizes(value), strides = graph.strides(value);
    if (sizes.size() < 2) return;
    for (size_t d = sizes.size() - 2; d < sizes.size(); ++d) {
      if (strides[d] > 1 && sizes[d] > 1) whole &= strides[d] * size % 16 == 0;
    }
  });
  return whole;
}

// Sets the kernels of nn.MultiheadAttention's fast path, and the bytes of their results, written once and read once:
// queries, keys and values, these again in the order of heads, and the output of the heads. With a mask, or on the CPU,
// scores have memory, before and after the softmax. nn.TransformerEncoderLayer's also has the hidden activations, norms
// and residual sums, which read two operands.
void add_kernels_of_encoder(const Graph& graph, NodeId node, bool whole_layer, KernelWork& work) {
  const char* const source = whole_layer ? "src" : "query";
  const auto query = sizes_of(graph, node, source);
  const Argument* heads = graph.find_argument(node, whole_layer ? "num_heads" : "num_head");
  if (query.size() != 3 || heads == nullptr || heads->kind != ArgumentKind::kInt) return;
  const auto length = static_cast<double>(query[1]);
  const double tokens = static_cast<double>(query[0]) * length;
  const auto width = static_cast<double>(query[2]);
  double elements = 7 * tokens * width;
  if (whole_layer) {
    const auto hidden = sizes_of(graph, node, "ffn_bias_1");
    elements += 5 * tokens * width + (hidden.empty() ? 0 : tokens * static_cast<double>(hidden[0]));
  }
  const Argument* mask = graph.find_argument(node, "mask");
  if (graph.value(graph.find_argument(node, source)->ref.value).device().is_cpu() ||
      (mask != nullptr && mask->kind == ArgumentKind::kValue)) {
    elements += 2 * tokens * length * static_cast<double>(heads->i);
  }
  // Two projections, the order of heads, attention, its bias; two norms, two sums, two products.
  work.kernels = whole_layer ? 11 : 5;
  work.between = 2 * elements * static_cast<double>(c10::elementSize(work.dtype));
}

// Returns the bytes eager PyTorch moves beyond a call's traffic: `masked_fill` copies its operand, then fills the copy.
double copied_first(const Graph& graph, NodeId node, const NodeTraffic& traffic) {
  return short_name(graph.target(node).name()) == "masked_fill" ? 2.0 * static_cast<double>(traffic.written) : 0;
}

// An operator on so few bytes takes the host no more than the time of a call.
constexpr double kFewBytes = 65536;

bool blocks_host(const Graph& graph, NodeId node) {
  const Argument* given = graph.find_argument(node, "non_blocking");
  return given == nullptr || given->kind != ArgumentKind::kBool || !given->b;
}

// Returns true for a copy issued on another stream than the default one, which overlaps with kernels.
bool on_own_stream(const Graph& graph, NodeId node) {
  const auto results = graph.results(node);
  const bool makes_tensor = !results.empty() && results[0].kind == ArgumentKind::kValue &&
                            graph.value(results[0].ref.value).kind == ValueKind::kTensor;
  return makes_tensor && stream_notes(graph, node).stream != 0;
}

// Returns true if a convolution's input channels are not a multiple of 16-byte vectors.
bool has_ragged_channels(const Graph& graph, NodeId node, KernelClass kind) {
  if (kind != KernelClass::kConvolution && kind != KernelClass::kConvolutionBackward) return false;
  const auto weight = sizes_of(graph, node, "weight");
  return weight.size() > 2 && weight[1] * static_cast<int64_t>(c10::elementSize(dtype_of(graph, node))) % 16 != 0;
}

}  // namespace

double KernelSeconds::total() const { return fixed + std::max(compute, memory) + after; }

// Channels that do not fill the vectors of tensor cores are computed without them.
constexpr double kWithoutTensorCores = 0.45;  // of the peak of float32

KernelSeconds kernel_seconds(const DeviceSpec& spec, const KernelWork& work) {
  KernelSeconds seconds{.fixed = work.kernels * spec.fixed(work.kind)};
  const bool hopper = spec.gpu && is_hopper(spec) && !spec.classes.contains(work.kind);
  const double bytes = std::max(0.0, work.bytes + (hopper ? work.elements.again : 0));
  if (bytes > 0) seconds.memory = bytes / spec.memory_rate(work.kind, bytes);
  const bool by_law = spec.gpu && !spec.classes.contains(work.kind);
  double rate = spec.compute_rate(work.kind, work.flops, work.dtype);
  if (by_law && is_attention(work.kind)) {  // the measured fraction includes exponentials
    seconds.compute = (hopper ? work.kernel : 1) * work.blocks * work.flops / rate;
    return seconds;
  }
  if (hopper) {
    const auto multiprocessors = static_cast<double>(spec.gpu->multiprocessors);
    seconds.memory = std::max({seconds.memory, work.elements.seconds / multiprocessors, work.elements.steps});
    seconds.after = work.elements.more / multiprocessors;
    if (work.ragged && spec.vector > 0) rate = std::min(rate, kWithoutTensorCores * spec.vector);
  }
  if (by_law && work.product) {
    const ProductSeconds product = gpu_product(spec, *work.product, work.dtype);
    seconds.compute = product.compute;
    seconds.after = product.written_after;
  } else if (work.flops > 0 && rate > 0) {
    seconds.compute = work.flops / rate;
  }
  if (spec.vector > 0) seconds.compute += work.elementwise / spec.vector;
  if (spec.transcendental > 0) seconds.compute += work.transcendental / spec.transcendental;
  if (work.between > 0) seconds.after += work.between / spec.memory_rate(KernelClass::kPointwise, work.between);
  return seconds;
}

KernelWorks::KernelWorks(const ProgramCosts& costs, const DeviceSpec& spec)
    : costs_(costs), graph_(costs.graph()), classes_(graph_), elements_(graph_), hopper_(spec.gpu && is_hopper(spec)) {
  const auto& other = graph_.metadata.other;
  const auto precision = other.find("float32_matmul");
  tensor_float32_ = precision != other.end() && precision->second == "tf32";
}

KernelWork KernelWorks::of(NodeId node) {
  const NodeFlops& flops = costs_.flops().of(node);
  const KernelClass kind = classes_.of(node);
  KernelWork work{.kind = kind, .dtype = dtype_of(graph_, node, kind)};
  work.flops = static_cast<double>(classes_.computed(node, flops.matmul));
  work.elementwise = static_cast<double>(flops.elementwise);
  work.transcendental = static_cast<double>(flops.transcendental);
  const auto& traffic = costs_.traffic().of(node);
  work.bytes = static_cast<double>(traffic.total()) + copied_first(graph_, node, traffic);
  if (hopper_) work.elements = elements_.of(node, work.kind, traffic);
  work.ragged = has_ragged_channels(graph_, node, work.kind);
  if (work.kind == KernelClass::kMatmul) work.product = product(node, work.flops);
  if (const std::string_view name = short_name(graph_.target(node).name()); name == "_native_multi_head_attention") {
    add_kernels_of_encoder(graph_, node, /*whole_layer=*/false, work);
  } else if (name == "_transformer_encoder_layer_fwd") {
    add_kernels_of_encoder(graph_, node, /*whole_layer=*/true, work);
  }
  if (is_attention(work.kind)) {
    work.blocks = attention(node, work.kind == KernelClass::kAttentionBackward);
    work.kernel = attention_kernel(short_name(graph_.target(node).name()), work.kind, work.dtype);
  }
  return work;
}

// A product's first result gives its rows and columns, its FLOPs the reduced dimension.
std::optional<ProductShape> KernelWorks::product(NodeId node, double flops) const {
  std::optional<ProductShape> shape;
  graph_.for_each_output(node, [&](ValueId value) {
    const auto sizes = graph_.sizes(value);
    const auto elements = static_cast<double>(graph_.numel(value));
    if (shape || flops <= 0 || sizes.empty() || elements <= 0) return;
    const std::string_view name = short_name(graph_.target(node).name());
    const bool batched = name.find("bmm") != name.npos && sizes.size() > 2;
    ProductShape of{.batch = batched ? static_cast<double>(sizes[0]) : 1,
                    .columns = static_cast<double>(sizes.back()),
                    .inner = flops / 2 / elements,
                    .result_bytes = static_cast<double>(graph_.logical_bytes(value)),
                    .along_inner = contiguous_along_inner(graph_, node),
                    .whole_vectors = has_whole_vectors(graph_, node),
                    .tensor_float32 = tensor_float32_};
    of.rows = elements / of.batch / of.columns;
    shape = of;
  });
  return shape;
}

static std::optional<AttentionShape> attention_shape(const Graph& graph, NodeId node, bool backward) {
  auto queries = sizes_of(graph, node, "query");
  auto keys = sizes_of(graph, node, "key");
  const Argument* given = graph.find_argument(node, "is_causal");
  const bool causal = given != nullptr && given->kind == ArgumentKind::kBool && given->b;
  if (queries.size() == 3) {  // packed sequences, (tokens, heads, width), as if each were the longest
    const Argument *query = graph.find_argument(node, "max_q"), *key = graph.find_argument(node, "max_k");
    if (query == nullptr || key == nullptr || query->kind != ArgumentKind::kInt || key->kind != ArgumentKind::kInt)
      return std::nullopt;
    return AttentionShape{
        .queries = query->i, .keys = key->i, .width = queries[2], .causal = causal, .backward = backward};
  }
  if (queries.size() != 4 || keys.size() != 4) return std::nullopt;
  // (batch, heads, tokens, width), or with tokens before heads.
  const std::string& name = graph.target(node).name();
  const bool heads_first =
      name.find("scaled_dot_product") != std::string::npos || name.find("flex") != std::string::npos;
  const size_t at = heads_first ? 2 : 1;
  return AttentionShape{
      .queries = queries[at], .keys = keys[at], .width = queries[3], .causal = causal, .backward = backward};
}

double KernelWorks::attention(NodeId node, bool backward) const {
  const auto shape = attention_shape(graph_, node, backward);
  return shape ? attention_work(*shape) : 1;
}

double causal_share(const Graph& graph, NodeId node) {
  const Argument* causal = graph.find_argument(node, "is_causal");
  if (causal == nullptr) return 1;
  const auto shape = attention_shape(graph, node, false);
  if (!shape || !shape->causal || shape->queries != shape->keys || shape->queries == 0) return 1;
  return 0.5 + 0.5 / static_cast<double>(shape->queries);
}

StepTime StepTime::of(const Graph& graph, const DeviceSpec& spec, const MeasuredCalls* measured) {
  return of(ProgramCosts(graph), spec, measured);
}

StepTime StepTime::of(const ProgramCosts& costs, const DeviceSpec& spec, const MeasuredCalls* measured) {
  StepTime time;
  const Graph& graph = costs.graph();
  time.by_node_.reserve(graph.node_capacity());
  time.spec_ = spec.title.empty() ? spec.name : spec.title;
  if (const auto found = graph.metadata.other.find("steps"); found != graph.metadata.other.end()) {
    time.steps_ = parse_number<int64_t>(found->second).value_or(0);
  }
  const Flops& flops = costs.flops();
  KernelWorks works(costs, spec);
  TabledTimes tables(graph, spec);
  // Measured times of this machine do not apply to another device.
  const bool ask = measured != nullptr && measured->size() > 0 && spec.device == c10::kCPU;

  double host = 0;    // time at which the host has issued the call
  double device = 0;  // time at which the device has finished it
  double host_operators_end = 0, possible = 0;
  CopyEngines engines(graph, spec);
  const HostParts host_parts(graph, spec);
  const double link = spec.host ? spec.host->link : 0, host_memory = spec.host ? spec.host->bandwidth : 0;
  std::map<std::string, int64_t> uncovered;
  for (const NodeId node : costs.nodes) {
    const HostPart part = host_parts.of(node);
    const bool offloads = overlaps_kernels(graph, node);
    const bool beside = !offloads && part.is_copy && on_own_stream(graph, node);
    const bool copies = part.is_copy && !offloads && !beside;
    if (offloads || beside) {
      // A copy from the host on its own stream does not wait for kernels.
      const bool waits = offloads || graph.value(graph.results(node)[0].ref.value).device().is_cpu();
      const double issued = std::max({host, waits ? device : 0, engines.ready(node)});
      NodeTime& at = time.by_node_[node];
      at = {.kind = KernelClass::kCopy, .bound = beside ? TimeBound::kLink : TimeBound::kMemory};
      at.seconds = at.memory = engines.seconds(node);
      at.issued = spec.host_call > 0 ? host : device;
      at.start = engines.run(node, issued);
      if (link <= 0) ++uncovered[graph.target(node).name()];
      host += spec.host_call;
      time.host_ += spec.host_call;
      if (beside && blocks_host(graph, node)) host = std::max(host, at.start + at.seconds);
      ++time.calls_;
      continue;
    }
    // The time of a collective depends on the interconnect (shadowgraph/profile/communication.h).
    KernelWork work;
    if (!graph.facts(node).collective) work = works.of(node);
    NodeTime at{.kind = copies ? KernelClass::kCopy : work.kind};
    if (at.kind != KernelClass::kFree && part.on_host) {
      if (host_memory > 0) at.memory = work.bytes / host_memory;
      if (host_memory <= 0 && work.bytes > kFewBytes) ++uncovered[graph.target(node).name()];
      at.seconds = std::max(spec.host_call, at.memory);
      at.bound = TimeBound::kHost;
      at.issued = at.start = host;
      host += at.seconds;
      host_operators_end = host;
      time.by_node_[node] = at;
      continue;
    }
    if (at.kind != KernelClass::kFree) {
      ++time.calls_;
      if (copies) {
        at.seconds = spec.fixed(KernelClass::kCopy);
        at.bound = TimeBound::kLink;
      } else {
        const KernelSeconds kernel = kernel_seconds(spec, work);
        at.compute = kernel.compute;
        at.memory = kernel.memory;
        at.seconds = kernel.total();
        at.bound = kernel.fixed > std::max(at.compute, at.memory) ? TimeBound::kFixed
                   : at.compute > at.memory                       ? TimeBound::kCompute
                                                                  : TimeBound::kMemory;
        if (const auto found = tables.find(node, work)) {
          at.seconds = found->seconds;
          at.bound = found->inside ? TimeBound::kTable : TimeBound::kTableEnd;
        }
      }
      if (part.link > 0 && link > 0) {
        at.memory = static_cast<double>(part.link) / link;
        at.seconds += at.memory;
      }
      bool measured_call = false;
      if (ask) {
        if (const MeasuredCall* call = measured->find(call_signature(graph, node));
            call != nullptr && call->seconds > 0) {
          at.seconds = call->seconds;
          at.bound = TimeBound::kMeasured;
          measured_call = true;
        }
      }
      if ((part.link > 0 && link <= 0) || (flops.is_uncovered(node) && !measured_call)) {
        ++uncovered[graph.target(node).name()];
      }
      const NodeFlops& done = flops.of(node);
      if (const double peak = spec.peak(at.kind, work.dtype); peak > 0) {
        possible += causal_share(graph, node) * static_cast<double>(done.matmul - done.beyond_pytorch) / peak;
      }
      at.issued = spec.host_call > 0 ? host : device;
      host += spec.host_call;
      time.host_ += spec.host_call;
      at.start = std::max({device, host, engines.ready(node)});
      device = at.start + at.seconds;
      if (copies && blocks_host(graph, node)) host = std::max(host, device);
      time.busy_ += at.seconds;
    }
    time.by_phase_[graph.node(node).phase] += at.seconds;
    time.by_class_[static_cast<size_t>(at.kind)] += at.seconds;
    if (at.kind != KernelClass::kFree) time.by_node_[node] = at;
  }
  for (auto& [op, calls] : uncovered) time.uncovered_.push_back({op, calls});
  device = std::max({device, host_operators_end, engines.end()});
  time.seconds_ = device;
  time.utilization_ = device > 0 ? possible / device : 0;
  return time;
}

}  // namespace shadowgraph
