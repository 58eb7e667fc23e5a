// Finds the kernel classes of operators and of a graph's nodes: names are looked up once a target.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "profiler/program_costs.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {

// Says what an operator's name and facts tell of its class. A node's operands say the rest for pointwise operators and
// convolutions.
struct TargetKernelClass {
  KernelClass kind = KernelClass::kOther;
  bool convolution = false;  // its operands say which
  bool backward = false;
  const char* file = __builtin_FILE();  // that says so
};
TargetKernelClass kernel_class(const Target& called);

class KernelClasses {
 public:
  explicit KernelClasses(const Graph& graph) : graph_(graph) {}
  KernelClass of(NodeId node);
  // Returns what a kernel computes of the FLOPs that are counted. A grouped convolution's weight gradient is counted as
  // if there were one group (profiler/cost/flop_table.h), which nobody computes.
  int64_t computed(NodeId node, int64_t counted);

 private:
  const Graph& graph_;
  IdMap<TargetId, std::optional<TargetKernelClass>> by_target_;
};

// The laws that kernels follow on every GPU, and what classes of them reach of a device's figures (GpuFigures).
//
// A product is cut into tiles, a wave of which runs at once, one on each multiprocessor. A tile begins and ends in a
// time of its own, and half of what products write is not hidden behind computing. Attention goes over blocks of keys,
// of which a causal one skips half. The laws are fitted on A100 and V100 (bench/published/operators.py) and on the
// figures of the FlashAttention-2 paper; docs/time.md has them with their errors.

bool is_convolution(KernelClass kind);
bool is_attention(KernelClass kind);
// Laws that were fitted on an H100 hold for its like alone. A100, V100 and RTX 3090 follow the older ones, by which
// Sailor's layers are within 8 %.
bool is_hopper(const DeviceSpec& spec);
double gpu_fixed(const DeviceSpec& spec, KernelClass kind);    // seconds of a kernel that has nothing to do
double gpu_reached(const DeviceSpec& spec, KernelClass kind);  // share of the peak FLOP/s, of large calls
double gpu_moved(const DeviceSpec& spec, KernelClass kind);    // share of `stream`, of large calls

// (batch, rows, inner) by (batch, inner, columns).
struct ProductShape {
  double batch = 0;
  double rows = 0;
  double columns = 0;
  double inner = 0;
  double result_bytes = 0;
  bool along_inner = true;      // both operands lie along what is summed
  bool whole_vectors = true;    // rows of operands begin at 16 bytes
  bool tensor_float32 = false;  // float32 operands are rounded to TF32
};
struct ProductSeconds {
  double compute = 0;
  double written_after = 0;  // what is not hidden behind computing
};
ProductSeconds gpu_product(const DeviceSpec& spec, const ProductShape& product, c10::ScalarType dtype);

struct AttentionShape {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t width = 128;  // of a head
  bool causal = false;
  bool backward = false;
};
// What a kernel does for all scores, by what is counted for them. A causal one leaves blocks out. Blocks that begin and
// end are extra, and narrow heads fill the tiles badly.
double attention_work(const AttentionShape& attention);
// The time of an operator's kernel by that of FlashAttention-2, which `attention` and `attention_backward` are of.
double attention_kernel(std::string_view name, KernelClass kind, c10::ScalarType dtype);

// What elements take in kernels that neither move whole vectors nor fill the tensor cores, however few bytes they have.
//
// Copies whose sides lie differently, casts and broadcasts go element by element. Norms over few elements, sorts, pools
// and scatters have paces of their own. The figures were measured on an H100 (bench/gpu) and hold for Hopper, by
// multiprocessor. docs/time.md has them with their errors.

struct ElementWork {
  double seconds = 0;  // of one multiprocessor, if it had all elements; at the least, whatever is moved
  double more = 0;     // the same, before or after the rest: operands that are laid out anew
  double steps = 0;    // seconds of kernels that wait for one another, however many multiprocessors there are
  double again = 0;    // bytes beyond the traffic: operands that are read twice, or rows that are left alone
};

// Reads the work of a graph's calls: names are looked up once a target.
class ElementWorks {
 public:
  explicit ElementWorks(const Graph& graph) : graph_(graph) {}
  ElementWork of(NodeId node, KernelClass kind, const NodeTraffic& traffic);

 private:
  struct OfTarget {
    bool known = false;
    bool measured = false;  // PyTorch's own operators were
    bool trains = false;    // has its pace with statistics of the batch alone
    double pace = 0;        // by its name; 0: as its class says
  };
  const OfTarget& target_of(NodeId node);

  const Graph& graph_;
  IdMap<TargetId, OfTarget> targets_;
};

// What a call has a kernel do, and the seconds that takes on a device.
struct KernelWork {
  KernelClass kind = KernelClass::kFree;
  c10::ScalarType dtype = c10::kFloat;  // in which it computes
  double flops = 0;                     // of products, as kernels compute them
  double elementwise = 0;
  double transcendental = 0;
  double bytes = 0;      // read and written
  ElementWork elements;  // where laws of Hopper hold
  bool ragged = false;   // a convolution's channels fill no whole vectors
  std::optional<ProductShape> product;
  double blocks = 1;  // of attention: what is done for the scores, by what is counted for them
  double kernel = 1;  // of attention: the time of its kernel by FlashAttention-2's
};

struct KernelSeconds {
  double fixed = 0;
  double compute = 0;
  double memory = 0;
  double after = 0;  // what is not hidden behind the longer of the two
  double total() const;
};

KernelSeconds kernel_seconds(const DeviceSpec& spec, const KernelWork& work);

// Reads the work of a graph's calls.
class KernelWorks {
 public:
  // For times on this device.
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
  bool tensor_float32_;  // of products of float32, as the graph's head says
};

}  // namespace shadowgraph
