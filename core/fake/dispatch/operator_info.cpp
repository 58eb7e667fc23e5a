#include "core/fake/dispatch/operator_info.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/fake/dispatch/run_on_meta.h"
#include "core/fake/rules/registry.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

struct FastPaths {
  std::mutex mutex;
  std::unordered_map<std::string, std::source_location> by_name;

  static FastPaths& global() {
    static auto* places = new FastPaths;
    return *places;
  }
};

}  // namespace

void note_fast_path(const std::string& operator_name, std::source_location place) {
  FastPaths& places = FastPaths::global();
  const std::lock_guard lock(places.mutex);
  places.by_name.insert_or_assign(operator_name, place);
}

std::source_location fast_path_location(const std::string& operator_name) {
  FastPaths& places = FastPaths::global();
  const std::lock_guard lock(places.mutex);
  const auto found = places.by_name.find(operator_name);
  return found == places.by_name.end() ? std::source_location() : found->second;
}

namespace {

// Returns whether a type is of a kind, or optionals or lists of it.
bool holds(const c10::Type& type, c10::TypeKind kind) {
  if (type.kind() == c10::TypeKind::OptionalType) {
    return holds(*type.castRaw<c10::OptionalType>()->getElementType(), kind);
  }
  if (type.kind() == c10::TypeKind::ListType) return holds(*type.castRaw<c10::ListType>()->getElementType(), kind);
  return type.kind() == kind;
}

// Not hasComputedKernelForDispatchKey: libtorch has a fallback on Meta, which throws, so that is always true.
bool has_meta_kernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return has_dedicated_meta_kernel(op) || op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// Returns whether libtorch generated this out= form for a composite without one. It has no autograd kernel: its parts
// are differentiated, and bump the versions.
bool is_out_form_of_composite(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const auto& arguments = op.schema().arguments();
  const bool has_out = std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.is_out(); });
  return has_out && op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::ADInplaceOrView) &&
         !op.hasKernelForDispatchKey(DispatchKey::Autograd) && !has_dedicated_meta_kernel(op);
}

DeviceRule rule_of(OperandPlaces operands) {
  if (operands == OperandPlaces::kTogether) return DeviceRule::kCommon;
  return operands == OperandPlaces::kFirstOrCpu ? DeviceRule::kFirstOrCpu : DeviceRule::kFirst;
}

void check_signature(const ShapeRule& rule, const c10::OperatorHandle& op, const std::string& name) {
  const auto difference = c10::findSchemaDifferences(rule.inferred_schema->cloneWithRealTypes(/*with_symint=*/false),
                                                     op.schema().cloneWithRealTypes(/*with_symint=*/false));
  if (difference) {
    throw Error("the rule registered for " + name + " does not match the operator's signature " +
                toString(op.schema()) + ": " + *difference);
  }
}

Route route_of(const OperatorInfo& info) {
  const c10::OperatorHandle& op = info.op;
  if (info.rule) return Route::kRule;
  if (info.makes_quantized) return Route::kNone;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && !has_dedicated_meta_kernel(op)) {
    return Route::kComposite;
  }
  if (is_out_form_of_composite(op)) return Route::kComposite;
  if (has_meta_kernel(op) && !info.refuses_meta) return Route::kMeta;
  if (info.depends_on_data) return Route::kDataDependent;
  if (!has_meta_kernel(op) && op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return Route::kMeta;  // registered from Python only
  }
  return info.route;
}

}  // namespace

OperatorInfo::OperatorInfo(const c10::OperatorHandle& handle, uint32_t dense_id)
    : op(handle),
      target(TargetKind::kOperator, handle.schema()),
      name(toString(handle.operator_name())),
      key(reinterpret_cast<const void*>(std::hash<c10::OperatorHandle>{}(handle))),
      id(dense_id),
      generation((RuleRegistry::global(), RuleRegistry::generation())) {
  const OperatorFacts& facts = target.facts();
  const OperatorRow row = operator_row(name);
  random = facts.random;
  depends_on_data = op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape) ||
                    (facts.host_read && !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd));
  inplace_view = op.hasTag(at::Tag::inplace_view);
  const auto& schema = op.schema();
  argument_count = static_cast<uint16_t>(schema.arguments().size());
  return_count = static_cast<uint16_t>(schema.returns().size());
  for (uint16_t i = 0; i < argument_count; ++i) {
    const auto& argument = schema.arguments()[i];
    if (holds(*argument.type(), c10::TypeKind::TensorType)) tensor_arguments.push_back(i);
    if (holds(*argument.type(), c10::TypeKind::DeviceObjType)) device_argument = static_cast<int16_t>(i);
    if (facts.collective && (argument.name() == "group_name" || argument.name() == "process_group")) {
      group_argument = static_cast<int16_t>(i);
    }
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      writes = true;
      if (i == 0 && argument.type()->kind() == c10::TypeKind::ListType)
        bumps_versions = name.starts_with("aten::_foreach_");
      if (i < 64) written_arguments |= uint64_t{1} << i;
    }
  }
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) is_view = true;
  }
  touched_arguments = written_arguments;
  for (const uint16_t position : facts.written) {
    if (position < 64) touched_arguments |= uint64_t{1} << position;
  }
  for (const uint16_t position : facts.overwritten) {
    if (position < 64) overwritten_arguments |= uint64_t{1} << position;
  }
  for (const uint16_t position : tensor_arguments) {
    const bool is_read = !facts.fills || !facts.geometry_only || position >= 64;
    if (!is_read) unread_arguments |= (uint64_t{1} << position) & ~touched_arguments;
  }
  // User-defined operators are never evaluated: they may have side effects.
  evaluable = name.starts_with("aten::") && !random && touched_arguments == written_arguments && !inplace_view &&
              !facts.uninitialized && !facts.resizes && !facts.takes_storage && argument_count <= 64 &&
              !(row.is & OperatorFact::kNotEvaluable);
  mixes_cpu_scalars = !(row.is & OperatorFact::kNoCpuScalars);
  marks_for_profiler = name.starts_with("profiler::");
  lifts = name.starts_with("aten::lift");
  using enum OperatorFact;
  checks_dtypes = !row.same_dtype.empty() || (row.is & (kFloatingOnly | kFloatingOrBytes | kIntegersOnly));
  makes_quantized = row.is & OperatorFact::kMakesQuantized;
  refuses_meta = row.is & OperatorFact::kRefusesMeta;
  direct_on_cpu = row.is & OperatorFact::kDirectOnCpu;
  reads_operands = row.is & OperatorFact::kReadsOperands;
  if (device_argument >= 0) device_rule = DeviceRule::kDeviceArgument;
  if (name.starts_with("aten::_foreach_")) {
    device_rule = name.starts_with("aten::_foreach_copy") ? DeviceRule::kFirst : DeviceRule::kPerSlot;
  }
  if (row.devices != DeviceRule::kCommon) device_rule = row.devices;
  contents_rule = row.contents;

  is_user_defined = namespace_of(name) != "aten";
  devices = RuleRegistry::global().devices(name);
  if (devices) {
    check_devices(*devices, schema);
    device_rule = rule_of(devices->operands);
  }

  rule = RuleRegistry::global().find(name);
  composite_rule = RuleRegistry::global().find_composite(name);
  if (rule) check_signature(*rule, op, name);
  if (composite_rule) check_signature(*composite_rule, op, name);
  route = route_of(*this);
  const bool own_kernel = route == Route::kRule || (route == Route::kMeta && has_dedicated_meta_kernel(op));
  meta_kernel = cpp_meta_kernel(op);
  copies_operands = own_kernel && !(rule && rule->sees_devices) && copies_operands_on_cpu(op);
}

namespace {

// A direct-mapped cache over a table that only grows. A later rule replaces an entry; readers of the old one may finish
// with it. The dispatcher may reuse the address of a deregistered operator, so such operators are removed.
class OperatorTable {
 public:
  OperatorTable() {
    // Leaked, like the table.
    static_cast<void>(new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<DeregistrationListener>(*this))));
  }

  const OperatorInfo& of(const c10::OperatorHandle& op) {
    const size_t key = key_of(op);
    std::atomic<const OperatorInfo*>& slot = slot_of(key);
    const OperatorInfo* info = slot.load(std::memory_order_acquire);
    if (info != nullptr && info->key == reinterpret_cast<const void*>(key) && info->is_current()) return *info;
    info = find_or_make(op, key);
    slot.store(info, std::memory_order_release);
    return *info;
  }

 private:
  class DeregistrationListener final : public c10::OpRegistrationListener {
   public:
    explicit DeregistrationListener(OperatorTable& table) : table_(table) {}
    void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override {}
    void onOperatorDeregistered(const c10::OperatorHandle& op) override { table_.forget(key_of(op)); }

   private:
    OperatorTable& table_;
  };

  static size_t key_of(const c10::OperatorHandle& op) { return std::hash<c10::OperatorHandle>{}(op); }
  std::atomic<const OperatorInfo*>& slot_of(size_t key) { return slots_[(key >> 5) % slots_.size()]; }

  // Runs under the dispatcher's lock, which a holder of mutex_ may be waiting for.
  void forget(size_t key) {
    const std::lock_guard lock(deregistered_mutex_);
    left_.push_back(key);
    slot_of(key).store(nullptr, std::memory_order_release);
  }

  const OperatorInfo* find_or_make(const c10::OperatorHandle& op, size_t key) {
    const std::lock_guard lock(mutex_);
    {
      const std::lock_guard left_lock(deregistered_mutex_);
      for (const size_t gone : left_) by_key_.erase(gone);
      left_.clear();
    }
    const auto found = by_key_.find(key);
    if (found != by_key_.end() && found->second->is_current()) return found->second;
    infos_.emplace_back(op, static_cast<uint32_t>(infos_.size()));
    by_key_[key] = &infos_.back();
    return &infos_.back();
  }

  std::array<std::atomic<const OperatorInfo*>, 4096> slots_{};
  std::mutex mutex_;
  std::deque<OperatorInfo> infos_;
  std::unordered_map<size_t, const OperatorInfo*> by_key_;
  std::mutex deregistered_mutex_;
  std::vector<size_t> left_;  // keys of deregistered operators
};

}  // namespace

const OperatorInfo& OperatorInfo::of(const c10::OperatorHandle& op) {
  static auto* table = new OperatorTable;
  return table->of(op);
}

ExecutionRoute execution_route(const c10::OperatorHandle& op) {
  using Kind = ExecutionRoute::Kind;
  const OperatorInfo& info = OperatorInfo::of(op);
  switch (info.route) {
    case Route::kRule:
      if (info.depends_on_data) return {.kind = Kind::kDataDependent, .takes_sizes = true};
      return {.kind = Kind::kRule};
    case Route::kComposite:
      return {.kind = Kind::kDecomposition};
    case Route::kMeta:
      if (info.meta_kernel != nullptr) return {.kind = Kind::kMeta};
      break;  // from Python only, not available in other processes
    case Route::kDataDependent:
    case Route::kNone:
      break;
  }
  if (const FreshForm* form = form_of_tensors(info.target)) {
    ExecutionRoute way = execution_route(form->op);
    way.form = form;
    if (way.kind != Kind::kDataDependent && way.kind != Kind::kNone) way.kind = Kind::kOutForm;
    return way;
  }
  return {.kind = info.route == Route::kDataDependent ? Kind::kDataDependent : Kind::kNone};
}

}  // namespace shadowgraph
