// float8: linear layers' three products in float8.
//
// Which. A product with a parameter is a layer's own; those of its gradients are the backward nodes that belong to it.
// What is computed again in backward is a layer's own as well, and shares no cast with the first time.
//
// Sides. An operand of a backward product is the parameter, or what was cast for the layer's own product. An activation
// that is gathered again in backward is neither; it comes from forward by collectives and views alone. The rest are
// gradients. A product without exactly one of them stays.
//
// What autograd keeps of the activation is its cast, if nothing else in backward reads it.
//
// Cost. Linear in the graph, with a search among the casts of a matrix, of which there are as many as micro-batches.
#include <fmt/format.h>

#include <algorithm>
#include <fnmatch.h>
#include <sstream>

#include "ir/analysis/module_tree.h"
#include "ir/analysis/operand_source.h"
#include "ir/edit/deaths.h"
#include "passes/precision/float8_operands.h"
#include "shadowgraph/analysis/recompute_regions.h"
#include "shadowgraph/passes/float8.h"

namespace shadowgraph {
namespace {

constexpr int64_t kDivisor = 16;  // of sizes that _scaled_mm takes
constexpr c10::ScalarType kValues = c10::kFloat8_e4m3fn, kGradients = c10::kFloat8_e5m2;

std::vector<std::string> patterns_of(const std::string& text) {
  std::vector<std::string> patterns;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) patterns.push_back(part);
  return patterns;
}

class Float8Products {
 public:
  Float8Products(Graph& graph, const Float8Options& options)
      : graph_(graph),
        except_(patterns_of(options.except)),
        effects_(Effects::of(graph)),
        recomputed_(recompute_regions(graph)),
        operands_(graph, effects_) {}

  Float8Result run() {
    std::vector<NodeId> products;
    for (const NodeId node : graph_.nodes()) {
      const std::string_view name = graph_.target(node).name();
      if (name == "aten::mm" || name == "aten::addmm") products.push_back(node);
    }
    for (const NodeId node : products) {
      count_run(node);
      const NodeId forward = graph_.node(node).forward;
      if (is_backward(node) && !is_recomputed(node)) {
        if (forward.valid() && own_.contains(forward)) rewrite_gradient(node);
      } else if (const std::string why = why_not(node); !why.empty()) {
        if (has_parameter(node)) ++result_.left[why];
      } else {
        rewrite_own(node);
      }
    }
    finish();
    return std::move(result_);
  }

 private:
  struct Product {
    ValueId left, right;
    Argument bias;
  };

  bool is_backward(NodeId node) const { return graph_.node(node).phase == Graph::kBackward; }
  bool is_recomputed(NodeId node) const { return recomputed_[graph_.node(node).region].valid(); }

  Product product_of(NodeId node) const {
    const bool has_bias = graph_.target(node).name() == "aten::addmm";
    const auto value = [&](const char* name) { return graph_.find_argument(node, name)->ref.value; };
    if (!has_bias) return {value("self"), value("mat2"), Argument::none()};
    return {value("mat1"), value("mat2"), *graph_.find_argument(node, "self")};
  }

  ValueId source(ValueId value) const { return source_of(graph_, value, Behind::kGathering); }
  // A placeholder, or what the program has made and kept as one.
  bool is_parameter(ValueId value) const {
    return graph_.storage(graph_.value(source(value)).storage).kind == StorageKind::kParameter;
  }
  bool has_parameter(NodeId node) const {
    const Product product = product_of(node);
    return is_parameter(product.left) != is_parameter(product.right);
  }
  bool is_gradient(NodeId node, ValueId value) const {
    if (is_parameter(value) || operands_.was_cast(node, value)) return false;
    const NodeId made = graph_.value(source(value)).producer;
    return is_backward(made) && !is_recomputed(made);
  }

  // "": a product of a layer that can be in float8.
  std::string why_not(NodeId node) const {
    if (!has_parameter(node)) return "no parameter";
    const Product product = product_of(node);
    const std::string path = module_path(graph_, node);
    for (const std::string& pattern : except_) {
      if (fnmatch(pattern.c_str(), path.c_str(), 0) == 0) return "excepted";
    }
    const c10::ScalarType dtype = graph_.value(product.left).dtype;
    if (dtype != c10::kBFloat16 && dtype != c10::kHalf) return fmt::format("in {}", c10::toString(dtype));
    const auto left = graph_.sizes(product.left), right = graph_.sizes(product.right);
    if (left[0] % kDivisor != 0 || left[1] % kDivisor != 0 || right[1] % kDivisor != 0) {
      return fmt::format("sizes that do not divide by {}", kDivisor);
    }
    if (product.bias.kind != ArgumentKind::kValue) return "";
    const auto is_one = [&](const char* name) {
      const Argument* factor = graph_.find_argument(node, name);
      return factor->kind == ArgumentKind::kInt ? factor->i == 1 : factor->d == 1.0;
    };
    const ValueId bias = product.bias.ref.value;
    return graph_.sizes(bias).size() == 1 && graph_.value(bias).dtype == dtype && is_one("alpha") && is_one("beta")
               ? ""
               : "a bias that _scaled_mm does not add";
  }

  // Where forward follows backward, the next micro-batch begins.
  void count_run(NodeId node) {
    const bool backward = is_backward(node);
    if (backward != was_backward_) ++run_;
    was_backward_ = backward;
  }
  Float8Operands::Part part_of(NodeId node) const {
    return {run_, recomputed_[graph_.node(node).region], is_backward(node)};
  }

  void rewrite_own(NodeId node) {
    const Product product = product_of(node);
    const bool left_is = is_parameter(product.left), right_is = is_parameter(product.right);
    const std::vector<SavedTensor> saved(graph_.saved(node).begin(), graph_.saved(node).end());
    const auto left = operands_.left(node, product.left, part_of(node), left_is, kValues);
    const auto right = operands_.right(node, product.right, part_of(node), right_is, kValues);
    own_.insert(node);
    set_call(node, product, left, right, /*fast=*/true);
    // Autograd keeps the parameter as it is, and the activation in float8.
    std::vector<SavedTensor> kept;
    for (const SavedTensor& each : saved) {
      if (each.value == product.left && !left_is) {
        kept.push_back({left.values, SavedRole::kArgument, 0});
      } else if (each.value == product.right && !right_is) {
        kept.push_back({right.values, SavedRole::kArgument, 1});
      } else {
        kept.push_back({each.value, SavedRole::kInternal, 0});
      }
    }
    graph_.set_saved(node, kept);
  }

  void rewrite_gradient(NodeId node) {
    const Product product = product_of(node);
    const bool left_is = is_gradient(node, product.left), right_is = is_gradient(node, product.right);
    if (left_is == right_is || product.bias.kind == ArgumentKind::kValue) {
      ++result_.left["gradients of unknown sides"];
      return;
    }
    const auto dtype = [](bool gradient) { return gradient ? kGradients : kValues; };
    const auto left = operands_.left(node, product.left, part_of(node), is_parameter(product.left), dtype(left_is));
    const auto right =
        operands_.right(node, product.right, part_of(node), is_parameter(product.right), dtype(right_is));
    set_call(node, product, left, right, /*fast=*/false);
  }

  void set_call(NodeId node, const Product& product, const Float8Operands::Operand& left,
                const Float8Operands::Operand& right, bool fast) {
    const c10::ScalarType dtype = graph_.value(graph_.results(node)[0].ref.value).dtype;
    const auto used_less = [&](ValueId value) {
      const StorageId storage = graph_.value(value).storage;
      if (graph_.storage(storage).freed_after.valid()) changed_.insert(storage);
    };
    used_less(product.left);
    used_less(product.right);
    graph_.set_call(node, graph_.intern_operator("aten::_scaled_mm"),
                    std::vector<Argument>{Argument::of_value(left.values), Argument::of_value(right.values),
                                          Argument::of_value(left.scale), Argument::of_value(right.scale), product.bias,
                                          Argument::none(), Argument::of_int(static_cast<int64_t>(dtype)),
                                          Argument::of_bool(fast)});
    ++result_.products;
  }

  // What is read less dies earlier.
  void finish() {
    result_.casts = operands_.casts();
    std::set<StorageId> storages = changed_;
    storages.insert(operands_.made().begin(), operands_.made().end());
    die_at_last_use(graph_, storages);
  }

  Graph& graph_;
  const std::vector<std::string> except_;
  const Effects effects_;
  const IdMap<RegionId, RegionId> recomputed_;
  Float8Operands operands_;
  std::set<NodeId> own_;
  std::set<StorageId> changed_;  // that fewer nodes read
  int run_ = 0;
  bool was_backward_ = false;
  Float8Result result_;
};

}  // namespace

PassResult Float8Result::summary() const {
  PassResult result{.changed = products > 0, .counters = {{"products", products}, {"casts", casts}}};
  for (const auto& [why, count] : left) result.counters.emplace_back("left: " + why, count);
  if (products == 0)
    result.warnings.emplace_back("no product of a parameter is in bfloat16 or float16, as float8 wants");
  return result;
}

Float8Result float8_products(Graph& graph, const Float8Options& options) {
  return Float8Products(graph, options).run();
}

}  // namespace shadowgraph
