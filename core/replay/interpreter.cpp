// Runs the steps of a compiled graph.
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/alias.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "core/fake/converter.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"
#include "core/fake/process_groups.h"
#include "core/fake/tensors_in_value.h"
#include "core/libtorch/error_text.h"
#include "core/replay/replay_program.h"
#include "shadowgraph/capture/functions.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {

// Returns a tensor over the given storage with `source`'s dispatch keys, device and TensorImpl type.
at::Tensor with_geometry(const at::Tensor& source, c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                         c10::IntArrayRef strides, int64_t offset) {
  auto impl = source.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                    /*allow_tensor_metadata_change=*/true);
  impl->set_storage_and_dtype(std::move(storage), dtype);
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

at::Tensor shallow_copy(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true));
}

namespace {

// Returns the whole storage as bytes.
at::Tensor bytes_of(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  at::Tensor view =
      with_geometry(tensor, tensor.storage(), caffe2::TypeMeta::fromScalarType(at::kByte), {bytes}, {1}, 0);
  view._set_conj(false);
  view._set_neg(false);
  return view;
}

constexpr const char* kSend = "c10d::send";

bool declares_write(const c10::AliasInfo& alias) {
  return alias.isWrite() || std::ranges::any_of(alias.containedTypes(), &declares_write);
}

bool may_write(const c10::FunctionSchema* schema, size_t position) {
  // Functions have no schema here, and c10d's schemas do not declare their writes.
  if (schema == nullptr) return true;
  if (schema->name().starts_with("c10d::")) return schema->name() != kSend;
  const auto* alias = schema->arguments()[position].alias_info();
  return alias != nullptr && declares_write(*alias);
}

using Step = ReplayProgram::Step;
using StepKind = ReplayProgram::StepKind;

// Runs nodes at the dispatch level where they were recorded: below autograd, view tracking and autocast. The grad mode,
// which kernels may query, follows the nodes.
class ReplayScope {
 private:
  c10::AutoGradMode grad_mode_{false};
  c10::impl::ExcludeDispatchKeyGuard keys_{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                           c10::autocast_dispatch_keyset};
};

}  // namespace

c10::Storage copy_of_storage(const at::Tensor& tensor) {
  const at::Tensor bytes = bytes_of(tensor);
  at::Tensor copy = bytes.new_empty(bytes.sizes());
  copy.copy_(bytes);
  return copy.storage();
}

DefaultGeneratorOverride::DefaultGeneratorOverride(at::Generator given)
    : given_(std::move(given)),
      default_(at::globalContext().defaultGenerator(given_.device())),
      before_(exchange_state(default_, state_of(given_))) {}

DefaultGeneratorOverride::~DefaultGeneratorOverride() { exchange_state(given_, exchange_state(default_, before_)); }

// Replaces operands that are the same tensor as an `out=` that is not dense or has no elements by a shallow copy
// (ReplayProgram::Step::loose_out).
void separate_loose_outs(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  for (size_t out = 0; out < stack.size(); ++out) {
    if (!schema.arguments()[out].is_out() || !stack[out].isTensor()) continue;
    const at::Tensor written = stack[out].toTensor();
    if (written.numel() != 0 && written.is_non_overlapping_and_dense()) continue;
    for (size_t i = 0; i < stack.size(); ++i) {
      c10::IValue& operand = stack[i];
      if (schema.arguments()[i].is_out()) continue;
      if (operand.isTensor() && operand.toTensor().is_same(written)) operand = shallow_copy(written);
      if (!operand.isTensorList()) continue;
      c10::List<at::Tensor> parted;
      for (const at::Tensor& tensor : operand.toTensorVector()) {
        parted.push_back(tensor.is_same(written) ? shallow_copy(tensor) : tensor);
      }
      operand = std::move(parted);
    }
  }
}

// "Float [2, 3] with strides [3, 1]"
std::string geometry_text(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return c10::str(dtype, " ", sizes, " with strides ", strides);
}

std::string geometry_text(const at::Tensor& tensor) {
  const bool strided = tensor.layout() == c10::Layout::Strided;
  return geometry_text(tensor.scalar_type(), tensor.sizes(), strided ? tensor.strides() : c10::IntArrayRef());
}

std::string geometry_text(const Graph& graph, ValueId value) {
  const auto sizes = graph.sizes(value);
  const auto strides = graph.strides(value);
  return geometry_text(graph.value(value).dtype, {sizes.data(), sizes.size()}, {strides.data(), strides.size()});
}

bool PendingTransfers::transfers(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == kSend || name == "c10d::recv_" || name == "c10d::recv_any_source_";
}

void PendingTransfers::add(const c10::OperatorHandle& op, const c10::IValue& tensors, c10::IValue result) {
  const bool receives = op.schema().name() != kSend;
  for_each_tensor(tensors, [&](const at::Tensor& tensor) {
    under_way_.push_back({.storage = tensor.storage(), .work = result, .receives = receives});
  });
}

void PendingTransfers::wait_for(const c10::FunctionSchema* schema, std::span<const c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size() && !empty(); ++i) {
    const bool writes = may_write(schema, i);
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { wait_for(tensor, writes); });
  }
}

void PendingTransfers::wait_for(const at::Tensor& tensor, bool writes) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  std::erase_if(under_way_, [&](const Transfer& transfer) {
    if (transfer.storage.unsafeGetStorageImpl() != tensor.storage().unsafeGetStorageImpl()) return false;
    if (!transfer.receives && !writes) return false;
    wait_for_work({&transfer.work, 1});
    return true;
  });
}

void PendingTransfers::wait_for_all() {
  for (const Transfer& transfer : under_way_) wait_for_work({&transfer.work, 1});
  under_way_.clear();
}

Interpreter::Interpreter(const Graph& graph, InterpreterOptions options)
    : graph_(graph), options_(std::move(options)), program_(ReplayProgram::compile(graph, options_)) {
  if (program_->transfers) transfers_ = std::make_unique<PendingTransfers>();
}

Interpreter::~Interpreter() = default;

void Interpreter::fail(NodeId node, const std::string& what) const {
  throw ReplayError("cannot run " + to_text(graph_, node) + "\n  " + what, node);
}

ReplayResult Interpreter::run(const Bindings& bindings) {
  drawing_.resize(program_->generators.size());
  for (Drawing& drawing : drawing_) drawing.has_begun = false;
  values_.resize(graph_.value_capacity());
  const auto clean_up = c10::make_scope_exit([this] {
    for (c10::IValue& value : values_) value = c10::IValue();
    stack_.clear();
    copies_.clear();
    if (transfers_) transfers_->forget();
    result_ = {};
  });
  if (!options_.defer_errors && !program_->problems.empty()) {
    const auto& problem = program_->problems.front();
    fail(program_->steps[problem.step].node, problem.what);
  }
  check_devices();
  std::optional<ReplayScope> below;
  if (!options_.autograd) below.emplace();
  const bool caller_mode = c10::GradMode::is_enabled();
  const c10::AutoGradMode restore_grad_mode(caller_mode);
  bind(bindings);
  std::optional<DefaultGeneratorOverride> generator;
  if (options_.generator && program_->random && active_fake_mode() == nullptr) generator.emplace(*options_.generator);

  try {
    run_steps(caller_mode);
    if (transfers_) transfers_->wait_for_all();
  } catch (const ReplayError&) {
    throw;
  } catch (const std::exception& error) {
    const NodeId node = program_->steps[step_].node;
    std::throw_with_nested(ReplayError("while running " + to_text(graph_, node) + "\n  " + message_of(error), node));
  }
  for (const ValueId chosen : options_.only) {
    const c10::IValue& content = values_[chosen.index];
    result_.outputs.push_back(content.isTensor() ? content.toTensor() : at::Tensor());
  }
  return std::move(result_);
}

void Interpreter::run_steps(bool caller_mode) {
  const auto count = static_cast<uint32_t>(program_->steps.size());
  const bool groups = runs_groups();
  uint32_t refused = ReplayProgram::kNoGroup;  // the group that runs node by node
  for (step_ = 0; step_ < count; ++step_) {
    const Step& step = program_->steps[step_];
    if (groups && step.group != ReplayProgram::kNoGroup) {
      if (run_group(step.group)) continue;
      refused = step.group;
    }
    const bool grad_mode = options_.autograd ? caller_mode && (step.grad_mode || !program_->grad_mode) : step.grad_mode;
    if (grad_mode != c10::GradMode::is_enabled()) c10::GradMode::set_enabled(grad_mode);
    run_node(step.node);
    for (const ValueId value : program_->released(step)) values_[value.index] = c10::IValue();
    if (refused != ReplayProgram::kNoGroup && program_->groups[refused].end == step_ + 1) {
      options_.groups->nodes_ran(program_->groups[refused].number);
      refused = ReplayProgram::kNoGroup;
    }
  }
}

// Returns whether groups run as kernels. Kernels work on memory and call no operators, so modes that observe or replace
// operators need the nodes.
bool Interpreter::runs_groups() const {
  if (program_->groups.empty() || program_->transfers || thread_state.mode != nullptr) return false;
  const c10::DispatchKeySet watched({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                     c10::DispatchKey::Functionalize,
                                     c10::DispatchKey::FuncTorchDynamicLayerFrontMode});
  return !c10::impl::tls_local_dispatch_key_set().included_.has_any(watched);
}

bool Interpreter::run_group(uint32_t number) {
  const ReplayProgram::StepGroup& group = program_->groups[number];
  if (!options_.groups->run(group.number, values_)) return false;
  if (options_.check_results) {
    for (const ValueId result : options_.groups->groups()[group.number].results) {
      check_result(graph_.value(result).producer, result, values_[result.index]);
    }
  }
  for (const ValueId value : std::span(program_->values).subspan(group.released.begin, group.released.size)) {
    values_[value.index] = c10::IValue();
  }
  step_ = group.end - 1;
  return true;
}

void Interpreter::run_node(NodeId node) {
  const Step& step = program_->steps[step_];
  if (step.kind != StepKind::kOperator && step.kind != StepKind::kFunction) return run_builtin(node);
  if (!program_->problems.empty()) {
    if (const auto* problem = program_->problem(step_)) fail(node, problem->what);
  }
  stack_.clear();
  const auto content = [this](ValueId value) -> const c10::IValue& { return values_[value.index]; };
  program_->templates.push(step.call, content, stack_);
  if (C10_UNLIKELY(step.generator != ReplayProgram::kNoGenerator)) {
    stack_[step.generator_position] = own_generator(step.generator);
  }
  if (step.preserved.size != 0) preserve(step_);
  if (step.loose_out) separate_loose_outs(step.op->schema(), stack_);
  if (C10_UNLIKELY(transfers_ != nullptr)) {
    if (!transfers_->empty()) transfers_->wait_for(step.op != nullptr ? &step.op->schema() : nullptr, stack_);
    if (step.transfers && active_fake_mode() == nullptr) {
      const c10::IValue tensors = stack_[0];
      step.op->callBoxed(stack_);
      transfers_->add(*step.op, tensors, stack_.back());
      return store_results(step_);
    }
  }
  if (step.kind == StepKind::kOperator) {
    call_operator(node, *step.op, stack_);
  } else {
    call_function(node, *step.function, stack_);
  }
  store_results(step_);
}

// Returns the generator that replaces one of the program's generators, in its initial state at the first use of a run.
const at::Generator& Interpreter::own_generator(uint32_t number) {
  const ProgramGenerator& own = program_->generators[number];
  Drawing& drawing = drawing_[number];
  if (std::exchange(drawing.has_begun, true)) return drawing.generator;
  const auto given = options_.generators.find(own.name);
  const bool is_given = given != options_.generators.end();
  if (is_given || own.original.defined()) {
    drawing.generator = is_given ? given->second : own.original;
    if (own.always && active_fake_mode() == nullptr) put_state(drawing.generator, own);
  } else if (drawing.generator.defined()) {
    put_state(drawing.generator, own);
  } else {
    drawing.generator = create_generator(own);
  }
  return drawing.generator;
}

// Copies values that are the same tensor as an operand whose geometry is about to change.
void Interpreter::preserve(uint32_t number) {
  for (const ValueId id : program_->preserved(program_->steps[number])) {
    c10::IValue& content = values_[id.index];
    if (!content.isTensor() || !content.toTensor().defined()) continue;
    const bool is_operand = std::ranges::any_of(stack_, [&](const c10::IValue& argument) {
      return argument.isTensor() && argument.toTensor().is_same(content.toTensor());
    });
    if (is_operand) content = options_.autograd ? at::alias(content.toTensor()) : shallow_copy(content.toTensor());
  }
}

void Interpreter::call_operator(NodeId node, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  op.callBoxed(stack);
  if (C10_UNLIKELY(!stack.empty() && stack.back().isObject())) wait_for_work({stack.data(), stack.size()});
}

void Interpreter::call_function(NodeId node, const RegisteredFunction& function, torch::jit::Stack& stack) {
  bool fake = active_fake_mode() != nullptr;
  for (const c10::IValue& argument : stack) fake |= argument.isTensor() && is_fake(argument.toTensor());
  if (!fake && !function.kernel) {
    fail(node,
         "the function has a shape rule but no kernel; pass a kernel to register_function to run it on real tensors");
  }
  stack = (fake ? function.shape_rule : function.kernel)({stack.data(), stack.size()});
}

void Interpreter::store_results(uint32_t number) {
  const Step& step = program_->steps[number];
  const uint32_t* code = program_->result_codes.data() + step.results.begin;
  const uint32_t* const end = code + step.results.size;
  for (size_t i = 0; code != end; ++i) {
    if (i == stack_.size()) {
      fail(step.node, "it returned only " + std::to_string(stack_.size()) + " results; the graph has more");
    }
    if (*code == ReplayProgram::kNoValue) {
      ++code;
    } else if ((*code & ReplayProgram::kList) == 0) {
      if (options_.check_results) check_result(step.node, ValueId(*code), stack_[i]);
      values_[*code++] = std::move(stack_[i]);
    } else {
      const uint32_t count = *code++ & ~ReplayProgram::kList;
      const auto elements = stack_[i].toListRef();
      if (elements.size() != count) {
        fail(step.node, "it returned a list of " + std::to_string(elements.size()) + " elements, expected " +
                            std::to_string(count));
      }
      for (uint32_t j = 0; j < count; ++j, ++code) {
        if (*code == ReplayProgram::kNoValue) continue;
        if (options_.check_results) check_result(step.node, ValueId(*code), elements[j]);
        values_[*code] = elements[j];
      }
    }
  }
}

void Interpreter::check_result(NodeId node, ValueId id, const c10::IValue& content) const {
  const Value& value = graph_.value(id);
  if (value.kind != ValueKind::kTensor || value.layout != c10::Layout::Strided) return;
  const bool has_tensor = content.isTensor() && content.toTensor().defined();
  const at::Tensor tensor = has_tensor ? content.toTensor() : at::Tensor();
  if (has_tensor && tensor.scalar_type() == value.dtype && std::ranges::equal(tensor.sizes(), graph_.sizes(id)) &&
      std::ranges::equal(tensor.strides(), graph_.strides(id))) {
    return;
  }
  fail(node,
       "it returned " + (has_tensor ? geometry_text(tensor) : "no tensor") + ", expected " + geometry_text(graph_, id));
}

void Interpreter::run_builtin(NodeId node) {
  const auto arguments = graph_.arguments(node);
  switch (program_->steps[step_].kind) {
    case StepKind::kConstant:
      set_value(graph_.results(node)[0].ref.value,
                own_tensor(graph_.constant(arguments[0].constant), program_->steps[step_].written));
      return;
    case StepKind::kAlias:
      set_value(graph_.results(node)[0].ref.value, alias_of(node));
      return;
    case StepKind::kOutput:
      for (const Argument& output : graph_.list(arguments[0])) {
        result_.outputs.push_back(output.kind == ArgumentKind::kValue ? value(output.ref.value).toTensor()
                                                                      : at::Tensor());
      }
      return;
    case StepKind::kGradient: {
      const NodeId parameter = graph_.value(arguments[0].ref.value).producer;
      const std::string name = is_bound(graph_, parameter) ? graph_.text(graph_.arguments(parameter)[0].string)
                                                           : c10::str("%", arguments[0].ref.value.index);
      if (arguments[1].kind == ArgumentKind::kValue) {
        result_.gradients[name] = value(arguments[1].ref.value).toTensor();
      }
      return;
    }
    case StepKind::kPlaceholder:  // bound before the first node
    case StepKind::kOperator:
    case StepKind::kFunction:
      return;
  }
}

at::Tensor Interpreter::alias_of(NodeId node) const {
  const ValueId from = graph_.arguments(node)[0].ref.value, to = graph_.results(node)[0].ref.value;
  const at::Tensor source = value(from).toTensor();
  const Value& result = graph_.value(to);
  const auto dtype = caffe2::TypeMeta::fromScalarType(result.dtype);
  const auto item = static_cast<int64_t>(dtype.itemsize());
  // Offsets are relative to the source's, which may differ between the captured and the bound tensor.
  const auto source_item = static_cast<int64_t>(source.itemsize());
  const int64_t moved = (source.storage_offset() - graph_.value(from).offset) * source_item;
  const int64_t begin = moved + result.offset * item;
  const auto sizes = graph_.sizes(to);
  const auto strides = graph_.strides(to);
  int64_t end = begin;
  if (graph_.numel(to) != 0) {
    end += item;
    for (size_t i = 0; i < sizes.size(); ++i) end += (sizes[i] - 1) * strides[i] * item;
  }
  if (begin < 0 || begin % item != 0 || (end > static_cast<int64_t>(source.storage().nbytes()) && end != begin)) {
    fail(node, "it covers bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of a storage of " +
                   std::to_string(source.storage().nbytes()) +
                   " bytes; bind a tensor whose storage has the captured one's layout");
  }
  return with_geometry(source, source.storage(), dtype, {sizes.data(), sizes.size()}, {strides.data(), strides.size()},
                       begin / item);
}

const c10::IValue& Interpreter::value(ValueId value) const {
  if (value.index >= values_.size() || values_[value.index].isNone()) {
    const NodeId node = program_->steps[step_].node;
    fail(node, c10::str("%", value.index) +
                   " (value id) is undefined: it was not computed, or was released after its last use");
  }
  return values_[value.index];
}

void Interpreter::set_value(ValueId value, c10::IValue content) { values_[value.index] = std::move(content); }

void Interpreter::check_devices() const {
  if (active_fake_mode() != nullptr) return;
  for (const auto& use : program_->devices) {
    if (use.device.is_cpu() || use.device.is_meta()) continue;
    const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(use.device.type())].load();
    if (guard == nullptr || (use.device.has_index() && use.device.index() >= guard->deviceCount())) {
      fail(use.node, "device " + use.device.str() +
                         " is not available in this process; set InterpreterOptions::device to run on another device");
    }
  }
}

void Interpreter::check_binding(NodeId node, const at::Tensor& tensor) const {
  const ValueId id = graph_.results(node)[0].ref.value;
  const Value& value = graph_.value(id);
  const auto sizes = graph_.sizes(id);
  const auto strides = graph_.strides(id);
  const c10::Device device = options_.device ? *options_.device : value.device();
  const bool on_device =
      tensor.device().type() == device.type() &&
      (!device.has_index() || !tensor.device().has_index() || tensor.device().index() == device.index());
  if (!on_device) {
    fail(node, "the tensor bound to it is on " + tensor.device().str() + ", expected " + device.str() +
                   "; move it, or set InterpreterOptions::device");
  }
  const auto same_strides = [&] {
    if (tensor.layout() != c10::Layout::Strided || tensor.numel() == 0) return true;
    for (size_t i = 0; i < strides.size(); ++i) {
      if (sizes[i] != 1 && tensor.strides()[i] != strides[i]) return false;
    }
    return true;
  };
  if (tensor.scalar_type() == value.dtype && std::ranges::equal(tensor.sizes(), sizes) && same_strides()) return;
  fail(node, "the tensor bound to it is " + geometry_text(tensor) + ", expected " + geometry_text(graph_, id) +
                 "; capture the graph with such a tensor, or set InterpreterOptions::check_bindings to false if the "
                 "program allows other geometries");
}

// Returns a separate TensorImpl for a bound tensor, so that changes of its geometry do not affect the caller's.
at::Tensor Interpreter::own_tensor(const at::Tensor& bound, bool copied) {
  at::Tensor tensor = bound;
  if (ModeState* mode = active_fake_mode()) tensor = fake_of_real(bound, mode);
  if (!copied || !tensor.has_storage()) return shallow_copy(tensor);
  const c10::Storage& storage = tensor.storage();
  auto& copy = copies_[storage.unsafeGetStorageImpl()];
  if (!copy) copy = copy_of_storage(tensor);
  return with_geometry(tensor, copy, tensor.dtype(), tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void Interpreter::bind(const Bindings& bindings) {
  const auto& placeholders = program_->placeholders;
  const auto& ordered = bindings.ordered();
  if (!ordered.empty() && ordered.size() != program_->all_placeholders) {
    throw ReplayError("the graph has " + std::to_string(program_->all_placeholders) +
                          " parameters, buffers and inputs, but " + std::to_string(ordered.size()) +
                          " tensors were bound in order",
                      NodeId());
  }
  size_t found = 0;
  for (size_t i = 0; i < placeholders.size(); ++i) {
    const ReplayProgram::Step& step = program_->steps[placeholders[i].step];
    const auto named = bindings.named().find(*placeholders[i].name);
    at::Tensor tensor;
    if (named != bindings.named().end()) {
      tensor = named->second.tensor;
      found += named->second.must_exist ? 1 : 0;
    } else if (!ordered.empty()) {
      tensor = ordered[placeholders[i].position];
    }
    if (!tensor.defined()) {
      fail(step.node, "no tensor is bound to it; call Bindings::bind(\"" + *placeholders[i].name + "\", tensor)");
    }
    if (options_.check_bindings) check_binding(step.node, tensor);
    if (options_.autograd && active_fake_mode() == nullptr) {  // autograd bumps versions itself
      values_[graph_.results(step.node)[0].ref.value.index] = tensor;
      continue;
    }
    const bool copied = options_.copy_inputs && step.written;
    // Below view tracking nothing bumps versions, but autograd must detect writes to the caller's tensors.
    if (step.written && !copied && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    values_[graph_.results(step.node)[0].ref.value.index] = own_tensor(tensor, copied);
  }
  const auto wanted =
      std::ranges::count_if(bindings.named(), [](const auto& entry) { return entry.second.must_exist; });
  if (found != static_cast<size_t>(wanted)) check_names(bindings);
}

// Throws for a name without a placeholder. In a slice, placeholders that it does not need may be bound as well.
void Interpreter::check_names(const Bindings& bindings) const {
  std::unordered_set<std::string_view> known;
  for (const NodeId node : graph_.nodes()) {
    if (is_bound(graph_, node)) known.insert(graph_.text(graph_.arguments(node)[0].string));
  }
  for (const auto& [name, entry] : bindings.named()) {
    if (!entry.must_exist || known.contains(name)) continue;
    throw ReplayError("the graph has no placeholder named '" + name +
                          "'; an input that shares storage with an earlier one is an sg::alias and is not bound",
                      NodeId());
  }
}

ReplayExecutor::ReplayExecutor(Graph graph, InterpreterOptions options)
    : graph_(std::move(graph)), interpreter_(graph_, std::move(options)) {
  for (const NodeId node : graph_.nodes()) {
    if (is_bound(graph_, node)) input_names_.push_back(graph_.text(graph_.arguments(node)[0].string));
  }
}

}  // namespace shadowgraph
