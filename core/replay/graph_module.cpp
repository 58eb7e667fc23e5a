#include "shadowgraph/capture/graph_module.h"

#include <ATen/core/Dict.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <unordered_set>

#include "core/replay/replay_program.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

namespace shadowgraph {

namespace {

constexpr const char* kHashKey = "shadowgraph.graph_hash";

// Returns the FNV-1a hash of the canonical text.
int64_t hash_of(const Graph& graph) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : to_text(graph, PrintPreset::kCanonical)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return static_cast<int64_t>(hash);
}

std::string shape_text(c10::ScalarType dtype, c10::IntArrayRef sizes) { return c10::str(dtype, sizes); }

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& entry : module.named_parameters()) tensors.emplace(entry.key(), entry.value());
  for (const auto& entry : module.named_buffers()) tensors.emplace(entry.key(), entry.value());
  return tensors;
}

}  // namespace

Bindings& Bindings::module(const torch::nn::Module& module) {
  for (auto& [name, tensor] : tensors_of(module)) named_.try_emplace(name, Entry{tensor, false});
  return *this;
}

// Runs through autograd, and checks in the first run that every operator is differentiable.
class GraphModule::Checked : public Interpreter {
 public:
  Checked(const Graph& graph, InterpreterOptions options) : Interpreter(graph, std::move(options)) {}
  bool checked = false;

 protected:
  void call_operator(NodeId node, const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    if (checked || !c10::GradMode::is_enabled()) {
      Interpreter::call_operator(node, op, stack);
      return;
    }
    bool differentiable = false;
    for (const c10::IValue& argument : stack) {
      if (argument.isTensor()) differentiable |= argument.toTensor().defined() && argument.toTensor().requires_grad();
      if (!argument.isTensorList()) continue;
      for (const at::Tensor& tensor : argument.toTensorVector()) differentiable |= tensor.requires_grad();
    }
    Interpreter::call_operator(node, op, stack);
    if (!differentiable) return;
    const auto results = graph().results(node);
    for (size_t i = 0; i < results.size() && i < stack.size(); ++i) {
      if (results[i].kind == ArgumentKind::kValue && stack[i].isTensor())
        check(node, results[i].ref.value, stack[i].toTensor());
    }
  }

 private:
  void check(NodeId node, ValueId value, const at::Tensor& tensor) const {
    if (!tensor.defined()) return;
    const auto& function = tensor.grad_fn();
    // By name: one of the two node types for a missing derivative is private to libtorch.
    const bool lacking = function && function->name().find("NotImplemented") != std::string::npos;
    const bool lost = !tensor.requires_grad() && graph().value(value).requires_grad && tensor.is_floating_point();
    if (!lacking && !lost) return;
    throw Error("cannot differentiate " + to_text(graph(), node) + "\n  autograd " +
                (lacking ? "has no derivative for the operator"
                         : "does not track the operator, but the captured program had gradients here") +
                "; register a derivative (torch::autograd), decompose the operator (shadowgraph opt --pass decompose), "
                "or run under torch::NoGradGuard");
  }
};

GraphModule::GraphModule(Graph graph, const torch::nn::Module& source)
    : GraphModule(std::move(graph), tensors_of(source)) {}

GraphModule::GraphModule(Graph graph, const std::map<std::string, at::Tensor>& tensors)
    : GraphModule(std::move(graph), tensors, /*converted=*/false) {}

GraphModule::GraphModule(Graph graph, const std::map<std::string, at::Tensor>& tensors, bool converted)
    : torch::nn::Module("GraphModule"), graph_(std::move(graph)) {
  refuse_training();
  own_constants();
  adopt(tensors, converted);
}

GraphModule::~GraphModule() = default;

void GraphModule::refuse_training() const {
  for (const NodeId node : graph_.nodes()) {
    const PhaseId phase = graph_.node(node).phase;
    const bool gradient = graph_.node(node).target == target_of(Builtin::kGradient);
    if (phase != Graph::kBackward && phase != Graph::kOptimizer && !gradient) continue;
    throw Error("a GraphModule needs a forward graph, but this one contains " + to_text(graph_, node) +
                "\n  capture only the forward pass, or run the training step in a ReplayExecutor");
  }
}

// Turns sg::constant into sg::buffer, so that constants are moved and saved like buffers.
void GraphModule::own_constants() {
  std::vector<NodeId> constants;
  std::unordered_set<std::string> taken;
  for (const NodeId node : graph_.nodes()) {
    if (graph_.node(node).target == target_of(Builtin::kConstant)) constants.push_back(node);
    if (is_bound(graph_, node)) taken.insert(graph_.text(graph_.arguments(node)[0].string));
  }
  size_t number = 0;
  for (const NodeId node : constants) {
    std::string name;
    do {
      name = "graph_constants.c" + std::to_string(number++);
    } while (taken.contains(name));
    constants_.emplace(name, graph_.constant(graph_.arguments(node)[0].constant));
    const ValueId old = graph_.results(node)[0].ref.value;
    const Value value = graph_.value(old);
    InsertionPoint at(graph_, node);
    const NodeId buffer = at.insert(target_of(Builtin::kBuffer), {graph_.string_argument(name)});
    const ValueId now = graph_.add_tensor_result(buffer, {.dtype = value.dtype,
                                                          .sizes = graph_.sizes(old),
                                                          .strides = graph_.strides(old),
                                                          .storage = value.storage,
                                                          .offset = value.offset,
                                                          .device = value.device(),
                                                          .layout = value.layout,
                                                          .requires_grad = value.requires_grad});
    graph_.replace_all_uses_with(old, now);
    graph_.erase(node);
  }
}

void GraphModule::adopt(const std::map<std::string, at::Tensor>& tensors, bool converted) {
  std::map<std::string, std::shared_ptr<torch::nn::Module>> owners;
  for (const NodeId node : graph_.nodes()) {
    const TargetId target = graph_.node(node).target;
    if (!is_bound(graph_, node)) continue;
    const std::string& name = graph_.text(graph_.arguments(node)[0].string);
    const ValueId value = graph_.results(node)[0].ref.value;
    if (target == target_of(Builtin::kInput)) {
      input_names_.push_back(name);
      input_values_.push_back(value);
      continue;
    }
    const auto found = tensors.find(name);
    const auto constant = constants_.find(name);
    if (found == tensors.end() && constant == constants_.end()) {
      throw Error("missing tensor '" + name + "' for " + to_text(graph_, node));
    }
    const at::Tensor& tensor = found != tensors.end() ? found->second : constant->second;
    const Value& expected = graph_.value(value);
    const auto sizes = graph_.sizes(value);
    const bool same_dtype = tensor.defined() && (converted || tensor.scalar_type() == expected.dtype);
    if (!same_dtype || !std::ranges::equal(tensor.sizes(), sizes)) {
      throw Error("tensor '" + name + "' is " +
                  (tensor.defined() ? shape_text(tensor.scalar_type(), tensor.sizes()) : "undefined") +
                  ", but the graph expects " + shape_text(expected.dtype, {sizes.data(), sizes.size()}) +
                  "; capture the graph with this tensor, or convert the module with to() after creating it");
    }
    torch::nn::Module* owner = this;
    std::string path;
    std::string_view rest = name;
    for (size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
      const std::string part(rest.substr(0, dot));
      path += (path.empty() ? "" : ".") + part;
      auto& child = owners[path];
      if (!child) child = owner->register_module(part, std::make_shared<torch::nn::Module>());
      owner = child.get();
      rest.remove_prefix(dot + 1);
    }
    const std::string key(rest);
    if (target == target_of(Builtin::kParameter)) {
      owner->register_parameter(key, tensor, tensor.requires_grad());
    } else {
      owner->register_buffer(key, tensor);
    }
    tensors_.emplace_back(name, tensor);
  }
  constants_.clear();
}

void GraphModule::prepare() {
  std::optional<c10::Device> device;
  if (!tensors_.empty()) device = tensors_.begin()->second.device();
  if (interpreter_ && prepared_for_ == device) return;
  interpreter_ = std::make_unique<Checked>(
      graph_, InterpreterOptions{.device = device, .check_bindings = false, .autograd = true});
  prepared_for_ = device;
}

std::vector<at::Tensor> GraphModule::forward(const std::vector<at::Tensor>& inputs) {
  if (inputs.size() != input_names_.size()) {
    throw Error("the module takes " + std::to_string(input_names_.size()) + " inputs (" +
                c10::Join(", ", input_names_) + "), but " + std::to_string(inputs.size()) + " were given");
  }
  Bindings bindings;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto sizes = graph_.sizes(input_values_[i]);
    if (!inputs[i].defined() || !std::ranges::equal(inputs[i].sizes(), sizes)) {
      throw Error("input '" + input_names_[i] + "' is " +
                  (inputs[i].defined() ? shape_text(inputs[i].scalar_type(), inputs[i].sizes()) : "undefined") +
                  ", but the graph was captured with " +
                  shape_text(graph_.value(input_values_[i]).dtype, {sizes.data(), sizes.size()}) +
                  "; capture the graph again for other sizes");
    }
    bindings.bind(input_names_[i], inputs[i]);
  }
  prepare();
  for (const auto& [name, tensor] : tensors_) bindings.bind(name, tensor);
  auto outputs = interpreter_->run(bindings).outputs;
  interpreter_->checked |= c10::GradMode::is_enabled();
  return outputs;
}

void GraphModule::save(const std::string& graph_file, const std::string& tensor_file) const {
  c10::Dict<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : tensors_of(*this)) tensors.insert(name, tensor.detach());
  tensors.insert(kHashKey, at::scalar_tensor(hash_of(graph_), at::kLong));
  const std::vector<char> bytes = torch::jit::pickle_save(tensors);
  write_file(tensor_file, std::string_view(bytes.data(), bytes.size()));
  write_graph_file(graph_file, graph_);
}

std::shared_ptr<GraphModule> GraphModule::load(const std::string& graph_file, const std::string& tensor_file) {
  Graph graph = read_graph_file(graph_file);
  verify(graph);
  const std::string content = read_file(tensor_file);
  std::map<std::string, at::Tensor> tensors;
  try {
    const auto value = torch::jit::pickle_load(std::vector<char>(content.begin(), content.end()));
    for (const auto& entry : value.toGenericDict())
      tensors.emplace(entry.key().toStringRef(), entry.value().toTensor());
  } catch (const std::exception& error) {
    throw Error("'" + tensor_file +
                "' is not a dict of tensors that libtorch can load; write it with GraphModule::save");
  }
  const auto hash = tensors.find(kHashKey);
  if (hash == tensors.end() || hash->second.scalar_type() != at::kLong || hash->second.numel() != 1) {
    throw Error("'" + tensor_file + "' was not written by GraphModule::save: the hash of its graph is missing");
  }
  if (hash->second.item<int64_t>() != hash_of(graph)) {
    throw Error("'" + tensor_file + "' does not belong to graph '" + graph_file +
                "', or the graph was modified; load the two files that were saved together");
  }
  tensors.erase(hash);
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).target != target_of(Builtin::kParameter)) continue;
    const auto found = tensors.find(graph.text(graph.arguments(node)[0].string));
    const bool requires_grad = graph.value(graph.results(node)[0].ref.value).requires_grad;
    if (found != tensors.end() && requires_grad && found->second.is_floating_point())
      found->second.requires_grad_(true);
  }
  return std::shared_ptr<GraphModule>(new GraphModule(std::move(graph), tensors, /*converted=*/true));
}

}  // namespace shadowgraph
