// Everything that a graph says, in one order: structure as tokens, and the numbers that may differ between captures of
// one program at different sizes. Internal to shadowgraph/passes/symbolic_graph.h.
//
// A sink is called
//     node(NodeId)                             what follows is about this node; about none of them, at the end
//     token(uint64_t)                          structure: equal programs give equal tokens
//     value(ValueId), storage(StorageId)       whose numbers come next
//     integer(what, which, const int64_t&)     a size, stride, offset, byte count or integer argument
//     real(what, which, const double&)         a floating-point argument
//     text(const std::string&)                 a text that may hold sizes: metadata, then guards
// where `what` and `which` are for messages: "size", 1. Values, storages and nodes appear by their canonical numbers,
// and all that shadowgraph/verify.h compares is shown.
#pragma once

#include <bit>
#include <functional>
#include <string_view>

#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

template <class Sink>
class GraphWalk {
 public:
  GraphWalk(const Graph& graph, Sink& sink) : graph_(graph), sink_(sink), numbering_(Numbering::of(graph)) {}

  // Nodes first, so that the first difference of two programs is a node.
  void run() {
    for (const NodeId id : numbering_.nodes()) node(id);
    sink_.node(NodeId());
    for (const auto& [key, value] : graph_.metadata.lines()) {
      hash(key);
      sink_.text(value);
    }
    sink_.token(graph_.guards.size());
    for (const Guard& guard : graph_.guards) {
      sink_.token(static_cast<uint64_t>(guard.kind));
      sink_.token(numbering_.of(guard.value));
      sink_.token(static_cast<uint64_t>(guard.dimension));
      sink_.text(guard.observed);
    }
    sink_.token(graph_.region_count());
    for (uint32_t i = 0; i < graph_.region_count(); ++i) region(RegionId(i));
    sink_.token(numbering_.storages().size());
    for (const StorageId id : numbering_.storages()) storage(id);
  }

 private:
  void hash(std::string_view text) { sink_.token(std::hash<std::string_view>{}(text)); }
  // Strings and targets are hashed once each, as nodes repeat them.
  void hash(StringId id) {
    if (id.index >= strings_.size()) strings_.resize(graph_.string_count(), 0);
    if (id.index >= strings_.size()) {  // never set: as ""
      hash(std::string_view());
      return;
    }
    uint64_t& known = strings_[id.index];
    if (known == 0) known = std::hash<std::string_view>{}(graph_.text(id));
    sink_.token(known);
  }
  void target(TargetId id) {
    if (!id.valid()) {
      sink_.token(0);
      return;
    }
    if (id.index >= targets_.size()) targets_.resize(graph_.target_count(), 0);
    uint64_t& known = targets_[id.index];
    if (known == 0) known = std::hash<std::string>{}(graph_.target(id).schema_text());
    sink_.token(known);
  }

  void storage(StorageId id) {
    const Storage& s = graph_.storage(id);
    sink_.token(static_cast<uint64_t>(s.kind) << 32 | static_cast<uint64_t>(static_cast<uint8_t>(s.device_type)) << 8 |
                static_cast<uint8_t>(s.device_index));
    sink_.token(numbering_.of(s.born));
    sink_.token(numbering_.of(s.freed_after));
    sink_.storage(id);
    sink_.integer("bytes of a storage", numbering_.of(id), s.bytes);
  }

  void region(RegionId id) {
    const Region& r = graph_.region(id);
    sink_.token(static_cast<uint64_t>(r.kind) << 1 | (r.inferred ? 1 : 0));
    sink_.token(r.parent.index);
    hash(r.name);
    hash(r.class_name);
    sink_.token(r.call);
    target(r.target);
    arguments(graph_.region_arguments(id), "argument of a region");
  }

  void node(NodeId id) {
    const Node& n = graph_.node(id);
    sink_.node(id);
    target(n.target);
    arguments(graph_.arguments(id), "argument");
    results(graph_.results(id));
    sink_.token(n.region.index);
    hash(graph_.phase_name(n.phase));
    sink_.token((n.flags.grad_mode ? 1U : 0U) | (n.flags.inference_mode ? 2U : 0U) | (n.flags.autocast_cpu ? 4U : 0U) |
                (n.flags.autocast_cuda ? 8U : 0U));
    sink_.token(n.forward.valid() ? numbering_.of(n.forward) : Numbering::kNone);
    hash(n.source);
    for (const SavedTensor& saved : graph_.saved(id)) {
      sink_.token(static_cast<uint64_t>(saved.role) << 32 | saved.index);
      sink_.token(numbering_.of(saved.value));
    }
    sink_.token(graph_.saved(id).size());
    for (const StorageId freed : graph_.frees(id)) sink_.token(numbering_.of(freed));
    sink_.token(graph_.frees(id).size());
    graph_.for_each_note(id, [&](std::string_view key, std::string_view value) {
      hash(key);
      hash(value);
    });
  }

  void arguments(std::span<const Argument> arguments, const char* what) {
    sink_.token(arguments.size());
    for (uint32_t i = 0; i < arguments.size(); ++i) argument(arguments[i], what, i);
  }

  void argument(const Argument& argument, const char* what, uint32_t which) {
    sink_.token(static_cast<uint64_t>(argument.kind));
    switch (argument.kind) {
      case ArgumentKind::kNone:
        break;
      case ArgumentKind::kValue:
        sink_.token(numbering_.of(argument.ref.value));
        break;
      case ArgumentKind::kInt:
        sink_.integer(what, which, argument.i);
        break;
      case ArgumentKind::kFloat:
        sink_.real(what, which, argument.d);
        break;
      case ArgumentKind::kBool:
        sink_.token(argument.b ? 1 : 0);
        break;
      case ArgumentKind::kComplex:
        for (const double part : graph_.complex_parts(argument)) sink_.token(std::bit_cast<uint64_t>(part));
        break;
      case ArgumentKind::kString:
      case ArgumentKind::kOpaque:
        hash(argument.string);
        break;
      case ArgumentKind::kDevice:
      case ArgumentKind::kGenerator:
        sink_.token(static_cast<uint64_t>(static_cast<uint8_t>(argument.device_type)) << 8 |
                    static_cast<uint8_t>(argument.device_index));
        break;
      case ArgumentKind::kIntList: {
        const auto ints = graph_.ints(argument);
        sink_.token(ints.size());
        for (const int64_t& element : ints) sink_.integer(what, which, element);
        break;
      }
      case ArgumentKind::kList:
        arguments(graph_.list(argument), what);
        break;
      case ArgumentKind::kConstant:
        constant(argument.constant);
        break;
    }
  }

  // Contents count by their bytes; | 1 keeps 0 for "not yet".
  void constant(ConstantId id) {
    if (constants_[id] == 0) {
      std::string content = "unreadable";
      if (const auto readable = tensor_bytes(graph_.constant(id))) {
        content = c10::toString(readable->dtype);
        for (const int64_t size : readable->sizes) content += "," + std::to_string(size);
        content.append(readable->bytes.begin(), readable->bytes.end());
      }
      constants_[id] = std::hash<std::string>{}(content) | 1;
    }
    sink_.token(constants_[id]);
  }

  void results(std::span<const Argument> results) {
    sink_.token(results.size());
    for (const Argument& result : results) {
      sink_.token(static_cast<uint64_t>(result.kind));
      if (result.kind == ArgumentKind::kList) this->results(graph_.list(result));
      if (result.kind == ArgumentKind::kValue) value(result.ref.value);
    }
  }

  void value(ValueId id) {
    const Value& v = graph_.value(id);
    const auto byte = [](auto narrow) { return static_cast<uint64_t>(static_cast<uint8_t>(narrow)); };
    sink_.token(byte(v.kind) | byte(v.dtype) << 8 | byte(v.layout) << 16 | byte(v.device_type) << 24 |
                byte(v.device_index) << 32 | uint64_t{v.requires_grad} << 40 | uint64_t{v.rank} << 48);
    sink_.token(numbering_.of(v.storage));
    sink_.value(id);
    if (v.kind != ValueKind::kTensor) return;
    uint32_t which = 0;
    for (const int64_t& size : graph_.sizes(id)) sink_.integer("size", which++, size);
    which = 0;
    for (const int64_t& stride : graph_.strides(id)) sink_.integer("stride", which++, stride);
    sink_.integer("offset", 0, v.offset);
  }

  const Graph& graph_;
  Sink& sink_;
  const Numbering numbering_;
  std::vector<uint64_t> strings_;  // hashes, 0: not yet
  std::vector<uint64_t> targets_;
  IdMap<ConstantId, uint64_t> constants_;
};

}  // namespace shadowgraph
