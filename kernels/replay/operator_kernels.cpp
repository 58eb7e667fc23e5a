// Runs single calls. A prepared call, a launch that only lacks pointers and scalars, is looked up by a signature of all
// that affects the kernel: dtypes, sizes, strides, shared storages, and numbers that the program depends on.
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/compiler/lowering.h"
#include "kernels/compiler/operator_table.h"
#include "kernels/replay/call_graph.h"
#include "kernels/replay/launch.h"
#include "shadowgraph/kernels/kernel.h"
#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

// Maximum number of operands and scalars of a kernel.
constexpr size_t kMaxOperands = 32;

namespace {

struct PreparedCall {
  struct Part {
    LoweredKernel plan;
    KernelRef kernel;
    std::vector<uint32_t> inputs;   // positions on the stack
    std::vector<uint32_t> outputs;  // of `fresh`
  };
  std::vector<Part> parts;  // empty: not supported, for the reason in `problem`
  std::vector<ResultGeometry> fresh;
  // For each result: the index of a new tensor, -1 - the position on the stack, or kUndefined.
  static constexpr int kUndefined = -1000;
  std::vector<int> results;
  std::string problem;
  const KernelBackend* backend = nullptr;  // of the cache that the call was prepared with
  // Bit mask of the arguments whose value affects the program.
  uint64_t decisive = 0;

  mutable std::atomic<Trial*> trial = nullptr;  // set once measured

  // Number of elements processed.
  int64_t work() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.plan.range * part.plan.row_work;
    return sum;
  }

  // Returns kReady if all kernels are ready, kFailed if one failed.
  Kernel::State state() const {
    Kernel::State worst = parts.empty() ? Kernel::State::kFailed : Kernel::State::kReady;
    for (const Part& part : parts) {
      if (part.kernel->function() != nullptr) continue;
      worst = Kernel::State::kPending;
      if (part.kernel->state() == Kernel::State::kFailed) return Kernel::State::kFailed;
    }
    return worst;
  }
};

bool is_number(const c10::IValue& argument) { return argument.isInt() || argument.isDouble() || argument.isBool(); }

int64_t scalar_bits(const c10::IValue& argument) {
  if (argument.isDouble()) return std::bit_cast<int64_t>(argument.toDouble());
  if (argument.isInt()) return argument.toInt();
  if (argument.isBool()) return argument.toBool() ? 1 : 0;
  const c10::Scalar number = number_of(argument.toTensor());
  if (number.isFloatingPoint()) return std::bit_cast<int64_t>(number.toDouble());
  return number.isBoolean() ? (number.toBool() ? 1 : 0) : number.toLong();
}

void bind(const CallGraph& call, PreparedCall& made) {
  const Graph& graph = call.graph;
  const auto position_of = [&](ValueId v) {
    const auto found = std::ranges::find(call.arguments, v);
    TORCH_INTERNAL_ASSERT(found != call.arguments.end());
    return static_cast<uint32_t>(found - call.arguments.begin());
  };
  std::vector<ValueId> outputs;
  for (PreparedCall::Part& part : made.parts) {
    const LoweredKernel& plan = part.plan;
    made.decisive |= plan.decisive;
    for (const ValueId input : plan.inputs) part.inputs.push_back(position_of(input));
    if (plan.inputs.size() + plan.outputs.size() > kMaxOperands || plan.scalar_arguments.size() > kMaxOperands) {
      throw UnsupportedError("too many operands");
    }
    for (const ValueId output : plan.outputs) {
      part.outputs.push_back(static_cast<uint32_t>(outputs.size()));
      outputs.push_back(output);
      made.fresh.push_back(ResultGeometry::of(graph, output));
    }
  }
  for (const Argument& result : graph.results(call.node)) {
    if (result.kind != ArgumentKind::kValue) {
      made.results.push_back(PreparedCall::kUndefined);
      continue;
    }
    ValueId tensor = result.ref.value;
    for (const PreparedCall::Part& part : made.parts) {
      const auto same = std::ranges::find(part.plan.same_tensor, tensor, &LoweredKernel::SameTensor::result);
      if (same != part.plan.same_tensor.end()) tensor = same->tensor;
    }
    const auto fresh = std::ranges::find(outputs, tensor);
    made.results.push_back(fresh != outputs.end() ? static_cast<int>(fresh - outputs.begin())
                                                  : -1 - static_cast<int>(position_of(tensor)));
  }
}

// Numbers are passed with the call; other tensors must be on the kernel's device.
void check_devices(std::span<const c10::IValue> arguments, c10::DeviceType device) {
  if (device == c10::kCPU) return;  // host memory, under any name
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor& tensor = argument.toTensor();
    if (tensor.device().type() == device || tensor.unsafeGetTensorImpl()->is_wrapped_number()) continue;
    throw UnsupportedError("an operand on " + tensor.device().str());
  }
}

std::shared_ptr<const PreparedCall> prepare_call(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                                                 const KernelOptions& options, KernelCache& cache) {
  auto made = std::make_shared<PreparedCall>();
  try {
    if (arguments.size() > kMaxOperands) throw UnsupportedError("too many arguments");
    check_devices(arguments, cache.backend().device());
    made->backend = &cache.backend();
    const CallGraph call = call_graph(op, arguments);
    for (LoweredKernel& plan : lower_parts(call.graph, call.node, options))
      made->parts.push_back({.plan = std::move(plan)});
    bind(call, *made);
    for (PreparedCall::Part& part : made->parts) {
      part.kernel = cache.find(part.plan.name, part.plan.program);
      if (part.kernel == nullptr) throw UnsupportedError(cache.backend().problem());
    }
    return made;
  } catch (const std::exception& error) {  // the original reports what is wrong with the call
    const auto* libtorch = dynamic_cast<const c10::Error*>(&error);
    auto refused = std::make_shared<PreparedCall>();
    refused->problem = libtorch != nullptr ? libtorch->what_without_backtrace() : error.what();
    refused->decisive = ~uint64_t{0};  // the rejection may depend on its numbers
    return refused;
  }
}

// Appends the call's results to `results`; all kernels must be ready. Returns false if an index is out of range,
// without results; the original then reports the error.
bool run_call(const PreparedCall& call, std::span<const c10::IValue> arguments, torch::jit::Stack& results) {
  const at::Tensor* first = nullptr;
  for (const PreparedCall::Part& part : call.parts) {
    for (const uint32_t position : part.inputs) {
      const at::Tensor& tensor = arguments[position].toTensor();
      if (first == nullptr || (tensor.dim() > 0 && first->dim() == 0)) first = &tensor;
    }
  }
  c10::SmallVector<at::Tensor, 4> fresh;
  const c10::Device device = first == nullptr ? c10::Device(c10::kCPU) : first->device();
  for (const ResultGeometry& wanted : call.fresh) fresh.push_back(wanted.allocate(device));
  for (const PreparedCall::Part& part : call.parts) {
    void* data[kMaxOperands];
    int64_t scalars[kMaxOperands];
    size_t operands = 0;
    for (size_t i = 0; i < part.inputs.size(); ++i) {
      const at::Tensor& tensor = arguments[part.inputs[i]].toTensor();
      const bool written = part.plan.program.operands[i].written;
      data[operands++] = written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
    }
    for (const uint32_t output : part.outputs) data[operands++] = fresh[output].data_ptr();
    for (size_t i = 0; i < part.plan.scalar_arguments.size(); ++i) {
      const uint32_t argument = part.plan.scalar_arguments[i];
      const bool fixed = argument == ExpressionBuilder::kNoArgument;
      scalars[i] = fixed ? part.plan.scalars[i] : scalar_bits(arguments[argument]);
    }
    const size_t numbers = part.plan.scalar_arguments.size();
    if (!launch(*call.backend, part.kernel->function(), part.plan, {data, operands}, {scalars, numbers})) return false;
  }
  for (const int result : call.results) {
    if (result == PreparedCall::kUndefined) {
      results.emplace_back(at::Tensor());
    } else {
      results.push_back(result >= 0 ? c10::IValue(fresh[static_cast<size_t>(result)])
                                    : arguments[static_cast<size_t>(-1 - result)]);
    }
  }
  return true;
}

using Words = c10::SmallVector<int64_t, 64>;

// Maximum number of prepared calls per operator; beyond that they are discarded, but not their kernels.
constexpr size_t kMaxPreparedCalls = 4096;

struct WordsHash {
  size_t operator()(const Words& words) const {
    uint64_t hash = words.size();
    for (const int64_t word : words) hash = (std::rotl(hash, 5) ^ static_cast<uint64_t>(word)) * 0x9e3779b97f4a7c15ULL;
    return hash;
  }
};

struct OperatorEntry {
  std::optional<c10::OperatorHandle> element;  // of a list operator
  bool gives_list = false;
  std::shared_mutex mutex;
  uint64_t decisive = 0;
  std::unordered_map<Words, std::shared_ptr<const PreparedCall>, WordsHash> calls;
  std::atomic<int64_t> ran = 0, compiling = 0, unsupported = 0, original = 0;
  std::string reason;
};

void append_value(const c10::IValue& argument, Words& words) {
  const auto add_all = [&](const auto& list) {
    words.push_back(static_cast<int64_t>(list.size()));
    for (const int64_t element : list) words.push_back(element);
  };
  if (is_number(argument)) {
    words.push_back(scalar_bits(argument));
  } else if (argument.isString()) {
    add_all(argument.toStringRef());
  } else if (argument.isIntList()) {
    add_all(argument.toIntList());
  } else if (argument.isBoolList()) {
    add_all(argument.toBoolList());
  } else if (argument.isDevice()) {
    words.push_back(static_cast<int64_t>(argument.toDevice().type()) << 8 | (argument.toDevice().index() & 0xFF));
  }
}

void append_tensor(const at::Tensor& tensor, Words& words) {
  if (!tensor.defined()) {
    words.push_back(-1);
    return;
  }
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto sizes = tensor.sizes();
  const auto strides = impl->has_storage() ? tensor.strides() : c10::IntArrayRef();
  words.push_back(static_cast<int64_t>(sizes.size()) << 16 | static_cast<int64_t>(tensor.scalar_type()) << 8 |
                  (impl->is_wrapped_number() ? 1 : 0));
  words.push_back(static_cast<int64_t>(impl->key_set().raw_repr()));
  words.append(sizes.begin(), sizes.end());
  words.append(strides.begin(), strides.end());
}

// Returns false for unsupported arguments.
bool signature(std::span<const c10::IValue> arguments, uint64_t decisive, Words& words) {
  words.push_back(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  const c10::StorageImpl* storages[kMaxOperands];
  int64_t offsets[kMaxOperands];
  size_t tensors = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (!argument.isTensor()) {
      words.push_back(argument.isNone()     ? 2
                      : argument.isInt()    ? 3
                      : argument.isDouble() ? 4
                      : argument.isBool()   ? 5
                                            : 6);
      if (!is_number(argument) || ((decisive >> i) & 1U) != 0) append_value(argument, words);
      continue;
    }
    const at::Tensor& tensor = argument.toTensor();
    append_tensor(tensor, words);
    if (!tensor.defined() || !tensor.has_storage()) continue;
    if (tensors == kMaxOperands) return false;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    const auto* const first = std::find(storages, storages + tensors, storage);
    if (first != storages + tensors) {
      words.push_back(first - storages);
      words.push_back(tensor.storage_offset() - offsets[first - storages]);
    }
    storages[tensors] = storage;
    offsets[tensors++] = tensor.storage_offset();
    if (((decisive >> i) & 1U) != 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      // Of any dtype, including complex ones, which no kernel supports.
      int64_t number[2] = {};
      std::memcpy(number, tensor.const_data_ptr(), std::min(sizeof(number), tensor.nbytes()));
      words.append(std::begin(number), std::end(number));
    }
  }
  return true;
}

// Returns the arguments that always affect a plan: all except numbers used in computations. Dtypes are ints.
uint64_t deciding_by_type(const c10::FunctionSchema& schema) {
  uint64_t deciding = 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    c10::TypePtr type = schema.arguments()[i].type();
    if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
    const bool computed = type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType ||
                          type->kind() == c10::TypeKind::TensorType;
    if (!computed && i < 64) deciding |= uint64_t{1} << i;
  }
  return deciding;
}

}  // namespace

class OperatorKernels::Table {
 public:
  Table(std::shared_ptr<KernelCache> cache, KernelOptions options, KernelMeasureOptions measure)
      : cache_(std::move(cache)), options_(options), trials_(*cache_, std::move(measure)) {}

  Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack, OriginalCall* original) {
    OperatorEntry& entry = entry_of(op);
    const size_t count = op.schema().arguments().size();
    const std::span<const c10::IValue> arguments(stack.data() + stack.size() - count, count);
    torch::jit::Stack results;
    const Outcome outcome = entry.element ? call_elements(op, entry, arguments, original, results)
                                          : call_once(op, entry, arguments, original, results);
    auto& counter = outcome == Outcome::kRan         ? entry.ran
                    : outcome == Outcome::kCompiling ? entry.compiling
                    : outcome == Outcome::kOriginal  ? entry.original
                                                     : entry.unsupported;
    counter.fetch_add(1, std::memory_order_relaxed);
    if (outcome != Outcome::kRan) return outcome;
    stack.erase(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    for (c10::IValue& result : results) stack.push_back(std::move(result));
    return outcome;
  }

  std::vector<Report> report() const {
    const std::shared_lock lock(mutex_);
    std::map<std::string, Report> sorted;
    for (const auto& [op, entry] : entries_) {
      const std::shared_lock own(entry->mutex);
      const std::string name = toString(op.operator_name());
      sorted[name] = {name, entry->ran, entry->compiling, entry->unsupported, entry->original, entry->reason};
    }
    std::vector<Report> out;
    for (auto& [name, report] : sorted) out.push_back(std::move(report));
    return out;
  }

  KernelCache& cache() const { return *cache_; }

 private:
  static Outcome outcome_of(const PreparedCall* call) {
    if (call == nullptr) return Outcome::kUnsupported;
    const Kernel::State state = call->state();
    return state == Kernel::State::kReady     ? Outcome::kRan
           : state == Kernel::State::kPending ? Outcome::kCompiling
                                              : Outcome::kUnsupported;
  }

  // Runs the kernels or leaves the call to the original, whichever is faster or to be measured next.
  template <class F>
  static Outcome run_faster(Trial* trial, OriginalCall* original, F&& run) {
    const Trial::Implementation verdict = trial != nullptr ? trial->verdict() : Trial::Implementation::kKernel;
    const bool measured = verdict == Trial::Implementation::kUnknown;
    const Trial::Implementation implementation = measured ? trial->next() : verdict;
    const int64_t began = measured ? trial->now() : 0;
    if (implementation == Trial::Implementation::kOriginal) {
      if (measured) *original = OriginalCall(trial, began);
      return Outcome::kOriginal;
    }
    if (!run()) return Outcome::kUnsupported;
    if (measured) trial->took(implementation, trial->now() - began);
    return Outcome::kRan;
  }

  Outcome call_once(const c10::OperatorHandle& op, OperatorEntry& entry, std::span<const c10::IValue> arguments,
                    OriginalCall* original, torch::jit::Stack& results) {
    const auto prepared = find(op, entry, arguments);
    const Outcome outcome = outcome_of(prepared.get());
    if (outcome != Outcome::kRan) return outcome;
    Trial* trial = nullptr;
    if (original != nullptr && trials_.enabled()) {
      trial = prepared->trial.load(std::memory_order_acquire);
      if (trial == nullptr) {
        trial = &trial_of(toString(op.operator_name()), *prepared, prepared->work());
        prepared->trial.store(trial, std::memory_order_release);
      }
    }
    return run_faster(trial, original, [&] {
      results.reserve(prepared->results.size());
      return run_call(*prepared, arguments, results);
    });
  }

  // No element runs before all of them can.
  Outcome call_elements(const c10::OperatorHandle& op, OperatorEntry& entry, std::span<const c10::IValue> arguments,
                        OriginalCall* original, torch::jit::Stack& results) {
    const int64_t length = list_length(arguments);
    if (length <= 0) return Outcome::kUnsupported;
    std::vector<torch::jit::Stack> stacks;
    std::vector<std::shared_ptr<const PreparedCall>> prepared;
    Outcome worst = Outcome::kRan;
    for (int64_t i = 0; i < length; ++i) {
      stacks.push_back(element_arguments(*entry.element, arguments, i));
      prepared.push_back(find(*entry.element, entry, stacks.back()));
      const Outcome outcome = outcome_of(prepared.back().get());
      if (outcome == Outcome::kUnsupported) return outcome;
      if (outcome == Outcome::kCompiling) worst = outcome;
    }
    if (worst != Outcome::kRan) return worst;
    Trial* trial = nullptr;
    if (original != nullptr && trials_.enabled()) {
      int64_t work = 0;
      for (const auto& call : prepared) work += call->work();
      const std::string name = toString(op.operator_name()) + " of " + std::to_string(length);
      trial = &trial_of(name, *prepared[0], work);
    }
    return run_faster(trial, original, [&] {
      c10::List<at::Tensor> made;
      for (size_t i = 0; i < stacks.size(); ++i) {
        torch::jit::Stack own;
        run_call(*prepared[i], stacks[i], own);
        for (const c10::IValue& result : own) made.push_back(result.toTensor());
      }
      if (entry.gives_list) results.emplace_back(std::move(made));
      return true;
    });
  }

  // The trial is stored with the first of the call's kernels.
  Trial& trial_of(const std::string& name, const PreparedCall& call, int64_t work) {
    return trials_.of(call.parts[0].kernel, "eager " + name, work);
  }

  OperatorEntry& entry_of(const c10::OperatorHandle& op) {
    {
      const std::shared_lock lock(mutex_);
      const auto found = entries_.find(op);
      if (found != entries_.end()) return *found->second;
    }
    const std::unique_lock lock(mutex_);
    auto& entry = entries_[op];
    if (entry == nullptr) {
      entry = std::make_unique<OperatorEntry>();
      entry->element = element_operator(op);
      entry->gives_list = !op.schema().returns().empty();
      entry->decisive = deciding_by_type(entry->element ? entry->element->schema() : op.schema());
    }
    return *entry;
  }

  std::shared_ptr<const PreparedCall> find(const c10::OperatorHandle& op, OperatorEntry& entry,
                                           std::span<const c10::IValue> arguments) {
    Words words;
    uint64_t decisive = 0;
    {
      const std::shared_lock lock(entry.mutex);
      decisive = entry.decisive;
      if (!signature(arguments, decisive, words)) return nullptr;
      const auto found = entry.calls.find(words);
      if (found != entry.calls.end()) return found->second;
    }
    auto call = prepare_call(op, arguments, options_, *cache_);
    const std::unique_lock lock(entry.mutex);
    // An argument turned out to affect the program: signatures without it are incomplete.
    const uint64_t deciding = entry.decisive | call->decisive;
    if (deciding != entry.decisive || entry.calls.size() >= kMaxPreparedCalls) entry.calls.clear();
    if (deciding != decisive) {
      words.clear();
      if (!signature(arguments, deciding, words)) return nullptr;
    }
    entry.decisive = deciding;
    if (call->parts.empty()) entry.reason = call->problem;
    return entry.calls.insert_or_assign(words, std::move(call)).first->second;
  }

  const std::shared_ptr<KernelCache> cache_;
  const KernelOptions options_;
  Trials trials_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<c10::OperatorHandle, std::unique_ptr<OperatorEntry>> entries_;
};

void OperatorKernels::OriginalCall::ended() {
  if (trial_ != nullptr) trial_->took(Trial::Implementation::kOriginal, trial_->now() - began_);
}

OperatorKernels::OperatorKernels(std::shared_ptr<KernelCache> cache, KernelOptions options,
                                 KernelMeasureOptions measure)
    : table_(std::make_unique<Table>(std::move(cache), options, std::move(measure))) {}
OperatorKernels::~OperatorKernels() = default;

OperatorKernels::Outcome OperatorKernels::call(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                               OriginalCall* original) {
  return table_->call(op, stack, original);
}
std::vector<OperatorKernels::Report> OperatorKernels::report() const { return table_->report(); }
KernelCache& OperatorKernels::cache() const { return table_->cache(); }

}  // namespace shadowgraph
