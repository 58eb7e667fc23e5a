// The plain records a graph is made of. All are trivially copyable and live in arenas owned by the Graph.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/arena.h"
#include "shadowgraph/graph/ids.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---- Arguments ------------------------------------------------------------------------------------------------------

enum class ArgumentKind : uint8_t {
  kNone,       // None, or an undefined tensor
  kValue,      // a Value of this graph
  kInt,        // int, and SymInt, ScalarType, Layout, MemoryFormat by their integer (the schema tells which)
  kFloat,      // double
  kBool,       //
  kComplex,    // two doubles in the graph's float pool
  kString,     //
  kDevice,     //
  kIntList,    // int64s in the graph's int pool
  kList,       // Arguments in the graph's argument pool: lists of tensors, optionals, floats, bools, strings, lists
  kConstant,   // a tensor held by the graph
  kGenerator,  // a random generator, by device; its state is not kept
  kOpaque,     // something that has no text form (a Python or custom class object); printed by its type, never replayed
};

// The parser and the verifier refuse lists that nest deeper, so that nothing recurses without bound.
constexpr int kMaxListDepth = 32;

// One argument or result of a node, 16 bytes. Its name is the schema's name at the same position.
// In a result, only kNone (an undefined tensor), kValue and kList of those occur.
struct Argument {
  struct ValueRef {
    ValueId value;
    uint32_t use;  // index in the use arena while the argument belongs to a node's inputs, otherwise kNoUse
  };
  static constexpr uint32_t kNoUse = 0xFFFFFFFFU;

  ArgumentKind kind = ArgumentKind::kNone;
  int8_t device_type = 0;    // kDevice, kGenerator
  int8_t device_index = -1;  //
  union {
    int64_t i;
    double d;
    bool b;
    ValueRef ref;
    Run run;          // kIntList (int pool), kList (argument pool), kComplex (float pool)
    StringId string;  // kString, kOpaque
    ConstantId constant;
  };

  Argument() : i(0) {}
  static Argument none() { return {}; }
  static Argument of_int(int64_t v) {
    Argument a(ArgumentKind::kInt);
    a.i = v;
    return a;
  }
  static Argument of_float(double v) {
    Argument a(ArgumentKind::kFloat);
    a.d = v;
    return a;
  }
  static Argument of_bool(bool v) {
    Argument a(ArgumentKind::kBool);
    a.i = 0;
    a.b = v;
    return a;
  }
  static Argument of_value(ValueId v) {
    Argument a(ArgumentKind::kValue);
    a.ref = {v, kNoUse};
    return a;
  }
  static Argument of_string(StringId v) {
    Argument a(ArgumentKind::kString);
    a.string = v;
    return a;
  }
  static Argument of_constant(ConstantId v) {
    Argument a(ArgumentKind::kConstant);
    a.constant = v;
    return a;
  }
  static Argument of_run(ArgumentKind kind, Run v) {
    Argument a(kind);
    a.run = v;
    return a;
  }
  static Argument of_device(c10::Device v, ArgumentKind kind = ArgumentKind::kDevice) {
    Argument a(kind);
    a.device_type = static_cast<int8_t>(v.type());
    a.device_index = v.index();
    return a;
  }
  c10::Device device() const { return {static_cast<c10::DeviceType>(device_type), device_index}; }

 private:
  explicit Argument(ArgumentKind k) : kind(k), i(0) {}
};
static_assert(sizeof(Argument) == 16);

// ---- Values ---------------------------------------------------------------------------------------------------------

enum class ValueKind : uint8_t { kTensor, kInt, kFloat, kBool };

// A tensor's geometry (what it contains is a version of its storage, see shadowgraph/analysis/effects.h), or a host scalar that
// a node read.
struct Value {
  ValueKind kind = ValueKind::kTensor;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Layout layout = c10::Layout::Strided;
  c10::DeviceType device_type = c10::DeviceType::CPU;
  c10::DeviceIndex device_index = -1;
  bool requires_grad = false;
  uint16_t rank = 0;
  uint32_t dims = 0;   // sizes, then strides: 2 * rank int64s in the graph's int pool; elements, not bytes
  StorageId storage;   // invalid for scalars
  int64_t offset = 0;  // elements into the storage
  NodeId producer;
  uint32_t first_use = Argument::kNoUse;
  uint32_t last_use = Argument::kNoUse;

  c10::Device device() const { return {device_type, device_index}; }
};

// One place where a value is read: a doubly linked list per value, in order of creation, so that unlinking is O(1).
struct Use {
  NodeId user;
  ValueId value;
  uint32_t previous = Argument::kNoUse;
  uint32_t next = Argument::kNoUse;
};

// ---- Storages -------------------------------------------------------------------------------------------------------

enum class StorageKind : uint8_t {
  kParameter,
  kBuffer,
  kInput,
  kConstant,
  kActivation,  // made in forward and kept for backward, or otherwise alive when backward starts
  kGradient,    // a parameter's accumulated gradient
  kOptimizerState,
  kTemporary,  // everything else
};
constexpr int kStorageKindCount = 8;
std::string_view to_string(StorageKind kind);

// One allocation. Lifetimes are those observed while the program ran. `born` is the node that allocated it (a
// placeholder for what existed before). Its death is recorded at the node after which it was freed, see
// Graph::freed_after.
struct Storage {
  int64_t bytes = 0;
  c10::DeviceType device_type = c10::DeviceType::CPU;
  c10::DeviceIndex device_index = -1;
  StorageKind kind = StorageKind::kTemporary;
  NodeId born;
  NodeId freed_after;           // invalid: still alive at the end of the capture
  uint32_t place_in_frees = 0;  // in the list of that node; kept by Graph

  c10::Device device() const { return {device_type, device_index}; }
};

// ---- Regions --------------------------------------------------------------------------------------------------------

enum class RegionKind : uint8_t { kRoot, kModule, kComposite, kCheckpoint, kScope };
std::string_view to_string(RegionKind kind);

// Something the program entered and left while it ran. Regions form a tree under the root (index 0).
struct Region {
  RegionKind kind = RegionKind::kRoot;
  bool inferred = false;  // a module path deduced from parameter ownership rather than named by a ModuleScope
  RegionId parent;
  StringId name;        // module: path; composite: operator name; others: label
  StringId class_name;  // module: C++ class
  uint32_t call = 0;    // how many times this (parent, name) was entered before
  TargetId target;      // composite: the operator
  Run arguments;        // composite: its arguments as the user gave them
};

// ---- Nodes ----------------------------------------------------------------------------------------------------------

// What was switched on while the node ran.
struct NodeFlags {
  bool grad_mode : 1 = false;
  bool inference_mode : 1 = false;
  bool autocast_cpu : 1 = false;
  bool autocast_cuda : 1 = false;
};

// A tensor that autograd keeps from this node for its backward.
enum class SavedRole : uint8_t { kArgument, kResult, kInternal };
struct SavedTensor {
  ValueId value;
  SavedRole role = SavedRole::kInternal;
  uint16_t index = 0;  // which tensor argument (schema position) or which flat result; 0 for kInternal
};

struct Node {
  TargetId target;  // invalid: erased
  RegionId region;
  PhaseId phase;
  NodeFlags flags;
  NodeId previous;
  NodeId next;
  Run arguments;    // one per schema argument
  Run results;      // one per schema return
  Run saved;        // SavedTensors
  Run frees;        // StorageIds that died after this node and before the next
  NodeId forward;   // backward node: the forward node it differentiates, when known
  StringId source;  // "file:line", when known
};

struct TensorMeta {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::span<const int64_t> sizes;    // elements
  std::span<const int64_t> strides;  // elements, same length as sizes
  StorageId storage;
  int64_t offset = 0;  // elements
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  c10::Layout layout = c10::Layout::Strided;
  bool requires_grad = false;
};

}  // namespace shadowgraph
