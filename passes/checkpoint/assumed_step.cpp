// Appends to a forward graph the backward that autograd would run, as far as memory is concerned.
//
//     %3 = aten::mm(%x, %w) saved(%x, %w)         %9 = sg_autograd::backward(saved=[%x, %w], gradients=[%8]) | backward of n3
//
// A backward node reads what its forward node saved and the gradients of its results, and makes a gradient for each
// operand that wants one. Gradients of views, and those that sums hand on, share memory, as in libtorch. A second
// gradient of one tensor is added in place where nobody else holds the first. Storages die at their last use.
//
// The nodes compute nothing: plans are made and peaks counted on them, as on a captured step. Kernels' scratch memory is
// not there.
//
// Linear in the graph.
#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "ir/records.h"
#include "passes/checkpoint/forward_checkpoints.h"
#include "shadowgraph/edit/copy.h"

namespace shadowgraph {
namespace {

class AssumedStep {
 public:
  explicit AssumedStep(const Graph& forward)
      : step_(clone(forward)),
        seed_(function("::seed() -> Tensor[]")),
        backward_(function("::backward(Tensor[] saved, Tensor[] gradients) -> Tensor[]")),
        hand_on_(function("::hand_on(Tensor(a) gradient) -> Tensor(a)")),
        add_(function("::add(Tensor gradient, Tensor more) -> Tensor")),
        add_in_place_(function("::add_(Tensor(a!) gradient, Tensor more) -> Tensor(a!)")) {}

  Graph run() {
    std::vector<NodeId> forward;
    for (const NodeId n : step_.nodes()) {
      if (is_end(step_.node(n).target)) {
        if (!end_.valid()) end_ = n;
        step_.for_each_input(n, [&](ValueId v) {
          if (wants_gradient(v) && std::ranges::find(outputs_, v) == outputs_.end()) outputs_.push_back(v);
        });
      } else if (!step_.is_placeholder(n)) {
        forward.push_back(n);
      }
    }
    if (outputs_.empty()) {
      throw Error(
          "no output of this forward graph has a gradient, so no checkpoint can save anything: capture it with "
          "gradients "
          "on, in training mode");
    }
    const NodeId seed = add_node(seed_, {}, NodeId());
    add_gradients(seed, outputs_);
    for (auto n = forward.rbegin(); n != forward.rend(); ++n) differentiate(*n);
    keep_gradients_of_parameters();
    free_at_last_use(step_);
    return std::move(step_);
  }

 private:
  TargetId function(const char* schema) {
    return step_.intern_target(Target(TargetKind::kFunction, std::string("sg_autograd") + schema));
  }

  bool wants_gradient(ValueId v) const {
    return step_.value(v).kind == ValueKind::kTensor && step_.value(v).requires_grad;
  }

  NodeId add_node(TargetId target, std::span<const Argument> arguments, NodeId of) {
    const NodeId n = step_.insert_before(end_, target, arguments);
    mutable_node(step_, n).phase = Graph::kBackward;
    mutable_node(step_, n).forward = of;
    return n;
  }

  // A tensor as large as `of`, in memory of its own or in that of another gradient.
  ValueId new_gradient(NodeId node, ValueId of, StorageId storage = {}) {
    const Value value = step_.value(of);
    const auto given = step_.sizes(of);
    const std::vector<int64_t> sizes(given.begin(), given.end());
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
    const c10::Device device = value.device();
    if (!storage.valid()) {
      storage = step_.add_storage({.bytes = step_.logical_bytes(of),
                                   .device_type = device.type(),
                                   .device_index = device.index(),
                                   .born = node});
    }
    return step_.new_tensor(
        node, {.dtype = value.dtype, .sizes = sizes, .strides = strides, .storage = storage, .device = device});
  }

  // The gradients that one node makes, as a list.
  void add_gradients(NodeId node, std::span<const ValueId> of) {
    std::vector<Argument> made;
    for (const ValueId v : of) made.push_back(Argument::of_value(new_gradient(node, v)));
    const std::array<Argument, 1> results{step_.make_list(made)};
    step_.set_results(node, results);
    for (size_t i = 0; i < of.size(); ++i) accumulate(of[i], made[i].ref.value);
  }

  void differentiate(NodeId n) {
    std::vector<Argument> gradients;
    step_.for_each_output(n, [&](ValueId v) {
      const auto found = gradient_of_.find(v);
      if (found == gradient_of_.end()) return;
      gradients.push_back(Argument::of_value(found->second));
      --holders_[step_.value(found->second).storage];
      gradient_of_.erase(found);
    });
    if (gradients.empty()) return;
    std::vector<ValueId> operands;
    step_.for_each_input(n, [&](ValueId v) {
      if (wants_gradient(v) && std::ranges::find(operands, v) == operands.end()) operands.push_back(v);
    });
    std::vector<Argument> saved;
    for (const SavedTensor& tensor : step_.saved(n)) saved.push_back(Argument::of_value(tensor.value));
    std::vector<ValueId> computed;
    for (const ValueId operand : operands) {
      const ValueId gradient = gradients[0].ref.value;
      const bool same = step_.logical_bytes(operand) == step_.logical_bytes(gradient);
      if (saved.empty() && gradients.size() == 1 && same && hands_on(n)) {
        const NodeId node = add_node(hand_on_, gradients, n);
        const ValueId handed = new_gradient(node, operand, step_.value(gradient).storage);
        const std::array<Argument, 1> results{Argument::of_value(handed)};
        step_.set_results(node, results);
        accumulate(operand, handed);
      } else {
        computed.push_back(operand);
      }
    }
    if (computed.empty() && saved.empty()) return;
    const std::array<Argument, 2> arguments{step_.make_list(saved), step_.make_list(gradients)};
    add_gradients(add_node(backward_, arguments, n), computed);
  }

  // Whether a gradient goes through as the very tensor.
  bool hands_on(NodeId n) const {
    const std::string& name = step_.target(n).name();
    return step_.facts(n).is_view || name == "aten::add.Tensor" || name == "aten::add_.Tensor" || name == "aten::clone";
  }

  void accumulate(ValueId v, ValueId gradient) {
    const StorageId fresh = step_.value(gradient).storage;
    const auto [entry, is_first] = gradient_of_.try_emplace(v, gradient);
    if (is_first) {
      ++holders_[fresh];
      return;
    }
    const StorageId before = step_.value(entry->second).storage;
    const bool alone = holders_[before] == 1;
    const std::array<Argument, 2> arguments{Argument::of_value(entry->second), Argument::of_value(gradient)};
    const NodeId node = add_node(alone ? add_in_place_ : add_, arguments, NodeId());
    --holders_[before];
    entry->second = new_gradient(node, v, alone ? before : StorageId());
    ++holders_[step_.value(entry->second).storage];
    const std::array<Argument, 1> results{Argument::of_value(entry->second)};
    step_.set_results(node, results);
  }

  void keep_gradients_of_parameters() {
    std::vector<std::pair<ValueId, ValueId>> leaves(gradient_of_.begin(), gradient_of_.end());
    std::ranges::sort(leaves);
    for (const auto& [leaf, gradient] : leaves) {
      if (!step_.is_placeholder(step_.value(leaf).producer)) continue;
      const std::array<Argument, 2> arguments{Argument::of_value(leaf), Argument::of_value(gradient)};
      step_.insert_before(end_, target_of(Builtin::kGradient), arguments);
    }
  }

  Graph step_;
  const TargetId seed_, backward_, hand_on_, add_, add_in_place_;
  NodeId end_;  // before which backward comes; invalid: at the end
  std::vector<ValueId> outputs_;
  std::unordered_map<ValueId, ValueId> gradient_of_;  // of those that are not used up
  std::unordered_map<StorageId, int> holders_;        // how many of them lie in it
};

}  // namespace

Graph assumed_step(const Graph& forward) { return AssumedStep(forward).run(); }

}  // namespace shadowgraph
