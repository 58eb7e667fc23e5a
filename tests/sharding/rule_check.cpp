#include "tests/sharding/rule_check.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <optional>
#include <random>

#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/simulate.h"
#include "sharding/rules/factor_analysis.h"
#include "tests/sharding/node_runner.h"
#include "tests/sharding/whole_strategies.h"

namespace shadowgraph {
namespace {

using Tensors = std::vector<at::Tensor>;

// Integer-valued, so that sums are exact in any order.
at::Tensor filled(const Graph& graph, ValueId id, bool bits, std::mt19937& random) {
  const Value& value = graph.value(id);
  const std::span<const int64_t> sizes = graph.sizes(id);
  const std::span<const int64_t> strides = graph.strides(id);
  int64_t elements = 1;
  for (size_t d = 0; d < sizes.size(); ++d) elements += (sizes[d] - 1) * strides[d];
  if (graph.numel(id) == 0) elements = 0;
  std::vector<double> numbers(static_cast<size_t>(elements));
  const bool index = bits || c10::isIntegralType(value.dtype, true);
  // 0 and 1 are valid indices for every tensor.
  std::uniform_int_distribution<int> pick(index ? 0 : -3, index ? 1 : 4);
  for (double& number : numbers) {
    number = pick(random);
    if (!index && number == 0) number = 5;
  }
  const at::Tensor flat = at::tensor(numbers, at::kDouble).to(value.dtype);
  return at::as_strided(flat, at::IntArrayRef(sizes.data(), sizes.size()),
                        at::IntArrayRef(strides.data(), strides.size()));
}

// Copies the part with the dimension order of the whole, as a kernel would allocate it.
at::Tensor in_order_of(const at::Tensor& part, const at::Tensor& whole) {
  std::vector<int64_t> order(static_cast<size_t>(whole.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return whole.stride(a) > whole.stride(b); });
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return part.permute(order).clone(at::MemoryFormat::Contiguous).permute(back);
}

// Returns partial tensors, one per coordinate of the axis, whose reduction is `whole`.
Tensors partial_parts(const at::Tensor& whole, PartialOp op, int64_t devices, std::mt19937& random) {
  const auto noise = [&](int low, int high) {
    std::vector<double> numbers(static_cast<size_t>(whole.numel()));
    std::uniform_int_distribution<int> pick(low, high);
    for (double& number : numbers) number = pick(random);
    return at::tensor(numbers, at::kDouble).to(whole.scalar_type()).reshape(whole.sizes());
  };
  Tensors parts;
  if (op == PartialOp::kSum || op == PartialOp::kAverage) {
    at::Tensor rest = op == PartialOp::kSum ? whole : at::zeros_like(whole);
    for (int64_t i = 0; i + 1 < devices; ++i) {
      parts.push_back(noise(-2, 3));
      rest = rest - parts.back();
    }
    parts.push_back(rest);
    if (op == PartialOp::kAverage) {
      for (at::Tensor& part : parts) part = part + whole;
    }
    return parts;
  }
  const at::Tensor owner = noise(0, static_cast<int>(devices) - 1);
  for (int64_t i = 0; i < devices; ++i) {
    const at::Tensor off = at::where(owner.eq(i), at::zeros_like(whole), noise(1, 3));
    parts.push_back(op == PartialOp::kMax ? whole - off : whole + off);
  }
  return parts;
}

Tensors parts_of(const at::Tensor& whole, const Layout& layout, const DeviceMesh& mesh, std::mt19937& random) {
  Tensors wholes(static_cast<size_t>(mesh.size()), whole);
  Layout cuts = layout;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (!layout[axis].is_partial()) continue;
    cuts[axis] = Placement::replicate();
    // Ranks that hold identical tensors so far get identical parts.
    std::map<const at::TensorImpl*, Tensors> split;
    const Tensors before = wholes;  // keeps the tensors that the keys point to alive
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      at::Tensor& own = wholes[static_cast<size_t>(rank)];
      auto found = split.find(own.unsafeGetTensorImpl());
      if (found == split.end()) {
        Tensors made = partial_parts(own, layout[axis].op, mesh.axes[axis].size, random);
        found = split.emplace(own.unsafeGetTensorImpl(), std::move(made)).first;
      }
      own = found->second[static_cast<size_t>(mesh.coordinate(rank, axis))];
    }
  }
  Tensors parts;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    parts.push_back(in_order_of(local_shard(wholes[static_cast<size_t>(rank)], cuts, mesh, rank), whole));
  }
  return parts;
}

bool is_same(const at::Tensor& whole, const at::Tensor& made) {
  if (whole.sizes() != made.sizes() || whole.scalar_type() != made.scalar_type()) return false;
  if (!at::isFloatingType(whole.scalar_type())) return at::equal(whole, made);
  const at::Tensor expected = whole.to(at::kDouble);
  const at::Tensor actual = made.to(at::kDouble);
  // Sums of integers are exact; other values may differ by rounding in another order.
  if (at::equal(expected, expected.round())) return at::equal(expected, actual);
  const double tolerance = whole.scalar_type() == at::kDouble ? 1e-11 : 1e-5;
  return at::allclose(expected, actual, tolerance, tolerance, /*equal_nan=*/true);
}

class CallCheck {
 public:
  CallCheck(Graph& graph, NodeId node, const ShardingRules& rules, const RuleCheckOptions& options, RuleCheck& check)
      : graph_(graph), node_(node), rules_(rules), options_(options), check_(check), random_(17), runner_(graph, node) {
    facts_ = graph.facts(node);
  }

  void run() {
    // Some operators accept probabilities only: use 0 and 1.
    Tensors given;
    for (const bool bits : {false, true}) {
      operands_.clear();
      for (const ValueId value : runner_.values()) operands_.push_back(filled(graph_, value, bits, random_));
      given = copies(operands_);
      try {
        results_ = runner_.run(given);
        break;
      } catch (const std::exception& error) {
        if (!bits) continue;
        check_.silent[graph_.target(node_).name()] = std::string(error.what()).substr(0, 200);
        return;
      }
    }
    written_ = given;
    ++check_.calls;
    check_.operators.insert(graph_.target(node_).name());
    strategies_ = whole_strategies(rules_.strategies(graph_, node_));
    add_split_ones();
    for (const AxisStrategy& strategy : strategies_.axis) {
      for (const int64_t devices : options_.devices) {
        if (strategy.extent % devices != 0) continue;
        ++check_.strategies;
        const DeviceMesh mesh = DeviceMesh::parse(std::to_string(devices));
        check({&strategy}, mesh);
      }
    }
    for (const std::string& text : options_.meshes) {
      const DeviceMesh mesh = DeviceMesh::parse(text);
      std::vector<std::pair<size_t, size_t>> pairs;
      for (size_t i = 0; i < strategies_.axis.size(); ++i) {
        for (size_t j = 0; j < strategies_.axis.size(); ++j) {
          if (strategies_.axis[i].extent % mesh.axes[0].size == 0 &&
              strategies_.axis[j].extent % mesh.axes[1].size == 0) {
            pairs.emplace_back(i, j);
          }
        }
      }
      std::shuffle(pairs.begin(), pairs.end(), random_);
      if (pairs.size() > options_.most_products) pairs.resize(options_.most_products);
      for (const auto& [i, j] : pairs) {
        if (check({&strategies_.axis[i], &strategies_.axis[j]}, mesh)) ++check_.products;
      }
    }
    if (options_.missing) look_for_missing();
  }

 private:
  Tensors copies(const Tensors& tensors) const {
    Tensors made;
    for (const at::Tensor& tensor : tensors) made.push_back(in_order_of(tensor, tensor));
    return made;
  }

  // Adds strided placements as FactorAnalysis produces them: 12 is split at 2 and at 3.
  void add_split_ones() {
    const std::vector<AxisStrategy> plain = strategies_.axis;
    for (const AxisStrategy& strategy : plain) {
      for (const int64_t outer : {2, 3}) {
        if (strategy.extent == 0 || strategy.extent % outer != 0 || strategy.extent == outer) continue;
        AxisStrategy split = strategy;
        split.name += fmt::format("/{}", outer);
        split.extent /= outer;
        for (std::vector<Placement>* placements : {&split.operands, &split.results}) {
          for (Placement& placement : *placements) {
            if (placement.is_shard()) placement.outer *= outer;
          }
        }
        strategies_.axis.push_back(std::move(split));
      }
    }
  }

  static bool divides(const Tensors& tensors, const std::vector<Layout>& layouts, const DeviceMesh& mesh) {
    for (size_t i = 0; i < layouts.size(); ++i) {
      const at::IntArrayRef sizes = tensors[i].sizes();
      if (!local_sizes({sizes.data(), sizes.size()}, layouts[i], mesh)) return false;
    }
    return true;
  }

  // Returns false if the layouts do not divide the sizes.
  bool check(const std::vector<const AxisStrategy*>& axes, const DeviceMesh& mesh) {
    std::vector<Layout> operands(operands_.size(), Layout(axes.size()));
    std::vector<Layout> results(results_.size(), Layout(axes.size()));
    for (size_t a = 0; a < axes.size(); ++a) {
      if (axes[a]->operands.size() != operands.size() || axes[a]->results.size() != results.size()) {
        wrong(axes, mesh, "another number of operands or results");
        return true;
      }
      for (size_t i = 0; i < operands.size(); ++i) operands[i][a] = axes[a]->operands[i];
      for (size_t i = 0; i < results.size(); ++i) results[i][a] = axes[a]->results[i];
    }
    if (!divides(operands_, operands, mesh) || !divides(results_, results, mesh)) return false;
    // Lookups have different indices on each rank; they are tested in vocabulary_test.cpp.
    if (rules_.lookup(graph_, node_, operands, results, mesh, 0)) return true;
    try {
      const std::string difference = differs(operands, results, mesh);
      if (!difference.empty()) wrong(axes, mesh, difference);
    } catch (const std::exception& error) {
      wrong(axes, mesh, std::string(error.what()).substr(0, 300));
    }
    return true;
  }

  // Returns how the reassembled results differ from the unsharded ones, or "".
  std::string differs(const std::vector<Layout>& operands, const std::vector<Layout>& results, const DeviceMesh& mesh) {
    const std::vector<Argument> arguments = rules_.local_arguments(graph_, node_, operands, results, mesh);
    const NodeId local = graph_.append(graph_.node(node_).target, arguments);
    return differs(NodeRunner(graph_, local), operands, results, mesh);
  }

  std::string differs(const NodeRunner& runner, const std::vector<Layout>& operands, const std::vector<Layout>& results,
                      const DeviceMesh& mesh) {
    const auto ranks = static_cast<size_t>(mesh.size());
    std::vector<Tensors> given(ranks);
    for (size_t i = 0; i < operands.size(); ++i) {
      // Contents of an overwritten operand are arbitrary.
      const Tensors parts = parts_of(operands_[i], operands[i], mesh, random_);
      for (size_t rank = 0; rank < ranks; ++rank) given[rank].push_back(parts[rank]);
    }
    std::vector<Tensors> made;
    for (size_t rank = 0; rank < ranks; ++rank) made.push_back(runner.run(given[rank]));
    const bool any_content = facts_.random || facts_.uninitialized;
    const auto compare = [&](const std::vector<Tensors>& parts, size_t i, const Layout& layout, const at::Tensor& whole,
                             const char* what) -> std::string {
      Tensors of;
      for (const Tensors& rank : parts) {
        if (i >= rank.size()) return fmt::format("{} {} is not there", what, i);
        of.push_back(any_content ? at::zeros_like(rank[i]) : rank[i]);
      }
      const at::IntArrayRef sizes = whole.sizes();
      const at::Tensor together = full_tensor(of, layout, mesh, {sizes.data(), sizes.size()});
      if (any_content || is_same(whole, together)) return "";
      return fmt::format("{} {} differs", what, i);
    };
    for (size_t r = 0; r < results.size(); ++r) {
      const std::string difference = compare(made, r, results[r], results_[r], "result");
      if (!difference.empty()) return difference;
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      if (at::equal(operands_[i], written_[i])) continue;
      const std::string difference = compare(given, i, operands[i], written_[i], "written operand");
      if (!difference.empty()) return difference;
    }
    return "";
  }

  static std::string words(std::span<const Placement> placements) {
    std::string text;
    for (const Placement& placement : placements) text += (text.empty() ? "" : " ") + to_string(placement);
    return text;
  }

  void wrong(const std::vector<const AxisStrategy*>& axes, const DeviceMesh& mesh, const std::string& how) {
    std::string text = to_text(graph_, node_);
    for (const AxisStrategy* axis : axes) {
      text +=
          fmt::format("\n    {}[{}]: {} -> {}", axis->name, axis->extent, words(axis->operands), words(axis->results));
    }
    check_.wrong.push_back(fmt::format("{}\n    on {}: {}", text, mesh.to_string(), how));
  }

  // ---- Placements that are valid but not offered by any strategy
  static std::vector<Placement> choices(const at::Tensor& tensor, int64_t devices) {
    std::vector<Placement> all = {Placement::replicate()};
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      if (tensor.size(d) % devices == 0 && tensor.size(d) > 0) all.push_back(Placement::shard(d));
    }
    if (at::isFloatingType(tensor.scalar_type())) all.push_back(Placement::partial());
    return all;
  }

  bool offered(const std::vector<Placement>& operands, const std::vector<Placement>& results) const {
    for (const AxisStrategy& strategy : strategies_.axis) {
      if (strategy.operands == operands && strategy.results == results) return true;
    }
    return false;
  }

  // Calls f for every combination of one element of each.
  template <class F>
  static void for_each_choice(const std::vector<std::vector<Placement>>& of, F&& f) {
    std::vector<size_t> at(of.size(), 0);
    while (true) {
      std::vector<Placement> taken;
      for (size_t i = 0; i < of.size(); ++i) taken.push_back(of[i][at[i]]);
      f(taken);
      size_t i = 0;
      while (i < of.size() && ++at[i] == of[i].size()) at[i++] = 0;
      if (i == of.size()) return;
    }
  }

  void look_for_missing() {
    constexpr int64_t kDevices = 2;
    if (operands_.size() > 4 || results_.size() != 1 || operands_.empty() || facts_.random || facts_.uninitialized)
      return;
    if (!facts_.written.empty()) return;
    // Some kernels do not validate their operands; they must not get mismatched sizes.
    const std::string& name = graph_.target(node_).name();
    for (const char* trusting : {"backward", "attention", "_reshape_alias", "as_strided", "grid_sampler"}) {
      if (name.find(trusting) != name.npos) return;
    }
    const DeviceMesh mesh = DeviceMesh::parse(std::to_string(kDevices));
    std::vector<std::vector<Placement>> of;
    for (const at::Tensor& operand : operands_) of.push_back(choices(operand, kDevices));
    for_each_choice(of, [&](const std::vector<Placement>& operands) {
      bool cut = false;
      for (const Placement& placement : operands) cut = cut || !placement.is_replicate();
      if (!cut) return;
      std::vector<Layout> layouts;
      for (const Placement& placement : operands) layouts.push_back({placement});
      for (const Placement& result : choices(results_[0], kDevices)) {
        if (offered(operands, {result})) continue;
        try {
          // Uses the original arguments, so placements that would need local arguments without a rule are missed.
          if (!differs(runner_, layouts, {Layout{result}}, mesh).empty()) continue;
        } catch (const std::exception&) {
          continue;
        }
        check_.missing[graph_.target(node_).name()].insert(words(operands) + " -> " + to_string(result));
      }
    });
  }

  Graph& graph_;
  NodeId node_;
  const ShardingRules& rules_;
  const RuleCheckOptions& options_;
  RuleCheck& check_;
  std::mt19937 random_;
  NodeRunner runner_;
  OperatorFacts facts_;
  NodeStrategies strategies_;
  Tensors operands_;  // unsharded
  Tensors results_;   // unsharded
  Tensors written_;   // written operands after the call
};

}  // namespace

std::string call_of(const Graph& graph, NodeId node) {
  const NodeId only[] = {node};
  return to_text(graph, only, PrintPreset::kFingerprint);
}

void check_rules(Graph& graph, const ShardingRules& rules, const RuleCheckOptions& options, std::set<std::string>& seen,
                 RuleCheck& check) {
  const c10::InferenceMode no_autograd;
  std::vector<NodeId> nodes;
  for (const NodeId node : graph.nodes()) nodes.push_back(node);
  for (const NodeId node : nodes) {
    if (graph.target(node).kind() != TargetKind::kOperator || !find_operator(graph.target(node))) continue;
    if (!seen.insert(call_of(graph, node)).second) continue;
    bool undefined = false;
    graph.for_each_input(
        node, [&](ValueId value) { undefined = undefined || graph.value(value).kind != ValueKind::kTensor; });
    if (undefined || graph.facts(node).host_read) continue;
    CallCheck(graph, node, rules, options, check).run();
  }
}

}  // namespace shadowgraph
