// Collectives: c10d's functional operators (_c10d_functional), which return new tensors, and those behind
// c10d::ProcessGroup's methods (c10d), which write into their operands and return a Work.
//
// The rules are boxed because some arguments have no common C++ type: objects (ProcessGroup, ReduceOp, Work), and names
// that may be a string or an object.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <numeric>

#include "core/fake/process_groups.h"
#include "core/fake/rules/registry.h"
#include "shadowgraph/error.h"

namespace shadowgraph::rules {
namespace {

using c10::IValue;
using torch::jit::Stack;

// Accesses the arguments of a call by their names in the schema.
class CollectiveCall {
 public:
  CollectiveCall(const c10::OperatorHandle& op, Stack& stack)
      : schema_(op.schema()), stack_(stack), begin_(stack.size() - op.schema().arguments().size()) {
    for (const char* name : {"process_group", "group_name"}) {
      if (const auto position = schema_.argumentIndexWithName(name)) find_group(stack_[begin_ + *position]);
    }
  }

  const IValue& first() const { return stack_[begin_]; }
  const IValue& argument(const char* name) const {
    const auto position = schema_.argumentIndexWithName(name);
    TORCH_INTERNAL_ASSERT(position.has_value(), schema_.name(), " has no argument ", name);
    return stack_[begin_ + static_cast<size_t>(*position)];
  }
  bool has(const char* name) const { return schema_.argumentIndexWithName(name).has_value(); }
  Tensor tensor(const char* name) const { return argument(name).toTensor(); }
  std::vector<Tensor> tensors(const char* name) const { return argument(name).toTensorVector(); }
  int64_t integer(const char* name) const { return argument(name).toInt(); }
  const std::string& name() const { return schema_.name(); }
  int64_t size() const { return group_->getSize(); }
  int64_t rank() const { return group_->getRank(); }

  // Functional operators also have the group size as an argument.
  void check_group_size() const {
    if (!has("group_size")) return;
    TORCH_CHECK(integer("group_size") == size(), name(), ": group_size is ", integer("group_size"), ", but group '",
                group_->getGroupName(), "' has ", size(), " processes");
  }
  void check_rank(const char* name_of_rank) const {
    const int64_t given = integer(name_of_rank);
    TORCH_CHECK(given >= 0 && given < size(), name(), ": ", name_of_rank, " ", given, " is not a rank of group '",
                group_->getGroupName(), "', which has ", size(), " processes");
  }

  template <class... Results>
  void set_results(Results&&... results) {
    stack_.resize(begin_);
    (stack_.emplace_back(std::forward<Results>(results)), ...);
  }

 private:
  void find_group(const IValue& argument) {
    group_ = group_of_argument(argument);
    if (group_) return;
    throw Error(name() + ": no process group named '" + (argument.isString() ? argument.toStringRef() : "") +
                "' is registered in this process; create it first: shadowgraph::FakeMesh or fake_process_group in C++, "
                "shadowgraph.fake_process_group or torch.distributed.init_process_group(backend=\"fake\") in Python");
  }

  const c10::FunctionSchema& schema_;
  Stack& stack_;
  size_t begin_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

void check_contiguous(const Tensor& tensor, const CollectiveCall& call) {
  TORCH_CHECK(tensor.is_contiguous(), call.name(), ": the operand must be contiguous");
}

Tensor gathered(const Tensor& input, const CollectiveCall& call) {
  check_contiguous(input, call);
  auto sizes = input.sizes().vec();
  if (sizes.empty()) sizes.push_back(1);
  sizes[0] *= call.size();
  return rules::empty(sizes, input);
}

Tensor scattered(const Tensor& input, const CollectiveCall& call) {
  check_contiguous(input, call);
  auto sizes = input.sizes().vec();
  TORCH_CHECK(!sizes.empty() && sizes[0] % call.size() == 0, call.name(), ": the first dimension of ", input.sizes(),
              " is not divisible by the ", call.size(), " processes of the group");
  sizes[0] /= call.size();
  return rules::empty(sizes, input);
}

Tensor exchanged(const Tensor& input, const CollectiveCall& call) {
  check_contiguous(input, call);
  const auto out = call.argument("output_split_sizes").toIntVector();
  const auto in = call.argument("input_split_sizes").toIntVector();
  const auto sum = [](const std::vector<int64_t>& parts) {
    return std::accumulate(parts.begin(), parts.end(), int64_t{0});
  };
  TORCH_CHECK(input.dim() > 0 && static_cast<int64_t>(out.size()) == call.size() &&
                  static_cast<int64_t>(in.size()) == call.size() && sum(in) == input.size(0),
              call.name(), ": split sizes ", out, " and ", in, " do not match ", input.sizes(), " and the ",
              call.size(), " processes of the group");
  auto sizes = input.sizes().vec();
  sizes[0] = sum(out);
  return rules::empty(sizes, input);
}

Tensor copied(const Tensor& input, const CollectiveCall& call) { return rules::empty_contiguous_like(input); }

template <Tensor (*result)(const Tensor&, const CollectiveCall&)>
void fresh(const c10::OperatorHandle& op, Stack* stack) {
  CollectiveCall call(op, *stack);
  call.check_group_size();
  if (call.has("src")) call.check_rank("src");
  if (call.first().isTensor()) {
    call.set_results(result(call.first().toTensor(), call));
    return;
  }
  c10::List<Tensor> results;
  for (const Tensor& input : call.first().toTensorVector()) results.push_back(result(input, call));
  call.set_results(std::move(results));
}

template <Tensor (*result)(const Tensor&, const CollectiveCall&)>
void into(const c10::OperatorHandle& op, Stack* stack) {
  CollectiveCall call(op, *stack);
  call.check_group_size();
  const Tensor out = call.tensor("out");
  const Tensor wanted = result(call.first().toTensor(), call);
  TORCH_CHECK(out.numel() == wanted.numel() && out.scalar_type() == wanted.scalar_type(), call.name(), ": out is ",
              out.sizes(), " ", out.scalar_type(), ", but the result is ", wanted.sizes(), " ", wanted.scalar_type());
  call.set_results(out);
}

// In-place collectives, and those that compute nothing: wait_tensor, wait_tensors.
void same(const c10::OperatorHandle& op, Stack* stack) {
  CollectiveCall call(op, *stack);
  for (const char* rank : {"src", "dst"}) {
    if (call.has(rank)) call.check_rank(rank);
  }
  IValue result = call.has("tensors") ? call.argument("tensors") : call.first();
  call.set_results(std::move(result));
}

void check_elements(const CollectiveCall& call, const Tensor& whole, const Tensor& part) {
  TORCH_CHECK(whole.scalar_type() == part.scalar_type(), call.name(),
              ": output tensor must have the same type as input "
              "tensor (",
              whole.scalar_type(), ", ", part.scalar_type(), ")");
  TORCH_CHECK(whole.numel() == part.numel() * call.size(), call.name(), ": expected ", call.size(), " x ", part.numel(),
              " elements, one part for each process of the group, but got ", whole.numel());
}

void check_parts(const CollectiveCall& call, const std::vector<Tensor>& parts, const Tensor& like) {
  TORCH_CHECK(static_cast<int64_t>(parts.size()) == call.size(), call.name(), ": expected ", call.size(),
              " tensors, one for each process, but got ", parts.size());
  for (const Tensor& part : parts) {
    TORCH_CHECK(part.scalar_type() == like.scalar_type(), call.name(),
                ": tensors of different dtypes: ", part.scalar_type(), ", ", like.scalar_type());
  }
}

std::vector<std::vector<Tensor>> lists(const IValue& value) {
  std::vector<std::vector<Tensor>> result;
  for (const IValue& element : value.toListRef()) result.push_back(element.toTensorVector());
  return result;
}

// Expects one list of parts for each whole.
void check_lists(const CollectiveCall& call, const IValue& parts, const std::vector<Tensor>& wholes) {
  const auto all = lists(parts);
  TORCH_CHECK(all.size() == wholes.size(), call.name(), ": expected ", wholes.size(), " lists of tensors, but got ",
              all.size());
  for (size_t i = 0; i < all.size(); ++i) check_parts(call, all[i], wholes[i]);
}

void check_splits(const CollectiveCall& call, const char* name, const Tensor& tensor) {
  const auto splits = call.argument(name).toIntVector();
  if (splits.empty()) {
    TORCH_CHECK(tensor.dim() > 0 && tensor.size(0) % call.size() == 0, call.name(), ": ", tensor.sizes(),
                " is not divisible by group size ", call.size());
    return;
  }
  TORCH_CHECK(static_cast<int64_t>(splits.size()) == call.size() &&
                  std::accumulate(splits.begin(), splits.end(), int64_t{0}) == tensor.size(0),
              call.name(), ": ", name, " ", splits, " do not match ", tensor.sizes(), " and the ", call.size(),
              " processes of the group");
}

void check_operands(const CollectiveCall& call) {
  const std::string_view name = std::string_view(call.name()).substr(std::string_view("c10d::").size());
  for (const char* rank : {"root_rank", "dst", "src"}) {
    if (call.has(rank)) call.check_rank(rank);
  }
  const bool at_root = call.has("root_rank") && call.rank() == call.integer("root_rank");
  if (name == "send" || name.starts_with("recv_")) {
    for (const Tensor& tensor : call.tensors("tensors")) {
      TORCH_CHECK(tensor.is_contiguous(tensor.suggest_memory_format()), call.name(), ": a tensor of sizes ",
                  tensor.sizes(), " with strides ", tensor.strides(), " must be contiguous");
    }
  } else if (name == "_allgather_base_" || (at_root && name == "gather_into_tensor_")) {
    check_elements(call, call.tensor("output_tensor"), call.tensor("input_tensor"));
  } else if (name == "_reduce_scatter_base_") {
    check_elements(call, call.tensor("input_tensor"), call.tensor("output_tensor"));
  } else if (name == "allgather_into_tensor_coalesced_" || name == "reduce_scatter_tensor_coalesced_") {
    const bool gather = name.starts_with("allgather");
    const auto wholes = call.tensors(gather ? "outputs" : "inputs");
    const auto parts = call.tensors(gather ? "inputs" : "outputs");
    TORCH_CHECK(wholes.size() == parts.size(), call.name(), ": expected as many inputs as outputs, but got ",
                parts.size(), " and ", wholes.size());
    for (size_t i = 0; i < wholes.size(); ++i) check_elements(call, wholes[i], parts[i]);
  } else if (name == "allgather_" || (at_root && name == "gather_")) {
    check_lists(call, call.argument("output_tensors"), call.tensors("input_tensors"));
  } else if (name == "reduce_scatter_" || (at_root && name == "scatter_")) {
    check_lists(call, call.argument("input_tensors"), call.tensors("output_tensors"));
  } else if (name == "alltoall_") {
    const auto outputs = call.tensors("output_tensors");
    const auto inputs = call.tensors("input_tensors");
    TORCH_CHECK(!outputs.empty(), call.name(), ": the list of tensors is empty");
    check_parts(call, outputs, outputs[0]);
    check_parts(call, inputs, outputs[0]);
  } else if (name == "alltoall_base_") {
    const Tensor output = call.tensor("output"), input = call.tensor("input");
    TORCH_CHECK(output.scalar_type() == input.scalar_type(), call.name(),
                ": tensors of different dtypes: ", output.scalar_type(), ", ", input.scalar_type());
    check_splits(call, "output_split_sizes", output);
    check_splits(call, "input_split_sizes", input);
  }
}

// Returns the tensors written, flattened: the result of the Work.
std::vector<Tensor> written_by(const IValue& first) {
  if (first.isTensor()) return {first.toTensor()};
  if (first.isTensorList()) return first.toTensorVector();
  std::vector<Tensor> all;
  for (const auto& list : lists(first)) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void with_work(const c10::OperatorHandle& op, Stack* stack) {
  CollectiveCall call(op, *stack);
  check_operands(call);
  IValue first = call.first();
  const auto& returns = op.schema().returns();
  if (returns.empty()) {
    call.set_results();
    return;
  }
  // send, recv and the coalesced gathers have no such argument: they run on a separate stream.
  const bool asynchronous = !call.has("async_op") || call.argument("async_op").toBool();
  const bool sends = call.name() == "c10d::send";
  const bool writes = !sends && call.name() != "c10d::barrier";
  IValue work = completed_work(writes ? written_by(first) : std::vector<Tensor>(), asynchronous,
                               sends ? written_by(first) : std::vector<Tensor>());
  if (returns.size() == 2) {
    call.set_results(std::move(first), std::move(work));
  } else {
    call.set_results(std::move(work));
  }
}

// Defined in Python, where it returns a tensor that waits at its first use: the same memory.
Tensor wrapped(const Tensor& input) {
  return rules::alias(input, input.sizes(), input.strides(), input.storage_offset());
}

}  // namespace

void register_collectives(RuleRegistry& registry) {
  registry.add("_c10d_functional::_wrap_tensor_autograd", &wrapped);
  add_boxed<&fresh<&copied>>(registry, {"_c10d_functional::all_reduce", "_c10d_functional::all_reduce_coalesced",
                                        "_c10d_functional::broadcast", "_c10d_functional_autograd::all_reduce"});
  add_boxed<&fresh<&gathered>>(
      registry, {"_c10d_functional::all_gather_into_tensor", "_c10d_functional::all_gather_into_tensor_coalesced",
                 "_c10d_functional_autograd::all_gather_into_tensor"});
  add_boxed<&fresh<&scattered>>(
      registry, {"_c10d_functional::reduce_scatter_tensor", "_c10d_functional::reduce_scatter_tensor_coalesced",
                 "_c10d_functional_autograd::reduce_scatter_tensor"});
  add_boxed<&fresh<&exchanged>>(
      registry, {"_c10d_functional::all_to_all_single", "_c10d_functional_autograd::all_to_all_single"});
  add_boxed<&into<&gathered>>(registry, {"_c10d_functional::all_gather_into_tensor_out"});
  add_boxed<&into<&scattered>>(registry, {"_c10d_functional::reduce_scatter_tensor_out"});
  add_boxed<&same>(registry,
                   {"_c10d_functional::all_reduce_", "_c10d_functional::all_reduce_coalesced_",
                    "_c10d_functional::broadcast_", "_c10d_functional::wait_tensor", "_c10d_functional::wait_tensors",
                    "_c10d_functional::isend", "_c10d_functional::irecv", "_c10d_functional::batch_p2p_ops"});
  add_boxed<&with_work>(registry, {"c10d::broadcast_",
                                   "c10d::allreduce_",
                                   "c10d::allreduce_coalesced_",
                                   "c10d::reduce_",
                                   "c10d::barrier",
                                   "c10d::allgather_",
                                   "c10d::_allgather_base_",
                                   "c10d::allgather_coalesced_",
                                   "c10d::allgather_into_tensor_coalesced_",
                                   "c10d::reduce_scatter_",
                                   "c10d::_reduce_scatter_base_",
                                   "c10d::reduce_scatter_tensor_coalesced_",
                                   "c10d::gather_",
                                   "c10d::gather_into_tensor_",
                                   "c10d::scatter_",
                                   "c10d::alltoall_",
                                   "c10d::alltoall_base_",
                                   "c10d::monitored_barrier_",
                                   "c10d::send",
                                   "c10d::recv_",
                                   "c10d::recv_any_source_"});
}

}  // namespace shadowgraph::rules
