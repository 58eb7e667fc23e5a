// float8: runs the three products of linear layers in float8.
//
// Selection: a product with a parameter is a layer's forward product; the products of its gradients are its backward
// nodes. Recomputed products count as well, and do not share casts with the original ones.
//
// Operands: an operand of a backward product is the parameter, or the activation cast for the forward product, possibly
// gathered again by collectives and views; the other operands are gradients. Exactly one is required.
//
// The cast is saved for backward instead of the activation, if nothing else in backward reads the activation.
//
// Linear in the graph, with a search among the casts of a matrix, of which there are as many as micro-batches.
#include "passes/precision/float8.h"

#include <c10/core/MemoryFormat.h>
#include <fmt/format.h>

#include <fnmatch.h>
#include <limits>
#include <set>
#include <sstream>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "ir/analysis/operand_source.h"
#include "ir/edit/bulk_edits.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"

namespace shadowgraph {
namespace {

constexpr double kMinScale = 1e-12;  // minimum scale, for all-zero matrices

double largest(c10::ScalarType dtype) { return dtype == c10::kFloat8_e5m2 ? 57344.0 : 448.0; }

Argument of_type(c10::ScalarType dtype) { return Argument::of_int(static_cast<int64_t>(dtype)); }

constexpr int64_t kDivisor = 16;  // _scaled_mm requires sizes that are multiples of this
constexpr c10::ScalarType kValues = c10::kFloat8_e4m3fn, kGradients = c10::kFloat8_e5m2;

std::vector<std::string> patterns_of(const std::string& text) {
  std::vector<std::string> patterns;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) patterns.push_back(part);
  return patterns;
}

// Matrices in float8, scaled by their largest element; created once for all products that read them.
class Float8Operands {
 public:
  // `effects` are those of the graph before editing.
  Float8Operands(Graph& graph, const Effects& effects) : graph_(graph), effects_(effects) {}

  // Part of the program in which casts are shared. Casts of parameters in forward are not kept for backward.
  struct Part {
    int run = 0;          // number of the forward or backward run
    RegionId recomputed;  // the recomputed region; invalid if none
    bool backward = false;
    friend bool operator==(const Part&, const Part&) = default;
  };
  struct Operand {
    ValueId values;  // [rows, columns] of float8
    ValueId scale;   // [1, 1] of float32
  };

  // Returns the operand that the unedited `product` reads as `value`: row-major on the left, column-major on the right.
  Operand left(NodeId product, ValueId value, const Part& part, bool is_parameter, c10::ScalarType dtype) {
    return of(product, value, part, is_parameter, dtype, true);
  }

  Operand right(NodeId product, ValueId value, const Part& part, bool is_parameter, c10::ScalarType dtype) {
    return of(product, value, part, is_parameter, dtype, false);
  }

  // Returns whether it was cast to e4m3 for any product.
  bool was_cast(NodeId product, ValueId value) const {
    return matrices_.contains(key_of(product, value, c10::kFloat8_e4m3fn));
  }

  const std::set<StorageId>& new_storages() const { return new_storages_; }
  int64_t casts() const { return casts_; }

 private:
  // Identifies the row-major matrix that a value is, or is the transpose of.
  struct Key {
    StorageId storage;
    uint32_t version;
    int64_t offset, rows, columns, apart;  // apart: elements from row to row
    c10::ScalarType dtype;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Matrix {
    Part part;
    ValueId scale;
    ValueId by_rows, turned;  // turned: the transpose, row-major
  };

  bool is_row_major(ValueId value) const {
    const auto strides = graph_.strides(value);
    const auto sizes = graph_.sizes(value);
    return strides[1] == 1 || (strides[0] != 1 && sizes[0] >= sizes[1]);
  }

  Key key_of(NodeId product, ValueId value, c10::ScalarType dtype) const {
    const auto sizes = graph_.sizes(value), strides = graph_.strides(value);
    const size_t row = is_row_major(value) ? 0 : 1;
    const Value& facts = graph_.value(value);
    uint32_t version = 0;
    for (const StorageVersion& read : effects_.reads(product)) {
      if (read.storage == facts.storage) version = read.version;
    }
    return {facts.storage, version, facts.offset, sizes[row], sizes[1 - row], strides[row], dtype};
  }

  Operand of(NodeId product, ValueId value, const Part& part, bool is_parameter, c10::ScalarType dtype, bool as_left) {
    InsertionPoint at(graph_, product);
    const bool by_rows = is_row_major(value);
    std::vector<Matrix>& known = matrices_[key_of(product, value, dtype)];
    Matrix* matrix = nullptr;
    for (Matrix& each : known) {
      if (each.part == part || (part.backward && !part.recomputed.valid() && !is_parameter)) matrix = &each;
    }
    if (matrix == nullptr) {
      const ValueId scale = known.empty() ? scale_of(at, value, dtype) : known.front().scale;
      matrix = &known.emplace_back(Matrix{.part = part, .scale = scale});
    }
    // A column-major right operand is the transpose in row-major order.
    const bool turned = by_rows != as_left;
    ValueId& wanted = turned ? matrix->turned : matrix->by_rows;
    const ValueId other = turned ? matrix->by_rows : matrix->turned;
    if (!wanted.valid()) {
      ++casts_;
      wanted = other.valid() ? turn(at, other)
                             : cast(at, by_rows == turned ? transposed(at, value) : value, matrix->scale, dtype);
    }
    return {as_left ? wanted : transposed(at, wanted), matrix->scale};
  }

  ValueId scale_of(InsertionPoint& at, ValueId value, c10::ScalarType dtype) {
    const auto call = [&](const char* name, ValueId of, std::initializer_list<Argument> more) {
      std::vector<Argument> arguments{Argument::of_value(of)};
      arguments.insert(arguments.end(), more);
      return result(at.insert(graph_.intern_operator(name), arguments), c10::kFloat, {1, 1}, {1, 1}, value);
    };
    const ValueId most = call("aten::linalg_vector_norm", value,
                              {Argument::of_float(std::numeric_limits<double>::infinity()), Argument::none(),
                               Argument::of_bool(true), of_type(c10::kFloat)});
    return call("aten::clamp_min", call("aten::mul.Scalar", most, {Argument::of_float(1 / largest(dtype))}),
                {Argument::of_float(kMinScale)});
  }

  // Casts `value`, or its transpose, in row-major order.
  ValueId cast(InsertionPoint& at, ValueId value, ValueId scale, c10::ScalarType dtype) {
    const auto of = graph_.sizes(value);
    const std::vector<int64_t> sizes(of.begin(), of.end()), strides{sizes[1], 1};
    const NodeId room = at.insert(graph_.intern_operator("aten::empty_strided"),
                                  {graph_.int_list(sizes), graph_.int_list(strides), of_type(dtype), Argument::none(),
                                   Argument::of_device(graph_.value(value).device()), Argument::none()});
    const ValueId out = result(room, dtype, sizes, strides, value);
    const NodeId node = at.insert(graph_.intern_operator("aten::div.out"),
                                  {Argument::of_value(value), Argument::of_value(scale), Argument::of_value(out)});
    graph_.set_note(node, kKernelNote, kCompiledKernel);
    return result(node, dtype, sizes, strides, value, graph_.value(out).storage);
  }

  // Returns the transpose in row-major order.
  ValueId turn(InsertionPoint& at, ValueId by_rows) {
    const ValueId view = transposed(at, by_rows);
    const auto of = graph_.sizes(view);
    const std::vector<int64_t> sizes(of.begin(), of.end());
    const NodeId node =
        at.insert(graph_.intern_operator("aten::clone"),
                  {Argument::of_value(view), Argument::of_int(static_cast<int64_t>(c10::MemoryFormat::Contiguous))});
    graph_.set_note(node, kKernelNote, kCompiledKernel);
    return result(node, graph_.value(view).dtype, sizes, {sizes[1], 1}, view);
  }

  ValueId transposed(InsertionPoint& at, ValueId value) {
    const auto sizes = graph_.sizes(value), strides = graph_.strides(value);
    const std::vector<int64_t> transposed_sizes{sizes[1], sizes[0]}, transposed_strides{strides[1], strides[0]};
    TensorMeta turned = graph_.meta(value);
    turned.sizes = transposed_sizes;
    turned.strides = transposed_strides;
    const NodeId node = at.insert(graph_.intern_operator("aten::t"), {Argument::of_value(value)});
    return graph_.add_tensor_result(node, turned);
  }

  ValueId result(NodeId node, c10::ScalarType dtype, const std::vector<int64_t>& sizes,
                 const std::vector<int64_t>& strides, ValueId like, StorageId storage = {}) {
    const c10::Device device = graph_.value(like).device();
    if (!storage.valid()) {
      int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
      for (const int64_t size : sizes) bytes *= size;
      storage = graph_.add_storage(
          {.bytes = bytes, .device_type = device.type(), .device_index = device.index(), .born = node});
      new_storages_.insert(storage);
    }
    return graph_.add_tensor_result(
        node, {.dtype = dtype, .sizes = sizes, .strides = strides, .storage = storage, .device = device});
  }

  Graph& graph_;
  const Effects& effects_;
  std::map<Key, std::vector<Matrix>> matrices_;
  std::set<StorageId> new_storages_;
  int64_t casts_ = 0;
};

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

  ValueId source(ValueId value) const { return source_of(graph_, value, LookThrough::kGathering); }
  // Returns whether a value is a placeholder, or a tensor that the program allocates and keeps as a parameter.
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

  // Returns why a product cannot run in float8; "" if it can.
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
      return fmt::format("sizes that are not multiples of {}", kDivisor);
    }
    if (product.bias.kind != ArgumentKind::kValue) return "";
    const auto is_one = [&](const char* name) {
      const Argument* factor = graph_.find_argument(node, name);
      return factor->kind == ArgumentKind::kInt ? factor->i == 1 : factor->d == 1.0;
    };
    const ValueId bias = product.bias.ref.value;
    return graph_.sizes(bias).size() == 1 && graph_.value(bias).dtype == dtype && is_one("alpha") && is_one("beta")
               ? ""
               : "a bias that _scaled_mm does not support";
  }

  // A new micro-batch starts where forward follows backward.
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
    // The parameter is saved unchanged, and the activation in float8.
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
      ++result_.left["gradients with unknown operands"];
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

  // Storages with fewer readers are freed earlier.
  void finish() {
    result_.casts = operands_.casts();
    std::set<StorageId> storages = changed_;
    storages.insert(operands_.new_storages().begin(), operands_.new_storages().end());
    free_storages_after_last_use(graph_, storages);
  }

  Graph& graph_;
  const std::vector<std::string> except_;
  const Effects effects_;
  const IdMap<RegionId, RegionId> recomputed_;
  Float8Operands operands_;
  std::set<NodeId> own_;
  std::set<StorageId> changed_;  // with fewer readers
  int run_ = 0;
  bool was_backward_ = false;
  Float8Result result_;
};

}  // namespace

PassResult Float8Result::summary() const {
  PassResult result{.changed = products > 0, .counters = {{"products", products}, {"casts", casts}}};
  for (const auto& [why, count] : left) result.counters.emplace_back("left: " + why, count);
  if (products == 0)
    result.warnings.emplace_back("no product with a parameter is in bfloat16 or float16, which float8 requires");
  return result;
}

Float8Result float8_products(Graph& graph, const Float8Options& options) {
  return Float8Products(graph, options).run();
}

}  // namespace shadowgraph
