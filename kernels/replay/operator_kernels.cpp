// One call: found by a signature of words, which holds all that decides what is run (dtypes, sizes, strides, what shares
// storage, numbers that decide), compared in full. What is found is a finished launch: pointers and numbers are all that
// is missing.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <bit>
#include <map>
#include <shared_mutex>
#include <unordered_map>

#include "kernels/replay/call_graph.h"
#include "kernels/replay/launch.h"
#include "kernels/replay/trial.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {
namespace {

using Words = c10::SmallVector<int64_t, 64>;

// Launches of one operator that are kept; past it all are forgotten (kernels are not).
constexpr size_t kMostLaunches = 4096;
constexpr size_t kMostOperands = 32;

struct WordsHash {
  size_t operator()(const Words& words) const {
    uint64_t hash = words.size();
    for (const int64_t word : words) hash = (std::rotl(hash, 5) ^ static_cast<uint64_t>(word)) * 0x9e3779b97f4a7c15ULL;
    return hash;
  }
};

struct Launch {
  KernelPlan plan;
  KernelRef kernel;                       // nullptr: not supported
  std::string problem;                    // then
  std::vector<uint32_t> input_positions;  // on the stack
  struct Fresh {
    c10::ScalarType dtype;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    bool contiguous = false;
  };
  std::vector<Fresh> fresh;
  // What each result is: an output, or -1 - the position on the stack.
  std::vector<int> results;
  mutable std::atomic<Trial*> trial = nullptr;  // once the kernel is ready and somebody measures
};

struct OperatorEntry {
  std::shared_mutex mutex;
  uint64_t decisive = 0;
  std::unordered_map<Words, std::shared_ptr<const Launch>, WordsHash> launches;
  std::atomic<int64_t> ran = 0;
  std::atomic<int64_t> compiling = 0;
  std::atomic<int64_t> unsupported = 0;
  std::atomic<int64_t> original = 0;
  std::string reason;
};

void append_value(const c10::IValue& argument, Words& words) {
  if (argument.isInt()) {
    words.push_back(argument.toInt());
  } else if (argument.isDouble()) {
    words.push_back(std::bit_cast<int64_t>(argument.toDouble()));
  } else if (argument.isBool()) {
    words.push_back(argument.toBool() ? 1 : 0);
  } else if (argument.isString()) {
    const std::string& text = argument.toStringRef();
    words.push_back(static_cast<int64_t>(text.size()));
    for (const char c : text) words.push_back(c);
  } else if (argument.isIntList()) {
    const auto list = argument.toIntList();
    words.push_back(static_cast<int64_t>(list.size()));
    for (const int64_t i : list) words.push_back(i);
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

// False: an argument that no kernel takes.
bool signature(std::span<const c10::IValue> arguments, uint64_t decisive, Words& words) {
  words.push_back(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  const c10::StorageImpl* storages[kMostOperands];
  int64_t offsets[kMostOperands];
  size_t tensors = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (!argument.isTensor()) {
      words.push_back(argument.isNone()     ? 2
                      : argument.isInt()    ? 3
                      : argument.isDouble() ? 4
                      : argument.isBool()   ? 5
                                            : 6);
      const bool number = argument.isInt() || argument.isDouble() || argument.isBool();
      if (!number || ((decisive >> i) & 1U) != 0) append_value(argument, words);
      continue;
    }
    const at::Tensor& tensor = argument.toTensor();
    append_tensor(tensor, words);
    if (!tensor.defined() || !tensor.has_storage()) continue;
    if (tensors == kMostOperands) return false;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    const auto* const first = std::find(storages, storages + tensors, storage);
    if (first != storages + tensors) {
      words.push_back(first - storages);
      words.push_back(tensor.storage_offset() - offsets[first - storages]);
    }
    storages[tensors] = storage;
    offsets[tensors++] = tensor.storage_offset();
    if (((decisive >> i) & 1U) != 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      words.push_back(std::bit_cast<int64_t>(number_of(tensor).toDouble()));
    }
  }
  return true;
}

// Arguments that decide whatever a plan says: all but numbers that are computed with. A dtype is an int, too.
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

int64_t scalar_bits(const c10::IValue& argument) {
  if (argument.isDouble()) return std::bit_cast<int64_t>(argument.toDouble());
  if (argument.isInt()) return argument.toInt();
  if (argument.isBool()) return argument.toBool() ? 1 : 0;
  const c10::Scalar number = number_of(argument.toTensor());
  if (number.isFloatingPoint()) return std::bit_cast<int64_t>(number.toDouble());
  return number.isBoolean() ? (number.toBool() ? 1 : 0) : number.toLong();
}

}  // namespace

class OperatorKernels::Table {
 public:
  Table(std::shared_ptr<KernelCache> cache, KernelOptions options, MeasureOptions measure)
      : cache_(std::move(cache)), options_(options), trials_(*cache_, std::move(measure)) {}

  Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack, OriginalCall* original) {
    OperatorEntry& entry = entry_of(op);
    const size_t count = op.schema().arguments().size();
    const std::span<const c10::IValue> arguments(stack.data() + stack.size() - count, count);
    const std::shared_ptr<const Launch> launch = find(op, entry, arguments);
    if (launch == nullptr || launch->kernel == nullptr) {
      entry.unsupported.fetch_add(1, std::memory_order_relaxed);
      return Outcome::kUnsupported;
    }
    const KernelFunction function = launch->kernel->function();
    if (function == nullptr) {
      const bool pending = launch->kernel->state() == Kernel::State::kPending;
      (pending ? entry.compiling : entry.unsupported).fetch_add(1, std::memory_order_relaxed);
      return pending ? Outcome::kCompiling : Outcome::kUnsupported;
    }
    Trial* const trial = original != nullptr && trials_.enabled() ? &trial_of(op, *launch) : nullptr;
    const Trial::Way verdict = trial != nullptr ? trial->verdict() : Trial::Way::kKernel;
    const bool measured = verdict == Trial::Way::kUnknown;
    const Trial::Way way = measured ? trial->next() : verdict;
    const int64_t began = measured ? trial->now() : 0;
    if (way == Trial::Way::kOriginal) {
      if (measured) *original = OriginalCall(trial, began);
      entry.original.fetch_add(1, std::memory_order_relaxed);
      return Outcome::kOriginal;
    }
    run(*launch, function, arguments, stack);
    if (measured) trial->took(way, trial->now() - began);
    entry.ran.fetch_add(1, std::memory_order_relaxed);
    return Outcome::kRan;
  }

  std::vector<Report> report() const {
    const std::shared_lock lock(mutex_);
    std::map<std::string, Report> sorted;
    for (const auto& [op, entry] : entries_) {
      const std::shared_lock own(entry->mutex);
      std::string name = op.schema().name();
      if (!op.schema().overload_name().empty()) name += "." + op.schema().overload_name();
      sorted[name] = {name, entry->ran, entry->compiling, entry->unsupported, entry->original, entry->reason};
    }
    std::vector<Report> out;
    for (auto& [name, report] : sorted) out.push_back(std::move(report));
    return out;
  }

  KernelCache& cache() const { return *cache_; }

 private:
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
      entry->decisive = deciding_by_type(op.schema());
    }
    return *entry;
  }

  std::shared_ptr<const Launch> find(const c10::OperatorHandle& op, OperatorEntry& entry,
                                     std::span<const c10::IValue> arguments) {
    Words words;
    uint64_t decisive = 0;
    {
      const std::shared_lock lock(entry.mutex);
      decisive = entry.decisive;
      if (!signature(arguments, decisive, words)) return nullptr;
      const auto found = entry.launches.find(words);
      if (found != entry.launches.end()) return found->second;
    }
    auto launch = prepare(op, arguments);
    const std::unique_lock lock(entry.mutex);
    // Another argument decides than was known: signatures made without it say too little.
    const uint64_t deciding = entry.decisive | launch->plan.decisive;
    if (deciding != entry.decisive || entry.launches.size() >= kMostLaunches) entry.launches.clear();
    if (deciding != decisive) {
      words.clear();
      if (!signature(arguments, deciding, words)) return nullptr;
    }
    entry.decisive = deciding;
    if (launch->kernel == nullptr) entry.reason = launch->problem;
    return entry.launches.insert_or_assign(words, std::move(launch)).first->second;
  }

  std::shared_ptr<const Launch> prepare(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
    auto launch = std::make_shared<Launch>();
    // Numbers may be what it was refused for.
    launch->plan.decisive = ~uint64_t{0};
    try {
      if (arguments.size() > kMostOperands) throw KernelError("too many arguments");
      const CallGraph call = call_graph(op, arguments);
      auto plan = plan_kernel(
          call.graph, {&call.node, 1}, options_, [](ValueId) { return true; }, &launch->problem);
      if (!plan) return launch;
      launch->plan = std::move(*plan);
      bind(call, *launch);
      launch->kernel = cache_->find(launch->plan.name, launch->plan.program);
      if (launch->kernel == nullptr) launch->problem = cache_->backend().problem();
    } catch (const std::exception& error) {  // the original says what is wrong with the call
      const auto* libtorch = dynamic_cast<const c10::Error*>(&error);
      launch->problem = libtorch != nullptr ? libtorch->what_without_backtrace() : error.what();
      launch->kernel = nullptr;
    }
    return launch;
  }

  static void bind(const CallGraph& call, Launch& launch) {
    const Graph& graph = call.graph;
    const auto position_of = [&](ValueId v) {
      const auto found = std::ranges::find(call.arguments, v);
      TORCH_INTERNAL_ASSERT(found != call.arguments.end());
      return static_cast<uint32_t>(found - call.arguments.begin());
    };
    for (const ValueId input : launch.plan.inputs) launch.input_positions.push_back(position_of(input));
    if (launch.plan.inputs.size() + launch.plan.outputs.size() > kMostOperands ||
        launch.plan.scalar_arguments.size() > kMostOperands) {
      throw KernelError("too many operands");
    }
    for (const ValueId output : launch.plan.outputs) {
      launch.fresh.push_back(
          {.dtype = graph.value(output).dtype,
           .sizes = {graph.sizes(output).begin(), graph.sizes(output).end()},
           .strides = {graph.strides(output).begin(), graph.strides(output).end()},
           .contiguous = are_default_strides({graph.sizes(output).data(), graph.sizes(output).size()},
                                             {graph.strides(output).data(), graph.strides(output).size()})});
    }
    for (const Argument& result : graph.results(call.node)) {
      const ValueId v = result.ref.value;
      const auto same = std::ranges::find(launch.plan.same_tensor, v, &KernelPlan::SameTensor::result);
      const ValueId tensor = same == launch.plan.same_tensor.end() ? v : same->tensor;
      const auto fresh = std::ranges::find(launch.plan.outputs, tensor);
      if (fresh != launch.plan.outputs.end()) {
        launch.results.push_back(static_cast<int>(fresh - launch.plan.outputs.begin()));
      } else {
        launch.results.push_back(-1 - static_cast<int>(position_of(tensor)));
      }
    }
  }

  Trial& trial_of(const c10::OperatorHandle& op, const Launch& launch) {
    Trial* trial = launch.trial.load(std::memory_order_acquire);
    if (trial == nullptr) {
      trial =
          &trials_.of(launch.kernel, "eager " + toString(op.operator_name()), launch.plan.range * launch.plan.row_work);
      launch.trial.store(trial, std::memory_order_release);
    }
    return *trial;
  }

  static void run(const Launch& launch, KernelFunction function, std::span<const c10::IValue> arguments,
                  torch::jit::Stack& stack) {
    void* data[kMostOperands];
    int64_t scalars[kMostOperands];
    at::Tensor fresh[kMostOperands];
    size_t operands = 0;
    const at::Tensor* first = nullptr;
    for (size_t i = 0; i < launch.input_positions.size(); ++i) {
      const at::Tensor& tensor = arguments[launch.input_positions[i]].toTensor();
      if (first == nullptr || tensor.dim() > 0) first = &tensor;
      const bool written = launch.plan.program.operands[i].written;
      data[operands++] = written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
    }
    for (size_t i = 0; i < launch.fresh.size(); ++i) {
      const Launch::Fresh& wanted = launch.fresh[i];
      const bool on_cpu = first == nullptr || first->device().is_cpu();
      fresh[i] = !on_cpu ? at::empty_strided(wanted.sizes, wanted.strides, first->options().dtype(wanted.dtype))
                 : wanted.contiguous
                     ? at::Tensor(at::detail::empty_cpu(wanted.sizes, wanted.dtype))
                     : at::Tensor(at::detail::empty_strided_cpu(wanted.sizes, wanted.strides, wanted.dtype));
      data[operands++] = fresh[i].data_ptr();
    }
    for (size_t i = 0; i < launch.plan.scalar_arguments.size(); ++i) {
      scalars[i] = scalar_bits(arguments[launch.plan.scalar_arguments[i]]);
    }
    shadowgraph::launch(function, launch.plan, data, scalars);
    torch::jit::Stack results;
    results.reserve(launch.results.size());
    for (const int result : launch.results) {
      results.push_back(result >= 0 ? c10::IValue(fresh[result]) : arguments[static_cast<size_t>(-1 - result)]);
    }
    stack.erase(stack.end() - static_cast<std::ptrdiff_t>(arguments.size()), stack.end());
    for (c10::IValue& result : results) stack.push_back(std::move(result));
  }

  const std::shared_ptr<KernelCache> cache_;
  const KernelOptions options_;
  Trials trials_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<c10::OperatorHandle, std::unique_ptr<OperatorEntry>> entries_;
};

void OperatorKernels::OriginalCall::ended() {
  if (trial_ != nullptr) trial_->took(Trial::Way::kOriginal, trial_->now() - began_);
}

OperatorKernels::OperatorKernels(std::shared_ptr<KernelCache> cache, KernelOptions options, MeasureOptions measure)
    : table_(std::make_unique<Table>(std::move(cache), options, std::move(measure))) {}
OperatorKernels::~OperatorKernels() = default;

OperatorKernels::Outcome OperatorKernels::call(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                               OriginalCall* original) {
  return table_->call(op, stack, original);
}
std::vector<OperatorKernels::Report> OperatorKernels::report() const { return table_->report(); }
KernelCache& OperatorKernels::cache() const { return table_->cache(); }

}  // namespace shadowgraph
