// What a graph costs: memory and when, FLOPs, what autograd keeps, module by module.
#pragma once

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/device_memory.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/measure.h"
#include "shadowgraph/passes/shapes.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceSpec;  // shadowgraph/time.h
class StepTime;

// ---------------------------------------------------------------------------------------------------------------------
// How figures are written for people, and the names of dtypes.

std::string human_bytes(int64_t bytes);  // "0 B", "512 B", "12.31 KiB", "1.04 GiB": powers of 1024
std::string human_count(
    int64_t count);  // "0", "999", "3.72 K", "924.84 M", "7.44 G", "8.15 T", "1.20 P": powers of 1000
std::string exact_count(int64_t count);     // "25,557,032"
std::string human_seconds(double seconds);  // "0 s", "3.20 us", "12.5 ms", "1.04 s"

std::string dtype_name(c10::ScalarType dtype);  // "float32", as Python's torch writes it

// ---------------------------------------------------------------------------------------------------------------------
// FLOPs of every node, totals by phase, and the operators that have no formula.
//
//     const Flops flops = Flops::of(graph);
//     flops.of(node).matmul;                       // 2 per multiply-accumulate
//     flops.of_phase(Graph::kBackward).matmul;     // what FlopCounterMode counts, and `beyond_pytorch` more
//     flops.uncovered();                           // [{"aten::fft_c2c", 3}]
//
// Formulas are rows of flop_table.h and elementwise_table.h. A node is uncovered if its operator has no elementwise
// formula (row, view schema or pointwise tag) or if a formula refuses its shapes; what is known of it is still counted.
// One pass over the nodes; formulas are looked up once a target.

struct NodeFlops {
  int64_t matmul = 0;          // matrix products, convolutions, attention, recurrent gates: 2 per MAC
  int64_t elementwise = 0;     // additions, multiplications, divisions, comparisons, selections
  int64_t transcendental = 0;  // exp, log, sqrt, ... evaluations; not in elementwise
  int64_t beyond_pytorch = 0;  // the part of `matmul` that FlopCounterMode counts as 0

  NodeFlops& operator+=(const NodeFlops& other);
  friend bool operator==(const NodeFlops&, const NodeFlops&) = default;
};

struct UncoveredOperator {
  std::string op;     // with overload
  int64_t count = 0;  // calls
  friend bool operator==(const UncoveredOperator&, const UncoveredOperator&) = default;
};

class Flops {
 public:
  static Flops of(const Graph& graph);

  const NodeFlops& of(NodeId node) const { return by_node_[node]; }
  const NodeFlops& of_phase(PhaseId phase) const { return by_phase_[phase]; }
  const std::vector<UncoveredOperator>& uncovered() const { return uncovered_; }  // by name

 private:
  IdMap<NodeId, NodeFlops> by_node_;
  IdMap<PhaseId, NodeFlops> by_phase_;
  std::vector<UncoveredOperator> uncovered_;
};

// ---------------------------------------------------------------------------------------------------------------------
// What calls of operators that a user registered (shadowgraph/operators.h) cost: by node, and by operator.

struct CustomOperatorFigures {
  std::string op;  // with overload
  int64_t calls = 0;
  int64_t flops = 0;    // of all calls
  int64_t bytes = 0;    // of all calls
  int64_t scratch = 0;  // of the call that takes most
  int64_t unknown = 0;  // calls for which a rule that was given had no answer
  friend bool operator==(const CustomOperatorFigures&, const CustomOperatorFigures&) = default;
};

class CustomOperators {
 public:
  static CustomOperators of(const Graph& graph);

  const std::vector<CustomOperatorFigures>& by_operator() const { return by_operator_; }  // by name
  // Bytes that a node takes and gives back, in program order; nodes without scratch are left out.
  struct Scratch {
    NodeId node;
    int64_t bytes = 0;
    c10::Device device;
  };
  const std::vector<Scratch>& scratch() const { return scratch_; }

 private:
  std::vector<CustomOperatorFigures> by_operator_;
  std::vector<Scratch> scratch_;
};

// ---------------------------------------------------------------------------------------------------------------------
// Memory that kernels take and give back inside one call: reorders, im2col, workspaces, accumulators. It is alive beside a
// node's operands and results and nowhere else, so it is in no storage of the graph.
//
// What is known of a call, by the first that applies:
//   registered   the rule of shadowgraph/operators.h
//   measured     MeasuredCalls has this very call (CPU)
//   rule         a row of profiler/memory/scratch_rules.cpp, each with its reason and source
//   none         by nature: views, fills, pointwise operators on operands of one dtype
//   unknown      listed, with the number of calls; its bytes are in no figure

enum class ScratchSource : uint8_t { kRegistered, kMeasured, kRule, kNone, kUnknown };

struct NodeScratch {
  int64_t bytes = 0;
  ScratchSource source = ScratchSource::kNone;
};

class Scratch {
 public:
  // `measured`, if given, is asked for calls on CPU tensors.
  static Scratch of(const Graph& graph, const MeasuredCalls* measured = nullptr);

  const NodeScratch& of(NodeId node) const { return by_node_[node]; }
  const std::vector<UncoveredOperator>& unknown() const { return unknown_; }  // by name
  int64_t unknown_calls() const;

 private:
  IdMap<NodeId, NodeScratch> by_node_;
  std::vector<UncoveredOperator> unknown_;
};

// ---------------------------------------------------------------------------------------------------------------------
// Live bytes at every node, by kind, and the peak.
//
// The boundary rule. A step is one node in program order. The bytes *at* a node are those live while it runs: after it
// has allocated its results, before what died at it is freed. A storage freed "after node n" (Node::frees of n) is live
// at n and not at its successor:
//
//     node      n0         n1         n2         n3
//     born      A          B                     C
//     frees                           A          B
//     live at   A          A B        A B        B C
//                                     ^ A is still counted at n2, and never meets C
//
// Storages that existed before the program (born at a placeholder: parameters, buffers, inputs, constants) are counted
// from the first step, wherever their placeholder stands. Bytes are whole storages: a view costs nothing, a view that
// outlives its base keeps all of the base. Scratch memory that an operator takes and gives back inside one call is not
// in the graph and not counted, except that of operators that were registered with it (shadowgraph/operators.h): it is
// live at its node, as temporary. peak_with_scratch() adds what else is known of it (Scratch). A second track rounds each storage up to 512 bytes, the least block of CUDA's caching
// allocator (c10/cuda/CUDACachingAllocator: kMinBlockSize).
//
//     const auto timeline = MemoryTimeline::of(graph);
//     timeline.peak().bytes; timeline.peak().node; timeline.total(step);
//
// Linear in nodes and storages; about 80 bytes a step.

using BytesByKind = std::array<int64_t, kStorageKindCount>;  // indexed by StorageKind

constexpr int64_t kAllocationBlock = 512;  // bytes
constexpr int64_t rounded_bytes(int64_t bytes) {
  return (bytes + kAllocationBlock - 1) / kAllocationBlock * kAllocationBlock;
}

struct MemoryPeak {
  int64_t bytes = 0;
  uint32_t step = 0;
  NodeId node;  // the earliest with `bytes` live; invalid in an empty graph
  PhaseId phase;
  BytesByKind by_kind{};
};

class MemoryTimeline {
 public:
  // Of the storages on `device`; without an index, on all devices of its type. Empty: of all storages there are.
  static MemoryTimeline of(const Graph& graph, std::optional<c10::Device> device = std::nullopt);

  uint32_t steps() const { return static_cast<uint32_t>(nodes_.size()); }
  NodeId node(uint32_t step) const { return nodes_[step]; }
  const BytesByKind& live(uint32_t step) const { return live_[step]; }
  int64_t total(uint32_t step) const { return total_[step]; }
  int64_t rounded_total(uint32_t step) const { return rounded_[step]; }

  const MemoryPeak& peak() const { return peak_; }
  // Live bytes and known scratch, where they are most; `by_kind` is without scratch.
  const MemoryPeak& peak_with_scratch() const { return peak_with_scratch_; }
  int64_t rounded_peak() const { return rounded_peak_; }  // may be at another step than peak()

  // Storages live at a step, largest first, then by id; at most `count`.
  std::vector<StorageId> alive_at(uint32_t step, size_t count) const;
  StorageKind kind(StorageId storage) const { return kinds_[storage]; }

 private:
  friend class ProgramCosts;
  static MemoryTimeline of(const Graph& graph, std::vector<NodeId> nodes, const IdMap<NodeId, uint32_t>& order,
                           IdMap<StorageId, StorageKind> kinds, const CustomOperators& custom, const Scratch& scratch,
                           std::optional<c10::Device> device);

  struct Interval {
    StorageId storage;
    uint32_t born;  // first and last step live, both inclusive
    uint32_t last;
    int64_t bytes;
  };
  std::vector<NodeId> nodes_;
  std::vector<BytesByKind> live_;
  std::vector<int64_t> total_;
  std::vector<int64_t> rounded_;
  std::vector<Interval> intervals_;
  IdMap<StorageId, StorageKind> kinds_;
  MemoryPeak peak_;
  MemoryPeak peak_with_scratch_;
  int64_t rounded_peak_ = 0;
};

// One storage that is alive at some step, in words.
struct LiveStorage {
  StorageId storage;
  int64_t bytes = 0;
  StorageKind kind = StorageKind::kTemporary;
  std::string module;    // path of the module that made it; empty outside all modules
  std::string producer;  // operator, or for what existed before its placeholder and name: "sg::parameter fc.weight"
  std::string source;    // "file:line" of the producer, when known
  std::string dtype;     // of the first value in it: "float32"
  std::vector<int64_t> shape;
};

// The `count` largest storages alive at `step`.
std::vector<LiveStorage> live_storages(const Graph& graph, const MemoryTimeline& timeline, uint32_t step, size_t count);

// ---------------------------------------------------------------------------------------------------------------------
// Bytes that autograd keeps between forward and backward, by storage.
//
//   all          every storage that a saved-tensor hook sees, once, whole
//   activations  the part that the step itself made: without parameters, buffers, inputs and constants, which exist
//   anyway

struct SavedBytes {
  int64_t all = 0;
  int64_t activations = 0;
  int64_t storages = 0;  // how many

  static SavedBytes of(const Graph& graph);
  friend bool operator==(const SavedBytes&, const SavedBytes&) = default;
};

// ---------------------------------------------------------------------------------------------------------------------
// What each storage is for, refined from what the recorder noted and from how the graph uses it.
//
// The first that applies:
//   parameter, buffer, input, constant   born at the placeholder of that name
//   what the recorder says               if it says anything but temporary
//   gradient                             the storage of an sg::gradient's second argument
//   optimizer_state                      born in phase optimizer and alive at the end
//   activation                           born in phase forward, and saved for backward by any node, or alive at the
//                                        first backward node
//   temporary                            everything else; also all results of a graph without a backward phase

class StorageKinds {
 public:
  static IdMap<StorageId, StorageKind> of(const Graph& graph);
};

// A storage that existed before the program ran: born at a placeholder, or at no node of the graph.
bool existed_before(const Graph& graph, const Storage& storage);

// Node positions in program order, from 0.
IdMap<NodeId, uint32_t> program_order(const Graph& graph);

// ---------------------------------------------------------------------------------------------------------------------
// How large the model is: elements and bytes of its parameters and buffers, shared ones once.
//
// Two placeholders are the same tensor if they have the same storage, offset and sizes (tied weights). Parameters that
// are different parts of one storage (flattened recurrent weights) count each; bytes are those of the tensors, not of
// the storages, which may be padded.

struct ParameterCount {
  int64_t parameters = 0;  // elements
  int64_t parameter_bytes = 0;
  int64_t parameter_tensors = 0;
  int64_t buffers = 0;  // elements
  int64_t buffer_bytes = 0;
  int64_t buffer_tensors = 0;

  static ParameterCount of(const Graph& graph);
  friend bool operator==(const ParameterCount&, const ParameterCount&) = default;
};

// ---------------------------------------------------------------------------------------------------------------------
// What a group of nodes costs: the figures behind the module tree and the summary table.
//
// A group is any set of nodes: a module, a composite call, an operator. Bytes are those of whole storages, each counted
// once in a group, so that views are free and shared tensors are not counted twice.
//   incremental      storages saved for backward (activations: not what existed before), charged to the group of the
//   first
//                    forward node that saves them; the sum over all groups is saved_activation_bytes
//   output           storages allocated by the group's forward nodes that autograd saves somewhere
//   temporary        storages allocated by the group's forward nodes that nobody saves
//   parameters       parameters that the group's forward nodes read; shared ones count once in each group
//   backward         storages allocated by the group's backward nodes
//   forward_flops,   NodeFlops of the group's nodes of that phase
//   backward_flops

struct GroupFigures {
  int64_t forward_nodes = 0;
  int64_t backward_nodes = 0;
  int64_t incremental = 0;  // bytes, as all below
  int64_t output = 0;
  int64_t temporary = 0;
  int64_t parameters = 0;
  int64_t backward = 0;
  NodeFlops forward_flops;
  NodeFlops backward_flops;

  // Adds everything but `parameters`, which a sum would count twice where groups share them.
  void add_disjoint(const GroupFigures& other);
  friend bool operator==(const GroupFigures&, const GroupFigures&) = default;
};

constexpr uint32_t kNoGroup = 0xFFFFFFFFU;

// `group_of` gives each node's group, or kNoGroup. Only nodes of phases forward and backward that are no placeholders,
// outputs or gradient markers are counted. `parents`, if given, is a tree over the groups (parents before children,
// kNoGroup for a root): `parameters` then counts each group's subtree, each storage once; all else is the group's own.
std::vector<GroupFigures> group_figures(const Graph& graph, const IdMap<StorageId, StorageKind>& kinds,
                                        const Flops& flops, const IdMap<NodeId, uint32_t>& group_of,
                                        uint32_t group_count, std::span<const uint32_t> parents = {});

// ---------------------------------------------------------------------------------------------------------------------
// The analyzer's table: what each module, composite call or operator costs, one row each, in program order.
//
//   Op type      module class, "composite" or "operator"; "x12" if the row stands for twelve equal, adjacent ones
//   Op           module path, or operator with the path of the module it ran in
//   Accumulate   bytes saved for backward so far: the running sum of Incremental, which ends at saved_activation_bytes
//   Incremental  bytes this row is the first to save (exact definitions of this and the next: GroupFigures)
//   Output       bytes its forward allocates that autograd keeps
//   Temp         bytes its forward allocates that nobody keeps for backward
//   Param        bytes of parameters its forward reads
//   Backward     bytes its backward allocates
//   Fwd FLOPs,   matrix products, convolutions, attention: 2 per MAC
//   Bwd FLOPs
//   Fwd elem.,   elementwise operations
//   Bwd elem.
//
// All bytes are those of whole storages counted once, where ColossalAI's analyzer, whose columns these are, sums the
// logical bytes of tensors keyed by data pointer: a view is free here, Output and Temp never overlap, a tensor that is
// saved by the operator that made it is Output rather than dropped as an alias, and Backward is what backward really
// allocates rather than the size of the inputs. Its FLOPs are MACs: half of ours.

enum class SummaryGrouping : uint8_t {
  kModule,     // one row a module, down to `depth`
  kComposite,  // one row a call: the outermost composite operator, or the operator itself outside any
  kOperator,   // one row an operator name, composite ones first taken as in kComposite
};

struct SummaryOptions {
  SummaryGrouping grouping = SummaryGrouping::kModule;
  int depth = 0;             // kModule: levels of the module tree; 0: the deepest that fits into max_rows
  size_t max_rows = 40;      // what is beyond is summed in a last row; 0: no limit
  bool fold_repeats = true;  // kModule: numbered siblings that do the same, as in a picture, become one row
};

struct SummaryRow {
  std::string op_type;
  std::string op;
  int64_t repeats = 1;
  int64_t accumulate = 0;
  GroupFigures figures;  // of all repeats together
};

struct SummaryTable {
  std::vector<SummaryRow> rows;
  size_t left_out = 0;  // rows beyond max_rows, summed in the last one
  int depth = 0;        // kModule: the depth shown
};

// Aligned columns, human units, lines ending in '\n'.
std::string to_text(const SummaryTable& table);

// ---------------------------------------------------------------------------------------------------------------------
// Everything the profiler knows of a graph, asked for in one way.
//
//     const Profile costs = profile(graph);
//     costs.peak.bytes; costs.timeline().total(step); costs.of(node).matmul;
//     std::cout << to_text(costs.summary()) << to_text(costs);
//     std::cout << to_json(costs).dump(2);
//
// What the figures are made of (FLOPs of nodes, kinds of storages, the tree of modules) is worked out once; the views
// read it, and the graph, which must outlive them unchanged. The figures, text and JSON are values of their own. What
// is not known is absent (an empty optional, a missing JSON key) or listed (uncovered operators), never zero.
// docs/profiling.md defines every figure.

struct ProfileOptions {
  size_t top_at_peak = 10;
  bool timeline = false;  // live bytes of every step in the JSON: large
  // The device whose memory is asked for. Empty: the graph's "device" metadata, else the one with most storage bytes.
  std::optional<c10::Device> device;
  const MeasuredCalls* measured = nullptr;  // of this machine: scratch and seconds of calls on the CPU
  DeviceMemoryOptions memory;               // its device is the one above
  const DeviceSpec* spec = nullptr;         // figures of the device that the time is estimated for; none: no time
};

struct OutputInfo {
  bool defined = true;  // false: None
  std::vector<int64_t> shape;
  std::string dtype;  // "float32"
  std::vector<int64_t> stride;
  std::string device;
};

struct PeakInfo {
  int64_t bytes = 0;
  uint32_t node = 0;  // position in program order
  std::string op;
  std::string module;
  std::string source;
  std::string phase;
  BytesByKind by_kind{};
};

struct DevicePeak {
  std::string device;
  int64_t bytes = 0;
};

struct ModuleProfile {
  std::string path;
  std::string class_name;
  uint32_t calls = 0;
  std::vector<uint32_t> children;  // indices into Profile::modules
  GroupFigures figures;            // of the module and all below it
};

class ProgramCosts;

struct Profile {
  // From Graph::metadata; absent there, absent here.
  std::optional<std::string> model;
  std::optional<ProgramMode> mode;
  std::optional<std::string> optimizer;
  std::optional<double> capture_seconds;  // for whoever captured it to fill in

  std::string device;  // whose memory `peak` and `timeline` are about
  uint32_t nodes = 0;
  std::map<std::string, int64_t> operators;  // calls by operator name, placeholders included
  ParameterCount size;
  std::map<std::string, NodeFlops> flops;  // by phase: forward, backward, optimizer, and others that have any
  std::vector<UncoveredOperator> uncovered;
  std::vector<CustomOperatorFigures> custom_operators;  // those of shadowgraph/operators.h that were called
  SavedBytes saved;
  PeakInfo peak;  // at least: without scratch
  int64_t peak_rounded_bytes = 0;
  PeakInfo peak_with_scratch;                      // an estimate: with what is known
  std::vector<UncoveredOperator> unknown_scratch;  // calls that may take more
  // What the device holds, by the model of its caching allocator. Absent for CPUs, which have none, and if the run does
  // not fit: `out_of_memory` then says where.
  std::optional<DeviceMemory> device_memory;
  std::string out_of_memory;
  std::vector<DevicePeak> other_devices;  // peaks of the other devices that hold storages
  std::vector<LiveStorage> top_at_peak;
  std::vector<ModuleProfile> modules;              // [0] is the root
  std::optional<std::vector<OutputInfo>> outputs;  // absent if the graph has no sg::output
  bool timeline_in_json = false;

  // ---- Views
  // Live bytes of `device`, whose peak is `peak`; and those of another.
  const Graph& graph() const;
  const ProgramCosts& costs() const { return *costs_; }  // internal to profiler/
  const MemoryTimeline& timeline() const { return *timeline_; }
  MemoryTimeline timeline(c10::Device other) const;
  const Flops& node_flops() const;
  const NodeFlops& of(NodeId node) const { return node_flops().of(node); }
  StorageKind kind(StorageId storage) const { return timeline_->kind(storage); }
  SummaryTable summary(const SummaryOptions& options = {}) const;
  const NodeScratch& scratch(NodeId node) const;
  const StepTime* time() const { return time_.get(); }  // nullptr without ProfileOptions::spec
  MemoryPlan plan(const PlanOptions& options = {}) const;

 private:
  friend Profile profile(const Graph& graph, const ProfileOptions& options);
  std::shared_ptr<const ProgramCosts> costs_;
  std::shared_ptr<const MemoryTimeline> timeline_;
  std::shared_ptr<const StepTime> time_;
};

Profile profile(const Graph& graph, const ProfileOptions& options = {});

nlohmann::json to_json(const Profile& profile);

// The block under the summary table: sizes, saved bytes, peak by kind, FLOPs by phase, uncovered operators, the largest
// storages at the peak.
std::string to_text(const Profile& profile);

// ---------------------------------------------------------------------------------------------------------------------
// What the figures suggest, greatest stake first: what was seen, what it costs, and the option or line that changes it. The
// idea is Halide's profiler's.

struct Finding {
  std::string name;    // "activations", "logits", "layout-copies", ...: the same from version to version
  std::string seen;    // with the figures that made it worth saying
  std::string remedy;  // with the option or line that does it
  int64_t bytes = 0;   // at stake, of the peak or of what is moved; 0: not about memory
  double seconds = 0;  // at stake; 0: not about time, or no times are known
};

// docs/profiling.md lists the triggers.
std::vector<Finding> findings(const Profile& profile);
std::string to_text(const std::vector<Finding>& findings);

// ---------------------------------------------------------------------------------------------------------------------
// What a symbolic graph costs at many sizes, without capturing at any of them.
//
//     SizeSweep sweep(symbolic, c10::Device("cuda:0"));
//     for (int64_t batch = 2; batch <= 512; ++batch) sweep.at({{"batch", batch}}).peak_bytes;
//     sweep.flops_text(Graph::kForward);        // "4089184256*batch"
//
// FLOPs are polynomials in the sizes, as exact as the sizes are; peak and saved bytes come from the memory timeline of
// the graph at each size, since which step is the peak depends on it. A node whose FLOPs no polynomial fits makes its
// phase be counted at each size instead. About 0.2 us a node and size.

struct SizeCost {
  int64_t peak_bytes = 0;   // of the device asked for, as Profile's
  int64_t saved_bytes = 0;  // activations saved for backward, as Profile's
  NodeFlops flops;          // all phases
};

// The same figures of a graph as it is.
SizeCost size_cost(const Profile& profile);

class SizeSweep {
 public:
  // `symbolic` must outlive this. Counts FLOPs at a few sizes and fits them.
  explicit SizeSweep(const SymbolicGraph& symbolic, std::optional<c10::Device> device = std::nullopt);

  // Throws SymbolicError for sizes that are not answered.
  SizeCost at(const NamedSizes& sizes);

  // Matrix products, convolutions, attention of one node of symbolic.base(), or of a phase. Empty: no polynomial.
  const std::optional<Polynomial>& matmul_flops(NodeId node) const { return by_node_[node]; }
  const std::optional<Polynomial>& matmul_flops(PhaseId phase) const { return by_phase_[phase]; }
  std::string flops_text(PhaseId phase) const;

 private:
  const SymbolicGraph& symbolic_;
  SymbolicGraph::Instance instance_;
  std::optional<c10::Device> device_;
  IdMap<NodeId, std::optional<Polynomial>> by_node_;
  IdMap<PhaseId, std::optional<Polynomial>> by_phase_;
  std::array<std::optional<Polynomial>, 4> total_;  // matmul, elementwise, transcendental, beyond_pytorch
};

}  // namespace shadowgraph
