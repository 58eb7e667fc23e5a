// Compares two graphs by canonical numbers. Both are numbered in program order, so numbers agree wherever the graphs do
// up to there, and ids, pools and interning orders do not matter.
//
// This is the equality that the text form keeps: parse(to_text(g)) has no difference from g. It takes one walk over
// both graphs and stops at the first node that differs; GraphDiff (diff.cpp) aligns what comes after.
#include <fmt/format.h>

#include "ir/text/tensor_bytes.h"
#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"
#include "support/same_bits.h"

namespace shadowgraph {
namespace {

template <class T>
bool same_span(std::span<const T> a, std::span<const T> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

class Comparison {
 public:
  Comparison(const Graph& a, const Graph& b)
      : a_(a), b_(b), na_(Numbering::of(a)), nb_(Numbering::of(b)), targets_(a.target_count()) {}
  std::optional<std::string> run();

 private:
  template <class I>
  bool same_number(I a, I b) const {
    return na_.of(a) == nb_.of(b);
  }
  bool same_text(StringId a, StringId b) const { return a_.text_or_empty(a) == b_.text_or_empty(b); }
  bool same_target(TargetId a, TargetId b);
  bool same_arguments(std::span<const Argument> a, std::span<const Argument> b, int depth);
  bool same_argument(const Argument& a, const Argument& b, int depth);
  bool same_value(ValueId a, ValueId b) const;
  bool same_constant(ConstantId a, ConstantId b) const;
  // What is not of a node: metadata, storages, regions, constants, guards.
  std::optional<std::string> heads();
  // What differs between two nodes, or nullptr.
  const char* difference_of(NodeId a, NodeId b);

  const Graph& a_;
  const Graph& b_;
  const Numbering na_;
  const Numbering nb_;
  std::vector<TargetId> targets_;  // the target of b that was found equal to this one of a
};

// Targets are equal by schema text. Found pairs are remembered, so that texts are compared once a target, not once a
// node.
bool Comparison::same_target(TargetId a, TargetId b) {
  const bool a_valid = a.index < a_.target_count();
  if (!a_valid || b.index >= b_.target_count()) return a_valid == (b.index < b_.target_count());
  if (targets_[a.index] == b) return true;
  if (a_.target(a).kind() != b_.target(b).kind() || a_.target(a).schema_text() != b_.target(b).schema_text()) {
    return false;
  }
  targets_[a.index] = b;
  return true;
}

// Values are equal by number, constants by number (their contents are compared once, in heads()), floats by bits.
bool Comparison::same_argument(const Argument& a, const Argument& b, int depth) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case ArgumentKind::kNone:
      return true;
    case ArgumentKind::kValue:
      return same_number(a.ref.value, b.ref.value);
    case ArgumentKind::kInt:
      return a.i == b.i;
    case ArgumentKind::kFloat:
      return same_bits(a.d, b.d);
    case ArgumentKind::kBool:
      return a.b == b.b;
    case ArgumentKind::kComplex: {
      const auto x = a_.complex_parts(a);
      const auto y = b_.complex_parts(b);
      return x.size() == 2 && y.size() == 2 && same_bits(x[0], y[0]) && same_bits(x[1], y[1]);
    }
    case ArgumentKind::kString:
    case ArgumentKind::kOpaque:
      return same_text(a.string, b.string);
    case ArgumentKind::kDevice:
    case ArgumentKind::kGenerator:
      return a.device() == b.device();
    case ArgumentKind::kIntList:
      return same_span(a_.ints(a), b_.ints(b));
    case ArgumentKind::kList:
      return depth < kMaxListDepth && same_arguments(a_.list(a), b_.list(b), depth + 1);
    case ArgumentKind::kConstant:
      return same_number(a.constant, b.constant);
  }
  return false;
}

bool Comparison::same_arguments(std::span<const Argument> a, std::span<const Argument> b, int depth) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Argument& x, const Argument& y) { return same_argument(x, y, depth); });
}

// Geometry, place and flags must agree; the storage by its number, which is by first appearance.
bool Comparison::same_value(ValueId a, ValueId b) const {
  const Value& x = a_.value(a);
  const Value& y = b_.value(b);
  if (x.kind != y.kind) return false;
  if (x.kind != ValueKind::kTensor) return true;
  return x.dtype == y.dtype && x.layout == y.layout && x.device() == y.device() && x.requires_grad == y.requires_grad &&
         same_span(a_.sizes(a), b_.sizes(b)) && same_span(a_.strides(a), b_.strides(b)) &&
         same_number(x.storage, y.storage) && x.storage.valid() == y.storage.valid() && x.offset == y.offset;
}

// Constants without readable contents count as equal: nothing of them is known.
bool Comparison::same_constant(ConstantId a, ConstantId b) const {
  const auto x = tensor_bytes(a_.constant(a));
  const auto y = tensor_bytes(b_.constant(b));
  if (!x || !y) return !x && !y;
  return x->dtype == y->dtype && x->sizes == y->sizes && x->strides == y->strides && x->bytes == y->bytes;
}

// Compares what is not a node. It comes last, although it is printed first: a differing node says more.
std::optional<std::string> Comparison::heads() {
  if (a_.metadata != b_.metadata) return "the metadata differ";
  if (na_.storages().size() != nb_.storages().size()) {
    return fmt::format("{} storages against {}", na_.storages().size(), nb_.storages().size());
  }
  for (size_t i = 0; i < na_.storages().size(); ++i) {
    const Storage& x = a_.storage(na_.storages()[i]);
    const Storage& y = b_.storage(nb_.storages()[i]);
    if (x.bytes != y.bytes || x.device() != y.device() || x.kind != y.kind) {
      return fmt::format("s{} differs: {} bytes, {} against {} bytes, {} (or by device)", i, x.bytes, to_string(x.kind),
                         y.bytes, to_string(y.kind));
    }
    if (!same_number(x.born, y.born)) return fmt::format("s{} is born at another node", i);
    if (!same_number(x.freed_after, y.freed_after)) return fmt::format("s{} dies at another node", i);
  }
  if (a_.region_count() != b_.region_count()) {
    return fmt::format("{} regions against {}", a_.region_count(), b_.region_count());
  }
  for (uint32_t i = 0; i < a_.region_count(); ++i) {
    const Region& x = a_.region(RegionId(i));
    const Region& y = b_.region(RegionId(i));
    if (x.kind != y.kind || x.inferred != y.inferred || x.parent != y.parent || x.call != y.call ||
        !same_text(x.name, y.name) || !same_text(x.class_name, y.class_name) || !same_target(x.target, y.target) ||
        !same_arguments(a_.region_arguments(RegionId(i)), b_.region_arguments(RegionId(i)), 0)) {
      return fmt::format("r{} differs: {} '{}' against {} '{}'", i, to_string(x.kind), a_.text_or_empty(x.name),
                         to_string(y.kind), b_.text_or_empty(y.name));
    }
  }
  if (na_.constants().size() != nb_.constants().size()) {
    return fmt::format("{} constants against {}", na_.constants().size(), nb_.constants().size());
  }
  for (size_t i = 0; i < na_.constants().size(); ++i) {
    if (!same_constant(na_.constants()[i], nb_.constants()[i])) return fmt::format("constant c{} differs", i);
  }
  const auto same_dependency = [&](const Guard& x, const Guard& y) {
    return x.kind == y.kind && same_number(x.value, y.value) && x.dimension == y.dimension && x.observed == y.observed;
  };
  if (!std::equal(a_.guards.begin(), a_.guards.end(), b_.guards.begin(), b_.guards.end(), same_dependency)) {
    return "the guards differ";
  }
  return std::nullopt;
}

// Returns a part of a sentence, for the message; the order is the one in which a reader looks.
const char* Comparison::difference_of(NodeId a, NodeId b) {
  const Node& x = a_.node(a);
  const Node& y = b_.node(b);
  if (!same_target(x.target, y.target)) return "its target";
  if (!same_arguments(a_.arguments(a), b_.arguments(b), 0)) return "its arguments";
  if (!same_arguments(a_.results(a), b_.results(b), 0)) return "the structure of its results";
  if (x.region != y.region) return "its region";
  const auto phase = [](const Graph& graph, PhaseId id) {
    return id.index < graph.phase_count() ? std::string_view(graph.phase_name(id)) : std::string_view("?");
  };
  if (phase(a_, x.phase) != phase(b_, y.phase)) return "its phase";
  if (x.flags.grad_mode != y.flags.grad_mode || x.flags.inference_mode != y.flags.inference_mode ||
      x.flags.autocast_cpu != y.flags.autocast_cpu || x.flags.autocast_cuda != y.flags.autocast_cuda) {
    return "its modes";
  }
  if (!same_number(x.forward, y.forward)) return "the forward node it belongs to";
  if (!same_text(x.source, y.source)) return "its source line";
  const auto saved_a = a_.saved(a);
  const auto saved_b = b_.saved(b);
  const auto same_saved = [&](const SavedTensor& p, const SavedTensor& q) {
    return p.role == q.role && p.index == q.index && same_number(p.value, q.value);
  };
  if (!std::equal(saved_a.begin(), saved_a.end(), saved_b.begin(), saved_b.end(), same_saved)) {
    return "what is saved for backward";
  }
  if (a_.has_notes(a) || b_.has_notes(b)) {
    std::vector<std::pair<std::string_view, std::string_view>> notes_a, notes_b;
    a_.for_each_note(a, [&](std::string_view key, std::string_view value) { notes_a.emplace_back(key, value); });
    b_.for_each_note(b, [&](std::string_view key, std::string_view value) { notes_b.emplace_back(key, value); });
    if (notes_a != notes_b) return "its notes";
  }
  const auto frees_a = a_.frees(a);
  const auto frees_b = b_.frees(b);
  const auto same_storage = [&](StorageId p, StorageId q) { return same_number(p, q); };
  if (!std::equal(frees_a.begin(), frees_a.end(), frees_b.begin(), frees_b.end(), same_storage)) {
    return "what is freed after it";
  }
  return nullptr;
}

// Walks both graphs in step, and shows both lines of the first pair that differs.
std::optional<std::string> Comparison::run() {
  const size_t count = std::min(na_.nodes().size(), nb_.nodes().size());
  for (size_t i = 0; i < count; ++i) {
    const NodeId a = na_.nodes()[i];
    const NodeId b = nb_.nodes()[i];
    const char* what = difference_of(a, b);
    // Results have the same structure here, so values can be walked side by side.
    if (what == nullptr) {
      std::vector<ValueId> values;
      b_.for_each_output(b, [&](ValueId v) { values.push_back(v); });
      size_t next = 0;
      a_.for_each_output(a, [&](ValueId v) {
        if (!same_value(v, values[next++])) what = "a result";
      });
    }
    if (what != nullptr) {
      return fmt::format("n{} differs in {}:\n  {}\n  {}", i, what, to_text(a_, a, na_), to_text(b_, b, nb_));
    }
  }
  if (na_.nodes().size() != nb_.nodes().size()) {
    const bool more = na_.nodes().size() > count;
    return fmt::format("{} nodes against {}; the first that has no partner:\n  {}", na_.nodes().size(),
                       nb_.nodes().size(),
                       more ? to_text(a_, na_.nodes()[count], na_) : to_text(b_, nb_.nodes()[count], nb_));
  }
  return heads();
}

}  // namespace

std::optional<std::string> first_difference(const Graph& a, const Graph& b) { return Comparison(a, b).run(); }

}  // namespace shadowgraph
