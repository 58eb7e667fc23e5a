// Plain records of a graph, and Arena<T>: an append-only array of fixed-size chunks whose elements never move. It
// returns single elements (push) or runs of contiguous elements (push_run), both identified by a 32-bit index.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/ids.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

// `size` contiguous elements of an arena, starting at `offset`.
struct Run {
  uint32_t offset = 0;
  uint32_t size = 0;
};

// Allocates uninitialized memory for an arena, to be released with std::free. Large blocks use huge pages if available.
// Throws std::bad_alloc.
void* allocate_arena_block(size_t bytes);

template <class T>
class Arena {
  static_assert(std::is_trivially_copyable_v<T>, "an arena never runs destructors");
  static_assert(alignof(T) <= alignof(std::max_align_t));

 public:
  // Small, so that the dozen arenas of a small graph waste little memory.
  static constexpr uint32_t kChunkBits = 7;
  static constexpr uint32_t kChunk = 1U << kChunkBits;

  Arena() = default;
  Arena(Arena&&) noexcept = default;
  Arena& operator=(Arena&&) noexcept = default;
  // Copies into a single block, so that runs longer than a chunk remain contiguous.
  Arena(const Arena& other) {
    add_block(static_cast<uint32_t>(other.chunks_.size()));
    for (uint32_t at = 0; at < other.size_; at += kChunk) {
      std::copy_n(other.chunks_[at >> kChunkBits], std::min(kChunk, other.size_ - at), chunks_[at >> kChunkBits]);
    }
    size_ = other.size_;
  }
  Arena& operator=(const Arena& other) {
    if (this != &other) *this = Arena(other);
    return *this;
  }

  T& operator[](uint32_t i) { return chunks_[i >> kChunkBits][i & (kChunk - 1)]; }
  const T& operator[](uint32_t i) const { return chunks_[i >> kChunkBits][i & (kChunk - 1)]; }
  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  uint32_t push(const T& element) {
    if (size_ == capacity()) add_chunks(1);
    (*this)[size_] = element;
    return size_++;
  }

  // Appends `count` contiguous, value-initialized elements.
  Run push_run(uint32_t count) {
    const Run run = push_room(count);
    std::ranges::fill(view(run), T{});
    return run;
  }
  Run push_run(std::span<const T> elements) {
    const Run run = push_room(static_cast<uint32_t>(elements.size()));
    if (run.size != 0) std::copy(elements.begin(), elements.end(), &(*this)[run.offset]);
    return run;
  }
  // Removes `run`, which must be the most recently added run.
  void pop_run(Run run) {
    if (run.size != 0 && run.offset + run.size == size_) size_ = run.offset;
  }

  std::span<T> view(Run run) { return run.size == 0 ? std::span<T>() : std::span<T>(&(*this)[run.offset], run.size); }
  std::span<const T> view(Run run) const {
    return run.size == 0 ? std::span<const T>() : std::span<const T>(&(*this)[run.offset], run.size);
  }
  size_t allocated_bytes() const { return size_t{capacity()} * sizeof(T) + chunks_.capacity() * sizeof(T*); }

 private:
  struct Free {
    void operator()(T* block) const { std::free(block); }
  };
  uint32_t capacity() const { return static_cast<uint32_t>(chunks_.size()) << kChunkBits; }

  Run push_room(uint32_t count) {
    if (count == 0) return {};
    if (count > capacity() - size_) {
      // The rest of the last block is left unused.
      size_ = capacity();
      add_chunks((count + kChunk - 1) >> kChunkBits);
    }
    const uint32_t offset = size_;
    size_ += count;
    return {offset, count};
  }

  // Adds at least `count` chunks in one block. Large arenas (more than a hundred thousand elements) grow by an eighth:
  // small blocks would need many calls of malloc and could not use huge pages.
  void add_chunks(uint32_t count) {
    const auto held = static_cast<uint32_t>(chunks_.size());
    add_block(held < 1024 ? count : std::max(count, held / 8));
  }
  void add_block(uint32_t count) {
    if (count == 0) return;
    T* block = static_cast<T*>(allocate_arena_block((size_t{count} << kChunkBits) * sizeof(T)));
    blocks_.emplace_back(block);
    for (uint32_t i = 0; i < count; ++i) chunks_.push_back(block + (size_t{i} << kChunkBits));
  }

  std::vector<T*> chunks_;
  std::vector<std::unique_ptr<T, Free>> blocks_;
  uint32_t size_ = 0;
};

enum class ArgumentKind : uint8_t {
  kNone,       // None, or an undefined tensor
  kValue,      // a Value of this graph
  kInt,        // int; also SymInt, ScalarType, Layout and MemoryFormat as integers (the schema tells them apart)
  kFloat,      // double
  kBool,       //
  kComplex,    // two doubles in the graph's float pool
  kString,     //
  kDevice,     //
  kIntList,    // int64s in the graph's int pool
  kList,       // Arguments in the graph's argument pool: lists of tensors, optionals, floats, bools, strings, lists
  kConstant,   // a tensor held by the graph
  kGenerator,  // a random number generator, identified by its device; its state is not recorded
  kOpaque,     // an object without text form (Python or custom class object); printed as its type, cannot be replayed
};

// Maximum nesting depth of lists, enforced by the parser and the verifier to bound recursion.
constexpr int kMaxListDepth = 32;

// One argument or result of a node, by schema position. Results are kNone (an undefined tensor), kValue or kList.
struct Argument {
  struct ValueRef {
    ValueId value;
    uint32_t use;  // index in the use arena for an input of a node, otherwise kNoUse
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
  static Argument of_int(int64_t v) { return {ArgumentKind::kInt, v}; }
  static Argument of_float(double v) { return {ArgumentKind::kFloat, v}; }
  static Argument of_bool(bool v) { return {ArgumentKind::kBool, v}; }
  static Argument of_value(ValueId v) { return {ArgumentKind::kValue, ValueRef{v, kNoUse}}; }
  static Argument of_string(StringId v) { return {ArgumentKind::kString, v}; }
  static Argument of_constant(ConstantId v) { return {ArgumentKind::kConstant, v}; }
  static Argument of_run(ArgumentKind kind, Run v) { return {kind, v}; }
  static Argument of_device(c10::Device v, ArgumentKind kind = ArgumentKind::kDevice) {
    Argument a(kind, int64_t{0});
    a.device_type = static_cast<int8_t>(v.type());
    a.device_index = v.index();
    return a;
  }
  c10::Device device() const { return {static_cast<c10::DeviceType>(device_type), device_index}; }

 private:
  // Bytes of the union beyond a smaller member are zero.
  Argument(ArgumentKind k, int64_t v) : kind(k), i(v) {}
  Argument(ArgumentKind k, double v) : kind(k), d(v) {}
  Argument(ArgumentKind k, ValueRef v) : kind(k), ref(v) {}
  Argument(ArgumentKind k, Run v) : kind(k), run(v) {}
  Argument(ArgumentKind k, bool v) : Argument(k, int64_t{0}) { b = v; }
  Argument(ArgumentKind k, StringId v) : Argument(k, int64_t{0}) { string = v; }
  Argument(ArgumentKind k, ConstantId v) : Argument(k, int64_t{0}) { constant = v; }
};
static_assert(sizeof(Argument) == 16);

enum class ValueKind : uint8_t { kTensor, kInt, kFloat, kBool };
constexpr auto enum_names(ValueKind) { return names_in_order<ValueKind>("tensor", "int", "float", "bool"); }

// A tensor's geometry, or a scalar that a node read on the host; contents: shadowgraph/graph/analysis.h.
struct Value {
  ValueKind kind = ValueKind::kTensor;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Layout layout = c10::Layout::Strided;
  c10::DeviceType device_type = c10::DeviceType::CPU;
  c10::DeviceIndex device_index = -1;
  bool requires_grad = false;
  uint16_t rank = 0;
  uint32_t dims = 0;   // first of 2 * rank int64s in the graph's int pool: sizes, then strides, in elements
  StorageId storage;   // invalid for scalars
  int64_t offset = 0;  // storage offset in elements
  NodeId producer;
  uint32_t first_use = Argument::kNoUse;
  uint32_t last_use = Argument::kNoUse;

  c10::Device device() const { return {device_type, device_index}; }
};

// A use of a value by an argument. The uses of a value form a doubly linked list in order of creation.
struct Use {
  NodeId user;
  ValueId value;
  uint32_t previous = Argument::kNoUse;
  uint32_t next = Argument::kNoUse;
};

enum class StorageKind : uint8_t {
  kParameter,
  kBuffer,
  kInput,
  kConstant,
  kActivation,  // created in forward and alive when backward starts, e.g. saved for backward
  kGradient,    // a parameter's accumulated gradient
  kOptimizerState,
  kTemporary,  // everything else
};
constexpr int kStorageKindCount = 8;
constexpr auto enum_names(StorageKind) {
  return names_in_order<StorageKind>("parameter", "buffer", "input", "constant", "activation", "gradient",
                                     "optimizer_state", "temporary");
}

// One allocation, with the lifetime observed while the program ran. `born` is the node that allocated it, or a
// placeholder if it existed before. `freed_after` is the node after which it was freed.
struct Storage {
  int64_t bytes = 0;
  c10::DeviceType device_type = c10::DeviceType::CPU;
  c10::DeviceIndex device_index = -1;
  StorageKind kind = StorageKind::kTemporary;
  NodeId born;
  NodeId freed_after;           // invalid: still allocated at the end of the capture
  uint32_t place_in_frees = 0;  // position in the list of that node; maintained by Graph

  c10::Device device() const { return {device_type, device_index}; }
};

enum class RegionKind : uint8_t { kRoot, kModule, kComposite, kCheckpoint, kScope };
constexpr auto enum_names(RegionKind) {
  return names_in_order<RegionKind>("root", "module", "composite", "checkpoint", "scope");
}

// A scope that the program entered and left. Regions form a tree under the root (index 0).
struct Region {
  RegionKind kind = RegionKind::kRoot;
  bool inferred = false;  // a module path deduced from parameter ownership, without a ModuleScope
  RegionId parent;
  StringId name;        // module: path; composite: operator name; others: label
  StringId class_name;  // module: C++ class
  uint32_t call = 0;    // number of earlier entries with the same (parent, name)
  TargetId target;      // composite: the operator
  Run arguments;        // composite: the arguments of the call
};

// Modes that were active while the node ran.
struct NodeFlags {
  bool grad_mode = false;
  bool inference_mode = false;
  bool autocast_cpu = false;
  bool autocast_cuda = false;
  friend bool operator==(const NodeFlags&, const NodeFlags&) = default;
};

// A tensor that autograd saves for the backward of this node.
enum class SavedRole : uint8_t { kArgument, kResult, kInternal };
struct SavedTensor {
  ValueId value;
  SavedRole role = SavedRole::kInternal;
  uint16_t index = 0;  // tensor argument (schema position) or flat result; 0 for kInternal
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
  Run frees;        // StorageIds freed after this node and before the next
  NodeId forward;   // for a backward node: the forward node that it differentiates, if known
  StringId source;  // "file:line", if known
};

// Geometry, device and storage of a new tensor value.
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
