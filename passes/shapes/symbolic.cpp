// Answers for one size after another what symbolic_fit.cpp has fitted.
//
// Some thousand numbers of a graph vary with the batch, in some dozen ways. So polynomials are evaluated once each, and
// their values written to all places where they stand. An instance keeps the addresses of these places, which stay
// good because arenas never move. A size then takes a loop over the varying numbers; a sweep over 500 batches takes a
// copy of the graph and 500 such loops.
#include <algorithm>

#include "passes/shapes/graph_walk.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/passes/polynomial.h"
#include "shadowgraph/passes/symbolic_graph.h"
#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace shadowgraph {
namespace {

// Collects the addresses of the wanted numbers, in the order in which GraphWalk shows them.
struct AddressSink {
  std::span<const uint32_t> wanted_integers;  // ascending
  // Indices are wanted in ascending order, so one cursor is enough.
  std::span<const uint32_t> wanted_reals;
  std::vector<const int64_t*> integers;
  std::vector<const double*> reals;
  uint32_t integer_index = 0;
  uint32_t real_index = 0;

  void node(NodeId) {}
  void token(uint64_t) {}
  void value(ValueId) {}
  void storage(StorageId) {}
  void integer(const char*, uint32_t, const int64_t& value) {
    if (integers.size() < wanted_integers.size() && wanted_integers[integers.size()] == integer_index) {
      integers.push_back(&value);
    }
    ++integer_index;
  }
  void real(const char*, uint32_t, const double& value) {
    if (reals.size() < wanted_reals.size() && wanted_reals[reals.size()] == real_index) reals.push_back(&value);
    ++real_index;
  }
  void text(const std::string&) {}
};

}  // namespace

SymbolicGraph::~SymbolicGraph() = default;
SymbolicGraph::SymbolicGraph(SymbolicGraph&&) noexcept = default;
SymbolicGraph& SymbolicGraph::operator=(SymbolicGraph&&) noexcept = default;

// Says why a size is not answered. Sizes below the smallest captured may take other paths; those between the steps may
// round.
std::optional<std::string> SymbolicGraph::refusal(const NamedSizes& sizes) const {
  for (const auto& [name, size] : sizes) {
    if (std::ranges::none_of(dimensions_, [&](const Dimension& d) { return d.name == name; })) {
      return "there is no size named '" + name + "'";
    }
  }
  for (const Dimension& dimension : dimensions_) {
    const auto found = sizes.find(dimension.name);
    if (found == sizes.end()) return "'" + dimension.name + "' is not given";
    const int64_t size = found->second;
    const std::string what = dimension.name + " " + std::to_string(size);
    if (size < dimension.smallest) {
      return what + " is less than the smallest captured, " + std::to_string(dimension.smallest) +
             ": small sizes, 0 and 1 above all, may take other paths";
    }
    if ((size - dimension.smallest) % dimension.step != 0) {
      return what + " is none of those that the captures speak of: " + std::to_string(dimension.smallest) +
             " and every " + std::to_string(dimension.step) + " from there";
    }
  }
  return std::nullopt;
}

std::vector<int64_t> SymbolicGraph::values_at(const NamedSizes& sizes) const {
  if (const auto why_not = refusal(sizes)) throw SymbolicError(*why_not);
  std::vector<int64_t> point;
  for (const auto& [name, size] : sizes) point.push_back(size);
  std::vector<int64_t> values;
  values.reserve(polynomials_.size());
  for (const Polynomial& polynomial : polynomials_) values.push_back(polynomial.evaluate(point));
  return values;
}

Graph SymbolicGraph::instantiate(const NamedSizes& sizes) const {
  Instance instance(*this);
  instance.at(sizes);
  return std::move(instance.graph_);
}

std::optional<std::string> SymbolicGraph::difference_from(const NamedSizes& sizes, const Graph& capture) const {
  return first_difference(instantiate(sizes), capture);
}

// Writes numbers in place, so that another size costs a loop over the varying numbers, not a copy of the graph. The
// graph is this object's own and not const, so the casts are allowed. Graph shows numbers read-only because most edits
// must keep lists of uses and of storages right; these touch neither.
SymbolicGraph::Instance::Instance(const SymbolicGraph& symbolic) : symbolic_(symbolic), graph_(clone(symbolic.base_)) {
  for (const auto& [key, text] : graph_.metadata.lines()) metadata_keys_.push_back(key);
  // Values that look alike in the first capture share their sizes in memory, and may be different ones elsewhere.
  for (const NodeId node : symbolic.base_.nodes()) {
    symbolic.base_.for_each_output(node, [&](ValueId value) {
      const uint32_t first = symbolic.value_numbers_[value];
      const auto varying = std::ranges::lower_bound(symbolic.integers_, first, {}, &Varying::index);
      const uint32_t end = first + 2U * symbolic.base_.value(value).rank;
      if (varying != symbolic.integers_.end() && varying->index < end) graph_.own_dims(value);
    });
  }
  const auto indices = [](const std::vector<Varying>& varying) {
    std::vector<uint32_t> wanted;
    wanted.reserve(varying.size());
    for (const Varying& number : varying) wanted.push_back(number.index);
    return wanted;
  };
  const std::vector<uint32_t> integers = indices(symbolic.integers_);
  const std::vector<uint32_t> reals = indices(symbolic.reals_);
  AddressSink sink{.wanted_integers = integers, .wanted_reals = reals};
  // The addresses stay good: arenas never move what is in them.
  GraphWalk(std::as_const(graph_), sink).run();
  TORCH_INTERNAL_ASSERT(sink.integers.size() == integers.size() && sink.reals.size() == reals.size(),
                        "a copy of the graph has other numbers");
  for (const int64_t* address : sink.integers) integers_.push_back(const_cast<int64_t*>(address));
  for (const double* address : sink.reals) reals_.push_back(const_cast<double*>(address));
}

const Graph& SymbolicGraph::Instance::at(const NamedSizes& sizes) {
  const std::vector<int64_t> values = symbolic_.values_at(sizes);
  for (size_t i = 0; i < integers_.size(); ++i) *integers_[i] = values[symbolic_.integers_[i].polynomial];
  for (size_t i = 0; i < reals_.size(); ++i) {
    const auto value = static_cast<double>(values[symbolic_.reals_[i].polynomial]);
    *reals_[i] = symbolic_.reals_[i].inverse ? 1.0 / value : value;
  }
  for (const VaryingText& varying : symbolic_.texts_) {
    std::string text = varying.pieces[0];
    for (size_t i = 0; i < varying.polynomials.size(); ++i) {
      text += std::to_string(values[varying.polynomials[i]]) + varying.pieces[i + 1];
    }
    if (varying.index < metadata_keys_.size()) {
      graph_.metadata.set(metadata_keys_[varying.index], std::move(text));
    } else {
      graph_.guards[varying.index - metadata_keys_.size()].observed = std::move(text);
    }
  }
  return graph_;
}

// ---- Questions

// A number that does not vary is a constant polynomial.
Polynomial SymbolicGraph::number(uint32_t index, int64_t constant) const {
  const auto varying = std::ranges::lower_bound(integers_, index, {}, &Varying::index);
  if (varying != integers_.end() && varying->index == index) return polynomials_[varying->polynomial];
  return Polynomial::constant(constant);
}

Polynomial SymbolicGraph::size(ValueId value, size_t dimension) const {
  return number(value_numbers_[value] + static_cast<uint32_t>(dimension), base_.sizes(value)[dimension]);
}
Polynomial SymbolicGraph::stride(ValueId value, size_t dimension) const {
  const uint32_t first = value_numbers_[value] + base_.value(value).rank;
  return number(first + static_cast<uint32_t>(dimension), base_.strides(value)[dimension]);
}
Polynomial SymbolicGraph::offset(ValueId value) const {
  return number(value_numbers_[value] + 2U * base_.value(value).rank, base_.value(value).offset);
}
Polynomial SymbolicGraph::bytes(StorageId storage) const {
  return number(storage_numbers_[storage], base_.storage(storage).bytes);
}

std::string SymbolicGraph::type_text(ValueId value) const {
  std::string plain = shadowgraph::type_text(base_, value);
  const size_t bracket = plain.find('[');
  if (base_.value(value).kind != ValueKind::kTensor || bracket == std::string::npos) return plain;
  std::vector<std::string> names;
  for (const Dimension& dimension : dimensions_) names.push_back(dimension.name);
  std::string text = plain.substr(0, bracket + 1);
  for (size_t i = 0; i < base_.sizes(value).size(); ++i) text += (i == 0 ? "" : ",") + size(value, i).to_text(names);
  return text + "]";
}

std::string SymbolicGraph::to_text() const {
  const Numbering numbering = Numbering::of(base_);
  std::vector<std::string> names;
  std::string text = "sizes";
  for (const Dimension& dimension : dimensions_) {
    names.push_back(dimension.name);
    text +=
        " " + dimension.name + " = " + std::to_string(dimension.smallest) + " + k*" + std::to_string(dimension.step);
  }
  text += "\n";
  for (const StorageId id : numbering.storages()) {
    const Polynomial polynomial = bytes(id);
    if (polynomial.is_constant()) continue;
    text += "s" + std::to_string(numbering.of(id)) + " = " + polynomial.to_text(names) + "\n";
  }
  for (const NodeId node : numbering.nodes()) {
    std::string results;
    base_.for_each_output(node, [&](ValueId value) {
      results += c10::str(results.empty() ? "%" : ", %", numbering.of(value), " ", type_text(value));
    });
    text += "n" + std::to_string(numbering.of(node)) + ": " + base_.target(node).name() + " -> " + results + "\n";
  }
  return text;
}

}  // namespace shadowgraph
