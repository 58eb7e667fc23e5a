#include "core/deferred/record.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/hash.h>

#include <algorithm>

#include "core/fake/converter.h"
#include "core/fake/dispatch/operand_scan.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/known_contents.h"
#include "core/fake/tensors_in_value.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/capture/language_bindings.h"
#include "shadowgraph/deferred/deferred.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

bool is_deferred_link(const SessionLink& link) { return dynamic_cast<const DeferredLink*>(&link) != nullptr; }

// Called for the operands of an operator outside of any mode.
std::shared_ptr<PersistentMode> find_record(const FakeTensorImpl& fake) {
  const std::shared_ptr<DeferredRecord> record = DeferredRecord::of(fake);
  return record && !record->join_real_storage(fake) ? record : nullptr;
}

std::string geometry(const at::Tensor& tensor) { return c10::str(tensor.scalar_type(), " ", tensor.sizes()); }

// Calls f(const at::Tensor&) for the defined tensors of an argument.
template <class F>
void for_each_defined(const CallArgument& argument, F&& f) {
  using Kind = CallArgument::Kind;
  const auto visit = [&](const at::Tensor& tensor) {
    if (tensor.defined()) f(tensor);
  };
  const Kind kind = argument.kind();
  if (kind == Kind::kTensor) return visit(argument.tensor());
  if (kind == Kind::kBoxed) return for_each_tensor(argument.boxed(), visit);
  const bool is_list = kind == Kind::kTensors || kind == Kind::kTensorRefs || kind == Kind::kOptionalTensors;
  if (is_list) for_each_tensor(argument.value(), visit);
}

// Returns whether a conditional write of an operator's facts takes place: batch norm's statistics, in training.
bool writes_with(const OperatorFacts& facts, std::span<const CallArgument> arguments) {
  const auto position = static_cast<size_t>(facts.write_condition);
  if (facts.write_condition < 0 || position >= arguments.size()) return true;
  const CallArgument& condition = arguments[position];
  if (condition.kind() == CallArgument::Kind::kBool) return condition.boolean();
  return condition.kind() != CallArgument::Kind::kBoxed || !condition.boxed().isBool() || condition.boxed().toBool();
}

// Returns whether a value can be recorded. Objects (a storage, a stream, a custom class) have state that the record
// does not keep.
bool is_plain(const c10::IValue& value) {
  if (value.isList()) return std::ranges::all_of(value.toListRef(), &is_plain);
  return value.isTensor() || value.isNone() || value.isScalar() || value.isString() || value.isDevice() ||
         value.isGenerator() || value.isSymInt() || value.isSymFloat() || value.isSymBool();
}

}  // namespace

c10::intrusive_ptr<DeferredLink> DeferredRecord::begin(std::shared_ptr<ModeState> mode) {
  auto link = c10::make_intrusive<DeferredLink>(Recorder::next_session());
  link->record = std::make_shared<DeferredRecord>(*link, std::move(mode));
  return link;
}

DeferredRecord::DeferredRecord(DeferredLink& link, std::shared_ptr<ModeState> mode)
    : link_(&link),
      session_(link.session()),
      mode_(std::move(mode)),
      recorder_(*mode_, link),
      recipe_(recorder_.graph()),
      streams_(recorder_.graph(), [this](NodeId node, const RandomState& before) { return run_draw(node, before); }),
      default_dtype_(c10::get_default_dtype_as_scalartype()) {
  find_persistent_mode.store(&find_record, std::memory_order_release);
  ++persistent_modes;
  recorder_.set_phase(Graph::kInit);
  mode_->observer = this;
  mode_->reads_data = true;
  mode_->watch_size_reads = false;
  streams_.resume();
}

DeferredRecord::~DeferredRecord() {
  --persistent_modes;
  mode_->observer = nullptr;
}

std::shared_ptr<DeferredRecord> DeferredRecord::of(const FakeTensorImpl& fake) {
  c10::Storage storage;
  {
    const std::shared_lock lock(storage_swap_mutex());
    storage = fake.unsafe_storage();
  }
  SessionLink* const found = find_link(*storage.unsafeGetStorageImpl(), &is_deferred_link);
  if (found == nullptr) return nullptr;
  // Holds the link, too: the call may drop the record's last storage (set_()).
  using Link = c10::intrusive_ptr<DeferredLink>;
  auto link = std::make_shared<Link>(Link::reclaim_copy(static_cast<DeferredLink*>(found)));
  DeferredRecord* const record = (*link)->record.get();
  return {std::move(link), record};
}

std::shared_mutex& DeferredRecord::storage_swap_mutex() {
  static auto* mutex = new std::shared_mutex;
  return *mutex;
}

DeferredRecord* DeferredRecord::recording() {
  const ModeState* mode = thread_state.mode;
  return mode != nullptr ? dynamic_cast<DeferredRecord*>(mode->observer) : nullptr;
}

at::Tensor DeferredRecord::outside(const FakeTensorImpl& fake) const { return real_of_fake(fake, *mode_); }

StorageId DeferredRecord::storage_of(const FakeTensorImpl& fake) const {
  return find_storage_id(*fake.unsafe_storage().unsafeGetStorageImpl(), session_);
}

bool DeferredRecord::join_real_storage(const FakeTensorImpl& fake) {
  const std::lock_guard lock(mutex_);
  const c10::Storage storage = real_storage(storage_of(fake));
  if (!storage) return false;
  const at::Tensor tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(const_cast<FakeTensorImpl*>(&fake)));
  materialize_tensor(tensor, {.device = storage.device()});
  return true;
}

void DeferredRecord::end_scope() {
  const std::lock_guard lock(mutex_);
  in_scope_ = false;
  // Fakes of outside tensors would keep this record alive, and lifetimes no longer matter.
  mode_->memo = {};
  link_->close();
  streams_.pause();
}

void DeferredRecord::check_operand(const std::string& user, const at::Tensor& tensor, bool written) {
  const FakeTensorImpl* fake = as_fake(tensor);
  if (fake == nullptr) return;
  const StorageId storage = storage_of(*fake);
  if (!storage.valid()) {
    const at::Tensor outside = this->outside(*fake);
    if (!outside.defined()) {
      throw DeferredError(user + " uses a fake tensor (" + geometry(tensor) +
                          ") that was created by another mode or another deferred_init, so its contents are unknown. "
                          "Create it in the same deferred_init, or materialize it first");
    }
    if (outside.is_inference()) {
      throw DeferredError(
          user + " uses an inference tensor created outside of deferred_init (" + geometry(outside) +
          "), whose modifications cannot be detected; pass a clone() created outside of inference mode");
    }
  } else if (real_storage(storage)) {
    throw DeferredError(user + " uses a deferred tensor (" + geometry(tensor) +
                        ") whose storage was already materialized through another tensor that shares it. "
                        "Call materialize_tensor on this one first, which copies nothing");
  }
  if (!written) return;
  if (!storage.valid() || graph().storage(storage).kind == StorageKind::kConstant) {
    throw DeferredError(user + " would write to a tensor created outside of deferred_init (" + geometry(tensor) + ")" +
                        kOutsideWriteHint);
  }
}

void DeferredRecord::begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) {
  mutex_.lock();
  try {
    generator_.reset();
    const OperatorFacts& facts = info.target.facts();
    const bool writes_more = !facts.written.empty() && writes_with(facts, arguments);  // than its schema declares
    for (size_t i = 0; i < arguments.size(); ++i) {
      const CallArgument& argument = arguments[i];
      const bool written = (info.writes && i < 64 && ((info.written_arguments >> i) & 1) != 0) ||
                           (writes_more && std::ranges::find(facts.written, i) != facts.written.end());
      for_each_defined(argument, [&](const at::Tensor& tensor) { check_operand(info.name, tensor, written); });
      if (argument.kind() == CallArgument::Kind::kGenerator) {
        generator_ = argument.generator();
      } else if (argument.kind() == CallArgument::Kind::kBoxed) {
        const c10::IValue& value = argument.boxed();
        if (value.isGenerator()) generator_ = value.toGenerator();
        // A storage of a deferred tensor is recorded as an alias of it.
        const bool described =
            value.isStorage() && find_storage_id(*value.toStorage().unsafeGetStorageImpl(), session_).valid();
        if (!described && !is_plain(value)) {
          throw DeferredError(info.name + ": argument '" + info.op.schema().arguments()[i].name() + "' is a " +
                              value.type()->str() +
                              ", which cannot be recorded; run this line under an UnfakeGuard, on real tensors");
        }
      }
    }
    recorder_.begin_call(info, arguments);
    note_constants();
  } catch (...) {
    mutex_.unlock();
    throw;
  }
}

DeferredRecord::Contents DeferredRecord::Contents::of(const at::Tensor& tensor) {
  Contents contents;
  if (!tensor.is_inference()) contents.version = static_cast<uint32_t>(tensor._version());
  const size_t from = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  const size_t size = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  const c10::Storage& storage = tensor.storage();
  if (!tensor.device().is_cpu() || (size != 0 && from + size > storage.nbytes())) return contents;
  // Writes through `.data`, NumPy or the storage change no version. A few blocks of a large tensor suffice to detect
  // one that changes all of it, and do not read a whole file into memory (torch.load with mmap).
  constexpr size_t kWhole = size_t{64} << 10;
  constexpr size_t kBlocks = 16;
  constexpr size_t kBlock = 256;
  const std::string_view bytes(static_cast<const char*>(storage.data()) + from, size);
  uint64_t hash = size;
  const auto add = [&](std::string_view block) {
    hash = c10::hash_combine(hash, std::hash<std::string_view>{}(block));
  };
  if (size <= kWhole) {
    add(bytes);
  } else {
    for (size_t i = 0; i < kBlocks; ++i) add(bytes.substr((size - kBlock) / (kBlocks - 1) * i, kBlock));
  }
  contents.sample = hash;
  return contents;
}

void DeferredRecord::note_constants() {
  for (auto i = static_cast<uint32_t>(constant_contents_.size()); i < graph().constant_count(); ++i) {
    constant_contents_.push_back(Contents::of(graph().constant(ConstantId(i))));
  }
}

// If this throws, the fallback calls abandon_call.
void DeferredRecord::end_call(const OperatorInfo& info, std::span<const CallArgument> results) {
  recorder_.end_call(info, results);
  const NodeId node = recorder_.last_node();
  recipe_.add(node);
  if (graph().facts(node).random) streams_.draw(node, std::exchange(generator_, std::nullopt));
  mutex_.unlock();
}

void DeferredRecord::abandon_call(const OperatorInfo& info) noexcept {
  recorder_.abandon_call(info);
  mutex_.unlock();
}

void DeferredRecord::host_wrote(const at::Tensor& fake, const at::Tensor& value) {
  const std::lock_guard lock(mutex_);
  recorder_.host_wrote(fake, value);
  note_constants();
  recipe_.add(recorder_.last_node());
}

void DeferredRecord::storage_resized(c10::StorageImpl& storage, size_t bytes) {
  throw DeferredError(
      "cannot resize the storage of a deferred tensor: recorded storages have a fixed size; create a new tensor "
      "instead");
}

void DeferredRecord::mode_suspended() { streams_.pause(); }
void DeferredRecord::mode_resumed() noexcept { streams_.resume(); }

ModeState& DeferredRecord::enter() {
  mutex_.lock();
  return *mode_;
}

void DeferredRecord::leave() noexcept {
  if (!in_scope_) mode_->memo = {};
  mutex_.unlock();
}

namespace {

bool has_mask(const torch::jit::Stack& stack, size_t begin) {
  bool found = false;
  for (size_t i = begin; i < stack.size(); ++i) {
    if (!stack[i].isList()) continue;
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      found |= tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
    });
  }
  return found;
}

// Copies a value that may be shared with the record or with an outside tensor.
at::Tensor own_copy(const at::Tensor& value) {
  const RealCalls real;
  return value.detach().cpu().resolve_conj().resolve_neg().clone();
}

}  // namespace

bool DeferredRecord::compute(const OperatorInfo& info, torch::jit::Stack& stack) {
  const size_t begin = stack.size() - info.argument_count;
  if (info.name == "aten::index.Tensor" && !has_mask(stack, begin)) return false;
  const std::lock_guard lock(mutex_);
  bool foreign = false;
  c10::Device device = mode_->default_device;
  const auto real_one = [&](const at::Tensor& tensor) {
    const FakeTensorImpl* fake = as_fake(tensor);
    if (fake == nullptr) return tensor;
    device = fake->simulated_device();
    show_host_writes(tensor, *this);
    if (real_storage(storage_of(*fake))) check_operand(info.name, tensor, false);
    if (!storage_of(*fake).valid()) {
      const at::Tensor outside = this->outside(*fake);
      foreign |= !outside.defined();
      return outside;
    }
    return value_of(*fake, {c10::Device(c10::kCPU), std::nullopt});
  };
  torch::jit::Stack real_stack;
  for (size_t i = begin; i < stack.size(); ++i) real_stack.push_back(with_tensors(stack[i], real_one));
  if (foreign) return false;
  {
    const RealCalls real;
    info.op.callBoxed(real_stack);
  }
  const KernelDepth depth;
  begin_call(info, viewed(stack, begin));
  try {
    torch::jit::Stack results;
    for (const c10::IValue& value : real_stack) {
      if (!value.isTensor() || !value.toTensor().defined()) {
        results.push_back(value);
        continue;
      }
      const at::Tensor& tensor = value.toTensor();
      at::Tensor fake = FakeTensorImpl::empty_strided(tensor.sizes(), tensor.strides(), tensor.dtype(), device);
      as_fake(fake)->take_fresh();
      results.emplace_back(std::move(fake));
    }
    end_call(info, viewed(results, 0));
    stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(begin), stack.end());
    for (c10::IValue& result : results) stack.push_back(std::move(result));
  } catch (...) {
    abandon_call(info);
    throw;
  }
  return true;
}

DeferredInit::DeferredInit(const DeferredOptions& options) {
  if (is_deferring()) return;
  if (Recorder* capture = current_recorder()) capture->mode_suspended();  // both use the default generator
  mode_ = std::make_unique<FakeTensorMode>(FakeTensorOptions{.device = options.device, .profile = options.profile});
  const auto link = DeferredRecord::begin(ModeAccess::state(*mode_));
  record_ = link->record;
  link_ = std::shared_ptr<void>(nullptr, [link](void*) {});
}

DeferredInit::~DeferredInit() {
  try {
    finish();
  } catch (const std::exception&) {  // destructors must not throw; call finish() to see errors
  }
}

void DeferredInit::finish() {
  if (!mode_) return;
  const auto record = std::exchange(record_, nullptr);
  const auto link = std::exchange(link_, nullptr);
  mode_.reset();
  const auto resume = c10::make_scope_exit([] {
    if (Recorder* capture = current_recorder()) capture->mode_resumed();
  });
  record->end_scope();
}

bool is_deferring() { return DeferredRecord::recording() != nullptr; }

std::optional<at::Tensor> deferred_value(const at::Tensor& tensor) {
  close_open_literal();
  const FakeTensorImpl* fake = as_fake(tensor);
  DeferredRecord* const recording = DeferredRecord::recording();
  if (fake == nullptr || (recording == nullptr && active_fake_mode() != nullptr)) return std::nullopt;
  if (const auto record = DeferredRecord::of(*fake); record && record->storage_of(*fake).valid()) {
    const std::lock_guard lock(record->mutex());
    if (recording == nullptr && record->join_real_storage(*fake)) return own_copy(tensor);
    show_host_writes(tensor, *record);
    record->check_operand("reading the contents", tensor, /*written=*/false);
    return own_copy(record->value_of(*fake, {c10::Device(c10::kCPU), std::nullopt}));
  }
  const at::Tensor outside = recording != nullptr ? recording->outside(*fake) : at::Tensor();
  return outside.defined() ? std::optional(own_copy(outside)) : std::nullopt;
}

void watch_generator(const at::Generator& generator) {
  if (DeferredRecord* const recording = DeferredRecord::recording()) return recording->watch(generator);
  if (Recorder* const capture = current_recorder()) capture->watch(generator);
}

void check_recordable(const at::Tensor& tensor, const std::string& what) {
  DeferredRecord* const recording = DeferredRecord::recording();
  if (recording == nullptr || !tensor.defined()) return;
  const std::lock_guard lock(recording->mutex());
  recording->check_operand(what, fake_of_real(tensor, thread_state.mode), /*written=*/false);
}

}  // namespace shadowgraph
