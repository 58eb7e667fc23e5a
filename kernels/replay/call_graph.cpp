#include "kernels/replay/call_graph.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/ScopeExit.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/rules/registry.h"
#include "kernels/compiler/operator_table.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/kernels/program.h"

namespace shadowgraph {
namespace {

class CallGraphBuilder {
 public:
  explicit CallGraphBuilder(const c10::OperatorHandle& op) : op_(op) {}

  CallGraph run(std::span<const c10::IValue> arguments) {
    torch::jit::Stack metas;
    std::vector<Argument> own;
    for (const c10::IValue& argument : arguments) {
      ValueId value;
      own.push_back(argument_of(argument, value, metas));
      result_.arguments.push_back(value);
    }
    if (!on_) throw UnsupportedError("a call without tensors: its operands are numbers");
    for (const c10::Device& device : asked_) {
      // "host" equals "host:0".
      if (device.type() != on_->type() || (device.has_index() && on_->has_index() && device != *on_)) {
        throw UnsupportedError("a result on " + device.str());
      }
    }
    // A call of one element of a list operator is not a valid call of the operator, and returns nothing.
    if (op_.schema().returns().empty()) {
      metas.clear();
    } else {
      call_on_meta(op_, metas);
    }
    result_.node = result_.graph.append(intern_operator(result_.graph, op_), own);
    std::vector<Argument> results;
    for (const c10::IValue& result : metas) {
      if (!result.isTensor()) throw UnsupportedError("a result that is not a tensor");
      results.push_back(result.toTensor().defined() ? Argument::of_value(result_of(result.toTensor()))
                                                    : Argument::none());
    }
    result_.graph.set_results(result_.node, results);
    return std::move(result_);
  }

 private:
  Argument argument_of(const c10::IValue& argument, ValueId& value, torch::jit::Stack& metas) {
    Graph& graph = result_.graph;
    metas.push_back(argument);
    if (argument.isNone()) return Argument::none();
    if (argument.isInt()) return Argument::of_int(argument.toInt());
    if (argument.isDouble()) return Argument::of_float(argument.toDouble());
    if (argument.isBool()) return Argument::of_bool(argument.toBool());
    if (argument.isString()) return graph.string_argument(argument.toStringRef());
    if (argument.isIntList()) return graph.int_list(argument.toIntVector());
    if (argument.isBoolList()) {
      std::vector<Argument> flags;
      for (const bool flag : argument.toBoolList()) flags.push_back(Argument::of_bool(flag));
      return graph.make_list(flags);
    }
    if (argument.isDevice()) {
      asked_.push_back(argument.toDevice());
      metas.back() = c10::Device(c10::kMeta);
      return Argument::of_device(argument.toDevice());
    }
    if (!argument.isTensor()) throw UnsupportedError("an argument of type " + argument.tagKind());
    const at::Tensor& tensor = argument.toTensor();
    if (!tensor.defined()) return Argument::none();
    check(tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      metas.back() = meta_like(tensor);
      const c10::Scalar number = number_of(tensor);
      return number.isBoolean()         ? Argument::of_bool(number.toBool())
             : number.isFloatingPoint() ? Argument::of_float(number.toDouble())
                                        : Argument::of_int(number.toLong());
    }
    if (tensor.dim() > 0 || !on_) on_ = tensor.device();
    const at::Tensor meta = meta_like(tensor);
    metas.back() = meta;
    const NodeId input = graph.append(target_of(Builtin::kInput), {graph.string_argument("x")});
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    auto found = storages_.find(storage);
    if (found == storages_.end()) {
      found = storages_.emplace(storage, graph.add_storage({.kind = StorageKind::kInput, .born = input})).first;
    }
    value = graph.add_tensor_result(input, spec_of(tensor, found->second, tensor.storage_offset()));
    by_meta_[meta.unsafeGetTensorImpl()] = value;
    kept_.push_back(meta);
    return Argument::of_value(value);
  }

  ValueId result_of(const at::Tensor& tensor) {
    Graph& graph = result_.graph;
    const auto found = by_meta_.find(tensor.unsafeGetTensorImpl());
    if (found != by_meta_.end()) {
      const Value& value = graph.value(found->second);
      return graph.new_tensor(result_.node, spec_of(tensor, value.storage, value.offset));
    }
    for (const at::Tensor& other : kept_) {
      if (other.is_alias_of(tensor)) throw UnsupportedError("a result that is a view");
    }
    return graph.new_tensor(result_.node, spec_of(tensor, graph.add_storage({.born = result_.node}), 0));
  }

  static TensorMeta spec_of(const at::Tensor& tensor, StorageId storage, int64_t offset) {
    return {.dtype = tensor.scalar_type(),
            .sizes = {tensor.sizes().data(), tensor.sizes().size()},
            .strides = {tensor.strides().data(), tensor.strides().size()},
            .storage = storage,
            .offset = offset};
  }

  static void check(const at::Tensor& tensor) {
    if (tensor.layout() != c10::kStrided || !tensor.has_storage())
      throw UnsupportedError("a tensor that is not strided");
    if (is_fake(tensor)) throw UnsupportedError("a fake tensor");
    const c10::DeviceType device = tensor.device().type();
    if (device != c10::kCPU && device != c10::kPrivateUse1)
      throw UnsupportedError("a tensor on " + tensor.device().str());
    if (tensor.is_conj() || tensor.is_neg()) throw UnsupportedError("a conjugate or negative view");
    if (tensor.key_set().has(c10::DispatchKey::Functionalize) || tensor.key_set().has(c10::DispatchKey::Python)) {
      throw UnsupportedError("a tensor of an unsupported kind");
    }
  }

  const c10::OperatorHandle& op_;
  CallGraph result_;
  std::map<const c10::StorageImpl*, StorageId> storages_;
  std::map<const c10::TensorImpl*, ValueId> by_meta_;
  std::vector<at::Tensor> kept_;
  std::vector<c10::Device> asked_;
  std::optional<c10::Device> on_;  // device of the results
};

}  // namespace

c10::Scalar number_of(const at::Tensor& wrapped) {
  const void* data = wrapped.const_data_ptr();
  const c10::ScalarType dtype = wrapped.scalar_type();
  if (dtype == c10::ScalarType::Double) return *static_cast<const double*>(data);
  if (dtype == c10::ScalarType::Float) return *static_cast<const float*>(data);
  if (dtype == c10::ScalarType::Long) return *static_cast<const int64_t*>(data);
  if (dtype == c10::ScalarType::Bool) return *static_cast<const bool*>(data);
  throw UnsupportedError(std::string("a number of dtype ") + c10::toString(dtype));
}

at::Tensor meta_like(const at::Tensor& tensor) {
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

static thread_local bool on_meta = false;

bool is_calling_on_meta() { return on_meta; }

void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& metas) {
  const bool outer = std::exchange(on_meta, true);
  const auto leave = c10::make_scope_exit([outer] { on_meta = outer; });
  const at::AutoDispatchBelowADInplaceOrView below;
  if (const auto rule = RuleRegistry::global().find(toString(op.operator_name())); rule != nullptr) {
    rule->kernel.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), &metas);
  } else {
    op.callBoxed(metas);
  }
}

CallGraph call_graph(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  return CallGraphBuilder(op).run(arguments);
}

namespace {

bool is_list(const c10::IValue& argument) { return argument.isList() && !argument.isIntList(); }

// Returns the single-tensor overloads for a list overload. A list of numbers has a number per element.
std::vector<std::string> element_overloads(const std::string& overload) {
  if (overload == "List" || overload == "Tensor") return {"Tensor", ""};
  if (overload == "Scalar" || overload == "ScalarList") return {"Scalar", "Tensor_Scalar", ""};
  if (overload.empty()) return {""};
  return {};
}

}  // namespace

std::optional<c10::OperatorHandle> element_operator(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  const std::string& overload = op.schema().overload_name();
  constexpr std::string_view kForeach = "aten::_foreach_";
  if (name.starts_with("aten::_fused_")) {
    const KernelRow* row = find_kernel_row(toString(op.operator_name()));
    return row != nullptr && !row->writes.empty() ? std::optional(op) : std::nullopt;
  }
  if (!name.starts_with(kForeach)) return std::nullopt;
  const std::string single = "aten::" + name.substr(kForeach.size());
  // A tensor with a number per element.
  const bool numbers = overload == "Tensor" && single.starts_with("aten::addc");
  for (const std::string& candidate : numbers ? std::vector<std::string>() : element_overloads(overload)) {
    const auto found = c10::Dispatcher::singleton().findSchema({single, candidate});
    if (found && find_kernel_row(toString(found->operator_name())) != nullptr) return found;
  }
  return std::nullopt;
}

int64_t list_length(std::span<const c10::IValue> arguments) {
  int64_t length = 0;
  for (const c10::IValue& argument : arguments) {
    if (!is_list(argument)) continue;
    const auto own = static_cast<int64_t>(argument.toListRef().size());
    if (own == 0 || own == length) continue;
    if (length != 0) return -1;
    length = own;
  }
  return length;
}

torch::jit::Stack element_arguments(const c10::OperatorHandle& element, std::span<const c10::IValue> arguments,
                                    int64_t i) {
  torch::jit::Stack out;
  out.reserve(element.schema().arguments().size());
  for (const c10::IValue& argument : arguments) {
    if (!is_list(argument)) {
      out.push_back(argument);
    } else if (argument.toListRef().empty()) {
      out.emplace_back();
    } else {
      out.push_back(argument.toListRef()[static_cast<size_t>(i)]);
    }
  }
  const auto& formals = element.schema().arguments();
  for (size_t k = out.size(); k < formals.size(); ++k) {
    out.push_back(formals[k].default_value() ? *formals[k].default_value() : c10::IValue());
  }
  return out;
}

}  // namespace shadowgraph
