// Kernel classes of operators and of a graph's nodes; names are looked up once per target.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "profiler/program_costs.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {

// The kernel class as derived from an operator's name and facts. For pointwise operators and convolutions it also
// depends on the node's operands.
struct TargetKernelClass {
  KernelClass kind = KernelClass::kOther;
  bool convolution = false;  // class depends on the operands
  bool backward = false;
  const char* file = __builtin_FILE();  // source of the classification
};
TargetKernelClass kernel_class(const Target& called);

class KernelClasses {
 public:
  explicit KernelClasses(const Graph& graph) : graph_(graph) {}
  KernelClass of(NodeId node);
  // Returns the FLOPs that a kernel really computes. The count of a grouped convolution's weight gradient assumes one
  // group (profiler/cost/flop_table.h).
  int64_t computed(NodeId node, int64_t counted);

 private:
  const Graph& graph_;
  IdMap<TargetId, std::optional<TargetKernelClass>> by_target_;
};

// Models of GPU kernels, and the fraction of a device's peaks (GpuSpec) that each kernel class reaches.
// A matrix product is split into tiles; a wave of tiles runs at once, one per multiprocessor. Each tile has a fixed
// start and end time, and half of a product's writes are not hidden by compute. Attention goes by blocks of keys, half
// of which a causal mask skips. The models are fitted to A100 and V100 (bench/published/operators.py) and to the
// FlashAttention-2 paper; docs/time.md lists them with their errors.

bool is_convolution(KernelClass kind);
bool is_attention(KernelClass kind);
// Models fitted on an H100 apply to Hopper only. A100, V100 and RTX 3090 use the older ones, which predict Sailor's
// layers within 8 %.
bool is_hopper(const DeviceSpec& spec);
double gpu_fixed_seconds(const DeviceSpec& spec, KernelClass kind);     // seconds of an empty kernel
double gpu_compute_fraction(const DeviceSpec& spec, KernelClass kind);  // fraction of the peak FLOP/s, for large calls
double gpu_memory_fraction(const DeviceSpec& spec, KernelClass kind);   // fraction of `stream`, for large calls

// (batch, rows, inner) by (batch, inner, columns).
struct ProductShape {
  double batch = 0, rows = 0, columns = 0, inner = 0, result_bytes = 0;
  bool along_inner = true;      // both operands are contiguous along the reduced dimension
  bool whole_vectors = true;    // rows of operands are aligned to 16 bytes
  bool tensor_float32 = false;  // float32 operands are rounded to TF32
};
struct ProductSeconds {
  double compute = 0;
  double written_after = 0;  // not hidden by compute
};
ProductSeconds gpu_product(const DeviceSpec& spec, const ProductShape& product, c10::ScalarType dtype);

struct AttentionShape {
  int64_t queries = 0, keys = 0;
  int64_t width = 128;  // head dimension
  bool causal = false, backward = false;
};
// Returns the work of a kernel over all scores, relative to the FLOP count. Causal masks skip blocks. Each block has a
// fixed overhead, and narrow heads fill the tiles badly.
double attention_work(const AttentionShape& attention);
// Returns the share of a call's FLOPs, which PyTorch counts over all scores, that a causal mask leaves: about a half; 1
// for other calls. Utilization counts only these, or it would exceed 1 for long sequences.
double causal_share(const Graph& graph, NodeId node);
// Returns the time of an operator's kernel relative to FlashAttention-2, the baseline of the attention classes.
double attention_kernel(std::string_view name, KernelClass kind, c10::ScalarType dtype);

// Time per element of kernels that use neither full vectors nor tensor cores.
// Copies between different layouts, casts and broadcasts go element by element. Norms over few elements, sorts, pooling
// and scatters each have a rate. The rates were measured on an H100 (bench/gpu) and apply to Hopper, per
// multiprocessor. docs/time.md lists them with their errors.
struct ElementWork {
  double seconds = 0;  // on one multiprocessor; a lower bound on the kernel's time
  double more = 0;     // the same, added to the kernel's time: operands converted to another layout
  double steps = 0;    // seconds of dependent kernels, independent of the number of multiprocessors
  double again = 0;    // bytes beyond the traffic: operands read twice, or rows left untouched
};

// Computes ElementWork of a graph's calls; names are looked up once per target.
class ElementWorks {
 public:
  explicit ElementWorks(const Graph& graph) : graph_(graph) {}
  ElementWork of(NodeId node, KernelClass kind, const NodeTraffic& traffic);

 private:
  struct OfTarget {
    bool known = false;
    bool measured = false;    // PyTorch's operators are
    bool trains = false;      // the rate applies only with batch statistics
    double element_rate = 0;  // by name; 0: by class
  };
  const OfTarget& target_of(NodeId node);

  const Graph& graph_;
  IdMap<TargetId, OfTarget> targets_;
};

// The work of a call's kernel, and its time on a device.
struct KernelWork {
  KernelClass kind = KernelClass::kFree;
  c10::ScalarType dtype = c10::kFloat;  // of the computation
  double flops = 0;                     // of products, as computed
  double elementwise = 0, transcendental = 0;
  double bytes = 0;      // read and written
  ElementWork elements;  // on Hopper
  bool ragged = false;   // a convolution's channels are not a multiple of the vector width
  std::optional<ProductShape> product;
  double blocks = 1;  // of attention: work relative to the FLOP count
  double kernel = 1;  // of attention: time of its kernel relative to FlashAttention-2
  // Of operators that run several kernels, one after the other: their number, and bytes of results between them.
  double kernels = 1, between = 0;
};

struct KernelSeconds {
  double fixed = 0, compute = 0, memory = 0;
  double after = 0;  // not hidden by the longer of the two
  double total() const;
};

KernelSeconds kernel_seconds(const DeviceSpec& spec, const KernelWork& work);

// Computes KernelWork of a graph's calls.
class KernelWorks {
 public:
  // `spec`: the device to estimate times for.
  KernelWorks(const ProgramCosts& costs, const DeviceSpec& spec);
  KernelWork of(NodeId node);

 private:
  std::optional<ProductShape> product(NodeId node, double flops) const;
  double attention(NodeId node, bool backward) const;

  const ProgramCosts& costs_;
  const Graph& graph_;
  KernelClasses classes_;
  ElementWorks elements_;
  bool hopper_;
  bool tensor_float32_;  // float32 products use TF32, from the graph's metadata
};

}  // namespace shadowgraph
