#include "core/capture/recorder.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/calls/call_record.h"
#include "core/calls/program_generators.h"
#include "core/fake/converter.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/known_contents.h"
#include "core/fake/process_groups.h"
#include "core/fake/thread_state.h"
#include "ir/records.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
Recorder::Recorder(ModeState& mode) : Recorder(mode, *c10::make_intrusive<SessionLink>(next_session()).release()) {
  own_link_ = c10::intrusive_ptr<SessionLink>::reclaim(link_);
}

Recorder::Recorder(ModeState& mode, SessionLink& link)
    : mode_(mode),
      session_(link.session()),
      link_(&link),
      sequence_base_(at::sequence_number::peek()),
      sequence_seen_(sequence_base_) {
  regions_.emplace_back().id = Graph::kRootRegion;
}

Recorder::~Recorder() {
  if (own_link_) own_link_->close();
}

uint32_t Recorder::next_session() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

void Recorder::name_tensor(const at::Tensor& tensor, Builtin kind, const std::string& name) {
  if (!tensor.defined()) return;
  names_.try_emplace(tensor.unsafeGetTensorImpl(), Name{kind, name, WeakTensor(tensor.getIntrusivePtr())});
  if (kind == Builtin::kInput) input_names_.insert(name);
}

ValueId Recorder::declare(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const KernelDepth depth;
  const at::Tensor fake = fake_of_real(tensor, &mode_);
  const ValueId value = value_of(*as_fake(fake));
  const auto name = names_.find(tensor.unsafeGetTensorImpl());
  if (name == names_.end()) return value;
  // Parameters in one flat buffer are views of it.
  const NodeId node = graph_.value(value).producer;
  if (graph_.node(node).target == target_of(Builtin::kAlias) && name->second.kind == Builtin::kParameter) {
    graph_.set_note(node, "parameter", name->second.name);
    in_buffers_.emplace(tensor.unsafeGetTensorImpl(), value);
  }
  name_created_value(value, name->second);
  return value;
}

void Recorder::begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) {
  if (link_->has_frees()) flush_frees();
  if (C10_UNLIKELY(info.group_argument >= 0)) {
    declare_group(arguments[static_cast<size_t>(info.group_argument)].boxed());  // collectives have no unboxed kernel
  }
  arguments_.clear();
  unrecorded_ = is_view_of_freed_memory(info, arguments);
  if (C10_UNLIKELY(unrecorded_)) return;
  calling_ = &info;
  for (const CallArgument& argument : arguments) arguments_.push_back(argument_of(argument));
  calling_ = nullptr;
  read_lengths(info, arguments);
}

namespace {

constexpr uint16_t kNoLengths = 1, kOfFlexAttention = 2;

// Returns where the cumulative lengths of packed sequences are among an operator's arguments; kNoLengths without any.
// Those of the keys follow, then the longest of both.
uint16_t lengths_argument(const OperatorInfo& info) {
  if (info.name == "shadowgraph::flex_attention") return kOfFlexAttention;
  for (const char* name : {"cum_seq_q", "cu_seqlens_q", "cu_seq_q"}) {
    const auto found = info.op.schema().argumentIndexWithName(name);
    if (found && static_cast<size_t>(*found) + 3 < info.argument_count) return static_cast<uint16_t>(*found);
  }
  return kNoLengths;
}

// Returns known lengths as cumulative ones, nullopt if the program's data decides them.
std::optional<std::vector<int64_t>> cumulative_lengths(const at::Tensor& tensor) {
  if (!tensor.defined() || as_fake(tensor) == nullptr || tensor.unsafeGetTensorImpl()->dim() != 1) return std::nullopt;
  std::optional<at::Tensor> known;
  try {
    known = known_value(tensor);
  } catch (const Error&) {  // beyond the budget of contents
    return std::nullopt;
  }
  if (!known) return std::nullopt;
  const RealCalls real;
  const at::Tensor numbers = known->to(at::kLong).contiguous();
  const int64_t* first = numbers.const_data_ptr<int64_t>();
  return std::vector<int64_t>(first, first + numbers.numel());
}

}  // namespace

// The FLOPs of attention on packed sequences depend on their lengths.
void Recorder::read_lengths(const OperatorInfo& info, std::span<const CallArgument> arguments) {
  scores_.clear();
  if (info.id >= lengths_at_.size()) lengths_at_.resize(info.id + 64);
  uint16_t& position = lengths_at_[info.id];
  if (position == 0) position = lengths_argument(info);
  if (C10_LIKELY(position == kNoLengths)) return;
  const auto assume = [&](size_t of, std::string what) {
    if (!assumed_.insert(what).second) return;
    graph_.guards.push_back({Guard::Kind::kHostValue, arguments_[of].ref.value, -1, std::move(what)});
  };
  if (position == kOfFlexAttention) {
    if (arguments[3].value().toInt() >= 0) return;
    return assume(0, "blocks of FlexAttention's mask, which depends on data, assumed to be all needed");
  }
  const auto tensor = [&](size_t i) {
    const c10::IValue value = arguments[i].value();
    return value.isTensor() ? value.toTensor() : at::Tensor();
  };
  const auto number = [&](size_t i) {
    const c10::IValue value = arguments[i].value();
    return value.isInt() ? value.toInt() : 0;
  };
  const at::Tensor queries = tensor(position), keys = tensor(position + size_t{1});
  if (!queries.defined() || !keys.defined()) return;
  const int64_t longest_query = number(position + size_t{2}), longest_key = number(position + size_t{3});
  const auto of_queries = cumulative_lengths(queries), of_keys = cumulative_lengths(keys);
  if (!of_queries || !of_keys || of_queries->size() != of_keys->size()) {
    return assume(position, c10::str("lengths of packed sequences in ", info.name, ", each assumed to be the longest, ",
                                     longest_query, " queries and ", longest_key, " keys"));
  }
  int64_t scores = 0;
  for (size_t i = 1; i < of_queries->size(); ++i) {
    scores += ((*of_queries)[i] - (*of_queries)[i - 1]) * ((*of_keys)[i] - (*of_keys)[i - 1]);
  }
  const int64_t most = (static_cast<int64_t>(of_queries->size()) - 1) * longest_query * longest_key;
  scores_ = c10::str(scores, "/", most);
}

// Declares a process group in the graph before the first collective on it. An unknown group is reported by the call.
void Recorder::declare_group(const c10::IValue& group) {
  const auto info = describe_group(group);
  if (!info || !groups_.insert(info->name).second) return;
  const PhaseId outer = phase_;
  if (!phase_.valid() && torch::autograd::get_current_node()) phase_ = Graph::kBackward;
  record_function(process_group_target(), process_group_arguments(*info), at::Tensor());
  phase_ = outer;
}

NodeId Recorder::append(TargetId target, std::span<const Argument> arguments) {
  last_ = graph_.append(target, arguments);
  if (!body_.valid()) body_ = last_;
  return last_;
}

void Recorder::end_call(const OperatorInfo& info, std::span<const CallArgument> results) {
  if (C10_UNLIKELY(std::exchange(unrecorded_, false))) return;
  const bool takes_storage = arguments_.size() > 1 && arguments_[1].kind == ArgumentKind::kOpaque &&
                             info.name.starts_with("aten::set_.source_Storage");
  const TargetId target =
      takes_storage ? set_from_storage(info, *as_fake(results[0].value().toTensor())) : target_of_operator(info);
  const NodeId node = append(target, arguments_);
  results_.clear();
  for (const CallArgument& result : results) results_.push_back(result_of(result, node));
  graph_.set_results(node, results_);

  Node& n = mutable_node(graph_, node);
  n.flags.grad_mode = c10::GradMode::is_enabled();
  n.flags.inference_mode = c10::InferenceMode::is_enabled();
  n.flags.autocast_cpu = is_autocast_enabled(at::kCPU);
  n.flags.autocast_cuda = is_autocast_enabled(at::kCUDA);
  n.phase = Graph::kForward;
  n.region = Graph::kRootRegion;
  if (recomputations_.empty()) {
    link_backward(node);
    if (phase_.valid()) n.phase = phase_;
    if (!n.forward.valid()) n.region = current_region(arguments_);
    if (locate_ != nullptr && !n.forward.valid()) n.source = graph_.intern(locate_());
  } else {
    link_recomputation(node);
  }
  for (const uint32_t checkpoint : open_checkpoints_) checkpoints_[checkpoint].push_back(node);
  // A custom autograd function runs without gradients, after its grad_fn was created. If it communicates, that grad_fn
  // belongs to the collective.
  if (n.flags.grad_mode || C10_UNLIKELY(info.group_argument >= 0)) claim_sequence(node);
  if (C10_UNLIKELY(streams_.in_use())) streams_.issued(graph_, node);
  if (mode_.data_sizes.has_used()) note_data_sizes(node);
  if (C10_UNLIKELY(!scores_.empty())) graph_.set_note(node, kScoresNote, scores_);
  if (C10_UNLIKELY(mode_.routings.has_new())) note_routings(node);
  if (info.depends_on_data && !results.empty()) note_host_read(info, node, results[0]);
  if (generators_ && graph_.facts(node).random) note_draw(node);
}

void Recorder::watch_generators() {
  generators_.emplace();
  const c10::Device device = mode_.default_device;
  if (device.is_cuda()) watch(at::globalContext().defaultGenerator(with_index(device)));
}

Argument Recorder::argument_of_generator(const at::Generator& generator) {
  const Argument argument = shadowgraph::argument_of(generator);
  if (generators_) generators_->watch(generator, argument);
  return argument;
}

void Recorder::note_draw(NodeId node) {
  for (const Argument& argument : graph_.arguments(node)) {
    if (argument.kind == ArgumentKind::kGenerator) return generators_->draw(node, argument);
  }
  std::optional<c10::Device> device;
  graph_.for_each_output(node, [&](ValueId value) {
    if (graph_.value(value).kind != ValueKind::kTensor) return;
    const c10::Device found = graph_.value(value).device();
    if (!device || found.is_cpu()) device = found;
  });
  if (device) generators_->draw(node, Argument::of_device(*device, ArgumentKind::kGenerator));
}

namespace {

// Returns the first value that `visit` passes on; invalid if there are none.
ValueId first_of(const auto& visit) {
  ValueId first;
  visit([&](ValueId value) {
    if (!first.valid()) first = value;
  });
  return first;
}

std::string text_of(const c10::Scalar& value) {
  if (value.isBoolean()) return value.toBool() ? "true" : "false";
  return c10::str(value);
}

}  // namespace

// Guards on a value that the program read (item(), equal()).
void Recorder::note_host_read(const OperatorInfo& info, NodeId node, const CallArgument& result) {
  if (result.kind() != CallArgument::Kind::kBoxed || !result.boxed().isScalar()) return;
  const ValueId read = first_of([&](auto f) { graph_.for_each_value(graph_.arguments(node), f); });
  if (!mode_.host_read_values.has_used()) {
    const std::string value = info.name + " = " + c10::str(result.boxed().toScalar());
    graph_.guards.push_back({Guard::Kind::kHostValue, read, -1, value});
  }
  for (const HostReadValues::Entry& read_value : mode_.host_read_values.take_used()) {
    std::string observed = read_value.name + " = " + text_of(read_value.value);
    if (!read_value.why.empty()) observed += ", " + read_value.why;
    if (!read_value.source.empty()) observed += ", at " + read_value.source;
    graph_.guards.push_back({Guard::Kind::kHostValue, read, -1, std::move(observed)});
  }
}

void Recorder::assume(const at::Tensor& input, const std::string& what) {
  const KernelDepth depth;
  const ValueId value = value_of(*as_fake(fake_of_real(input, &mode_)));
  graph_.guards.push_back({Guard::Kind::kHostValue, value, -1, what});
}

std::string Recorder::location() {
  if (locate_ == nullptr) return {};
  return backtraces_ ? backtraces_->line_of(locate_()) : locate_();
}

void Recorder::record_backtraces() {
  backtraces_ = std::make_unique<CppBacktraces>();
  locate_ = [] { return current_recorder()->backtraces_->note(); };
}

// Notes a user-provided data-dependent size at the node, and guards on it.
void Recorder::note_data_sizes(NodeId node) {
  const ValueId result = first_of([&](auto f) { graph_.for_each_output(node, f); });
  std::string names;
  for (const DataSizes::Used& used : mode_.data_sizes.take_used()) {
    names += (names.empty() ? "" : ", ") + used.name;
    std::string observed = used.name + " = " + std::to_string(used.size);
    if (!used.why.empty()) observed += ", " + used.why;
    graph_.guards.push_back({Guard::Kind::kHostValue, result, -1, std::move(observed)});
  }
  graph_.set_note(node, "data_size", names);
}

// Remembers routings assumed for counts, to guard on those that the program reads.
void Recorder::note_routings(NodeId node) {
  const ValueId result = first_of([&](auto f) { graph_.for_each_output(node, f); });
  for (const auto& routing : mode_.routings.take_new()) routed_.emplace(routing.get(), result);
}

void Recorder::note_routings_read() {
  for (const Routings::Read& read : mode_.routings.take_read()) {
    const auto counted = routed_.find(read.routing.get());
    if (counted == routed_.end()) continue;  // counted before this capture
    std::string observed = read.routing->name + ": " + read.routing->what + ", assumed";
    if (!read.source.empty()) observed += ", read at " + read.source;
    graph_.guards.push_back({Guard::Kind::kHostValue, counted->second, -1, std::move(observed)});
  }
}

void Recorder::abandon_call(const OperatorInfo& info) noexcept {
  arguments_.clear();
  calling_ = nullptr;
  unrecorded_ = false;
  mode_.data_sizes.clear_used();
  mode_.host_read_values.clear_used();
}

// Records the values of at::tensor({...}), or of an accessor's write, as a copy from a constant of the graph.
void Recorder::host_wrote(const at::Tensor& fake, const at::Tensor& value) {
  const KernelDepth depth;
  if (link_->has_frees()) flush_frees();
  const ValueId written = value_of(*as_fake(fake));
  const Argument name[] = {Argument::of_constant(graph_.add_constant(value))};
  const NodeId placeholder = graph_.insert_before(body_, target_of(Builtin::kConstant), name);
  graph_.set_note(placeholder, "literal", "host");
  const size_t bytes = at::detail::computeStorageNbytes(value.sizes(), value.strides(), value.itemsize());
  const StorageId id =
      graph_.add_storage({.bytes = static_cast<int64_t>(bytes), .kind = StorageKind::kConstant, .born = placeholder});
  const ValueId source = graph_.add_tensor_result(
      placeholder, {.dtype = value.scalar_type(), .sizes = value.sizes(), .strides = value.strides(), .storage = id});
  set_root(id, source);

  static const auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  const Argument arguments[] = {Argument::of_value(written), Argument::of_value(source), Argument::of_bool(false)};
  const NodeId node = append(target_of_operator(OperatorInfo::of(copy)), arguments);
  const Argument results[] = {result_of_tensor(fake, node)};
  graph_.set_results(node, results);
  Node& n = mutable_node(graph_, node);
  n.phase = phase_.valid() ? phase_ : Graph::kForward;
  n.region = current_region(arguments);
  n.flags.grad_mode = at::GradMode::is_enabled();
  if (streams_.in_use()) streams_.issued(graph_, node);
}

// Sorts by id: storages that are freed together may be in the order of a hash table of pointers, as those of
// autocast's cache of casts, and a capture must not depend on addresses.
void Recorder::flush_frees() {
  freed_.clear();
  if (last_.valid()) {
    const auto earlier = graph_.frees(last_);
    freed_.assign(earlier.begin(), earlier.end());
  }
  const size_t known = freed_.size();
  link_->take_frees(freed_);
  if (!last_.valid() || freed_.size() == known) return;
  std::ranges::sort(freed_, {}, &StorageId::index);
  graph_.set_frees(last_, freed_);
}

void Recorder::record_function(const Target& target, std::span<const c10::IValue> arguments, const at::Tensor& result) {
  const KernelDepth depth;
  if (link_->has_frees()) flush_frees();
  arguments_.clear();
  for (const c10::IValue& argument : arguments) arguments_.push_back(argument_of(argument));
  const NodeId node = append(graph_.intern_target(target), arguments_);
  if (result.defined()) {
    const Argument value = result_of_tensor(result, node);
    graph_.set_results(node, {&value, 1});
  }
  Node& n = mutable_node(graph_, node);
  n.phase = current_phase();
  n.region = add_open_region(regions_.size() - 1);
}

void Recorder::size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept {
  try {
    // Only reads by the program itself: not inside decompositions or autograd.
    if (regions_.back().region.kind == RegionKind::kComposite || phase_.valid()) return;
    if (torch::autograd::get_current_node()) return;
    const KernelDepth depth;
    const ValueId value = value_of(const_cast<FakeTensorImpl&>(tensor));
    const uint64_t key = (uint64_t{value.index} << 16) | (static_cast<uint64_t>(what) << 8) |
                         static_cast<uint64_t>(static_cast<uint8_t>(dimension));
    if (!size_reads_.insert(key).second) return;
    const c10::IntArrayRef sizes = tensor.sizes();
    if (what == SizeRead::kRank) {
      graph_.guards.push_back({Guard::Kind::kRank, value, -1, std::to_string(sizes.size())});
    } else if (what == SizeRead::kSizes) {
      graph_.guards.push_back({Guard::Kind::kSizes, value, -1, c10::str(sizes)});
    } else {
      const int64_t wrapped = c10::maybe_wrap_dim(dimension, static_cast<int64_t>(sizes.size()));
      const int64_t size = sizes[static_cast<size_t>(wrapped)];
      graph_.guards.push_back({Guard::Kind::kSize, value, wrapped, std::to_string(size)});
    }
    // NOLINTNEXTLINE(bugprone-empty-catch): observers of size reads are noexcept
  } catch (const std::exception&) {
    // An out-of-range dimension is the program's error, raised at its call.
  }
}

Graph Recorder::finish(const std::vector<at::Tensor>& outputs,
                       const std::vector<std::pair<at::Tensor, at::Tensor>>& gradients) {
  const KernelDepth depth;
  if (generators_) generators_->end();
  flush_frees();
  for (const auto& [parameter, gradient] : gradients) {
    // Use the parameter's declared value, not the optimizer's last in-place update.
    const Argument last = argument_of_tensor(parameter);
    const auto in_buffer = in_buffers_.find(parameter.unsafeGetTensorImpl());
    const ValueId declared =
        in_buffer != in_buffers_.end() ? in_buffer->second : storage_root_[graph_.value(last.ref.value).storage.index];
    graph_.append(target_of(Builtin::kGradient), {Argument::of_value(declared), argument_of_tensor(gradient)});
  }
  std::vector<Argument> values;
  for (const at::Tensor& output : outputs) values.push_back(argument_of_tensor(output));
  graph_.append(target_of(Builtin::kOutput), {graph_.make_list(values)});
  note_routings_read();
  attach_saved_tensors();
  if (!modules_named_) infer_modules_from_neighbors();
  if (generators_) generators_->record_in(graph_);
  link_->close();
  if (backtraces_) backtraces_->resolve(graph_);
  return std::move(graph_);
}

bool Recorder::matches(const Value& value, ValueId id, const FakeTensorImpl& fake) const {
  return value.offset == fake.storage_offset() && value.dtype == fake.dtype().toScalarType() &&
         std::ranges::equal(graph_.sizes(id), fake.sizes()) && std::ranges::equal(graph_.strides(id), fake.strides()) &&
         value.storage == find_storage_id(*fake.unsafe_storage().unsafeGetStorageImpl(), session_);
}

ValueId Recorder::value_of(FakeTensorImpl& fake) {
  if (fake.session() == session_) {
    Value& value = mutable_value(graph_, fake.value());
    if (matches(value, fake.value(), fake)) {
      if (!value.requires_grad) value.requires_grad = fake.requires_grad();
      return fake.value();
    }
  }
  const StorageId storage = find_storage_id(*fake.unsafe_storage().unsafeGetStorageImpl(), session_);
  check_has_memory(fake);
  if (!storage.valid()) {
    const c10::StorageImpl* const unmet = fake.unsafe_storage().unsafeGetStorageImpl();
    const auto grown = growths_.find(unmet);
    const bool is_grown = grown != growths_.end() && is_bound(*unmet, session_);
    return C10_UNLIKELY(is_grown) ? insert_resize(fake, growths_.extract(grown).mapped()) : placeholder_for(fake);
  }

  const ValueId root = storage_root_[storage.index];
  if (matches(graph_.value(root), root, fake)) {
    fake.bind(session_, root);
    return root;
  }
  const Argument source[] = {Argument::of_value(root)};
  const NodeId node = append(target_of(Builtin::kAlias), source);
  mutable_node(graph_, node).region = add_open_region(regions_.size() - 1);
  mutable_node(graph_, node).phase = current_phase();
  const ValueId value = new_value(node, fake, storage);
  const Argument result[] = {Argument::of_value(value)};
  graph_.set_results(node, result);
  return value;
}

// Records set_ with a storage, which is not a value, as set_ with a tensor: an alias of that storage. `after` is self
// after the call, and identifies the storage and offset. A storage without a known tensor stays opaque.
TargetId Recorder::set_from_storage(const OperatorInfo& info, FakeTensorImpl& after) {
  const c10::StorageImpl* storage = after.unsafe_storage().unsafeGetStorageImpl();
  if (!find_storage_id(*storage, session_).valid()) {
    for (auto& [real, entry] : mode_.memo.tensors) {
      FakeTensorImpl* fake = as_fake(entry.fake);
      if (fake == nullptr || fake->unsafe_storage().unsafeGetStorageImpl() != storage) continue;
      value_of(*fake);
      break;
    }
  }
  if (!find_storage_id(*storage, session_).valid()) return target_of_operator(info);
  const Argument self = arguments_[0];
  after.bind(0, ValueId());
  arguments_ = {self, Argument::of_value(value_of(after))};
  static const auto set_tensor = c10::Dispatcher::singleton().findSchemaOrThrow("aten::set_", "source_Tensor");
  return target_of_operator(OperatorInfo::of(set_tensor));
}

namespace {

// Returns another tensor on the memory of `real`, with its version counter. It keeps the memory, dtype and sizes that
// `real` has now, whatever is assigned to it later (`.data =`, Module::to, load_state_dict with assign).
at::Tensor alias_of(const at::Tensor& real) {
  const c10::InferenceMode inference(real.is_inference());
  const c10::TensorImpl& impl = *real.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(), /*allow_tensor_metadata_change=*/false));
}

// Returns the value of a number converted for this call (prim::NumToTensor), whose tensor may be freed by now.
std::optional<at::Tensor> value_of_converted(FakeTensorImpl& fake, const ModeState& mode) {
  if (fake.mode_id() != mode.id || mode.id == 0) return std::nullopt;  // created before this capture
  const at::Tensor tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(&fake));
  if (!is_known(tensor) || !assumptions_of(tensor).empty()) return std::nullopt;
  const auto value = known_value(tensor);
  const RealCalls real;
  return value ? std::optional(value->clone()) : std::nullopt;
}

}  // namespace

ValueId Recorder::placeholder_for(FakeTensorImpl& fake) {
  const at::Tensor real = real_of_fake(fake, mode_);
  auto name = names_.find(&fake);
  if (name == names_.end() && real.defined()) name = names_.find(real.unsafeGetTensorImpl());

  Builtin kind = Builtin::kInput;
  Argument argument;
  if (name != names_.end()) {
    kind = name->second.kind;
    argument = graph_.string_argument(name->second.name);
  } else if (real.defined()) {
    kind = Builtin::kConstant;
    argument = Argument::of_constant(graph_.add_constant(mode_.reads_data ? alias_of(real) : real));
  } else if (const auto value = value_of_converted(fake, mode_)) {
    kind = Builtin::kConstant;
    argument = Argument::of_constant(graph_.add_constant(*value));
  } else {
    std::string unused;
    do {
      unused = "input" + std::to_string(inputs_++);
    } while (input_names_.contains(unused));
    argument = graph_.string_argument(unused);
  }
  const Argument arguments[] = {argument};
  const NodeId node = graph_.insert_before(body_, target_of(kind), arguments);

  Storage storage = storage_of(fake, node);
  static constexpr StorageKind kKinds[] = {StorageKind::kParameter, StorageKind::kBuffer, StorageKind::kInput,
                                           StorageKind::kConstant};
  storage.kind = kKinds[static_cast<size_t>(kind)];
  const StorageId id = graph_.add_storage(storage);
  bind_storage(*fake.unsafe_storage().unsafeGetStorageImpl(), id, c10::intrusive_ptr<SessionLink>::reclaim_copy(link_));

  const ValueId value = new_value(node, fake, id);
  const Argument result[] = {Argument::of_value(value)};
  graph_.set_results(node, result);
  set_root(id, value);
  graph_.set_requires_grad(value, fake.requires_grad());
  if (mode_.watch_size_reads && kind == Builtin::kInput) fake.watch_size_reads();
  if (kind == Builtin::kParameter || kind == Builtin::kBuffer) {
    const size_t dot = name->second.name.rfind('.');
    owners_.resize(std::max<size_t>(owners_.size(), size_t{id.index} + 1));
    if (dot != std::string::npos) owners_[id.index] = graph_.intern(name->second.name.substr(0, dot));
  }
  return value;
}

ValueId Recorder::new_value(NodeId producer, FakeTensorImpl& fake, StorageId storage) {
  const ValueId value = graph_.new_tensor(producer, spec_of(fake, storage));
  fake.bind(session_, value);
  return value;
}

StorageId Recorder::storage_of_result(FakeTensorImpl& fake, NodeId node) {
  c10::StorageImpl& impl = *fake.unsafe_storage().unsafeGetStorageImpl();
  const int64_t bytes = fake.allocated_bytes();
  const StorageId known = find_storage_id(impl, session_);
  if (known.valid()) {
    // resize_ may have increased it.
    mutable_storage(graph_, known).bytes = std::max(graph_.storage(known).bytes, bytes);
    return known;
  }
  const StorageId id = graph_.add_storage(storage_of(fake, node));
  bind_storage(impl, id, c10::intrusive_ptr<SessionLink>::reclaim_copy(link_));
  set_root(id, ValueId());
  return id;
}

Argument Recorder::argument_of_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return Argument::none();
  if (FakeTensorImpl* fake = as_fake(tensor.unsafeGetTensorImpl())) return Argument::of_value(value_of(*fake));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return number_of(graph_, tensor);
  if (C10_UNLIKELY(is_wrapper(tensor))) {
    c10::SmallVector<Argument, 2> parts;
    for (const at::Tensor& part : parts_of(tensor)) parts.push_back(argument_of_tensor(part));
    if (!parts.empty()) return parts.size() == 1 ? parts[0] : graph_.make_list({parts.data(), parts.size()});
  }
  return Argument::of_value(value_of(*as_fake(fake_of_real(tensor, &mode_))));
}

Argument Recorder::argument_of(const CallArgument& value) {
  using Kind = CallArgument::Kind;
  c10::SmallVector<Argument, 8> elements;
  switch (value.kind()) {
    case Kind::kBoxed:
      return argument_of(value.boxed());
    case Kind::kNone:
      return Argument::none();
    case Kind::kTensor:
      return argument_of_tensor(value.tensor());
    case Kind::kInt:
      return Argument::of_int(value.integer());
    case Kind::kInts:
      return graph_.int_list({value.ints().data(), value.ints().size()});
    case Kind::kFloat:
      return Argument::of_float(value.real());
    case Kind::kBool:
      return Argument::of_bool(value.boolean());
    case Kind::kTensors:
      for (const at::Tensor& element : value.tensors()) elements.push_back(argument_of_tensor(element));
      break;
    case Kind::kTensorRefs:
      for (const at::Tensor& element : value.tensor_refs()) elements.push_back(argument_of_tensor(element));
      break;
    default:
      return argument_of(value.value());
  }
  return graph_.make_list({elements.data(), elements.size()});
}

Argument Recorder::argument_of(const c10::IValue& value) {
  if (value.isGenerator()) return argument_of_generator(value.toGenerator());
  return shadowgraph::argument_of(graph_, value, [this](const at::Tensor& t) { return argument_of_tensor(t); });
}

Argument Recorder::result_of_tensor(const at::Tensor& tensor, NodeId node) {
  FakeTensorImpl* fake = as_fake(tensor);
  if (fake == nullptr) return Argument::none();
  const StorageId storage = storage_of_result(*fake, node);
  const ValueId id = new_value(node, *fake, storage);
  if (!storage_root_[storage.index].valid()) storage_root_[storage.index] = id;
  return Argument::of_value(id);
}

Argument Recorder::result_of(const CallArgument& value, NodeId node) {
  using Kind = CallArgument::Kind;
  switch (value.kind()) {
    case Kind::kBoxed:
      return result_of(value.boxed(), node);
    case Kind::kTensor:
      return result_of_tensor(value.tensor(), node);
    case Kind::kTensors: {
      c10::SmallVector<Argument, 8> elements;
      for (const at::Tensor& element : value.tensors()) elements.push_back(result_of_tensor(element, node));
      return graph_.make_list({elements.data(), elements.size()});
    }
    default:
      return result_of(value.value(), node);
  }
}

Argument Recorder::result_of(const c10::IValue& value, NodeId node) {
  return shadowgraph::result_of(graph_, node, value, [&](const at::Tensor& t) { return result_of_tensor(t, node); });
}

TargetId Recorder::target_of_operator(const OperatorInfo& info) {
  if (info.id >= targets_.size()) targets_.resize(info.id + 64);
  TargetId& target = targets_[info.id];
  if (!target.valid()) target = graph_.intern_target(info.target);
  return target;
}

// Resized storages: untyped_storage().resize_(bytes), as FSDP2 does with unsharded parameters.
//
// Freed and reallocated memory becomes a new storage in the graph. The old storage is freed, and the new one is
// allocated by aten::empty, whose contents are also undefined. Contents kept by the program become a copy. Tensors on
// the old storage become aliases of the new one at their next use. Replay, lifetimes and allocators need no special
// case.

namespace {

// A 1-D fake tensor over the first `elements` elements of the storage.
at::Tensor beginning_of(const c10::Storage& storage, c10::ScalarType dtype, int64_t elements, c10::Device device) {
  c10::Storage shared = storage;
  at::Tensor tensor = at::detail::make_tensor<FakeTensorImpl>(std::move(shared), fake_key_set(device),
                                                              caffe2::TypeMeta::fromScalarType(dtype), device);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({elements});
  return tensor;
}

bool is_emptied(const at::Tensor& tensor) {
  if (as_fake(tensor) == nullptr) return false;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.unsafe_storage().nbytes() == 0 && impl.numel() != 0;
}

}  // namespace

void Recorder::storage_resized(c10::StorageImpl& storage, size_t bytes) {
  if (bytes == storage.nbytes()) return;
  const StorageId before = find_storage_id(storage, session_);
  if (!before.valid()) {
    // Its previous contents are not recorded. The device is that of the first tensor that uses the new memory.
    if (bytes == 0) {
      growths_.erase(&storage);
    } else {
      const KernelDepth depth;
      const bool in_backward = torch::autograd::get_current_node() != nullptr || !recomputations_.empty();
      const PhaseId phase = phase_.valid() ? phase_ : in_backward ? Graph::kBackward : Graph::kForward;
      growths_[&storage] = {last_, phase, add_open_region(regions_.size() - 1), non_default_streams()};
      if (!is_bound(storage, session_)) {
        bind_storage(storage, StorageId(), c10::intrusive_ptr<SessionLink>::reclaim_copy(link_));
      }
    }
    return;
  }
  const c10::Device device = graph_.storage(before).device();
  c10::ScalarType dtype = graph_.value(storage_root_[before.index]).dtype;
  size_t item = c10::elementSize(dtype);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (bytes % item != 0 || kept % item != 0) {
    dtype = c10::kByte;
    item = 1;
  }
  const auto now = at::empty({static_cast<int64_t>(bytes / item)}, at::TensorOptions(device).dtype(dtype));
  if (kept > 0) {
    const auto elements = static_cast<int64_t>(kept / item);
    const c10::Storage shared(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
    const at::NoGradGuard no_grad;
    now.narrow(0, 0, elements).copy_(beginning_of(shared, dtype, elements, device));
  }
  // Swap their ids: the old memory is freed with `now`.
  c10::StorageImpl& made = *now.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const StorageId after = find_storage_id(made, session_);
  TORCH_INTERNAL_ASSERT(after.valid(), "an observed call binds the storages it allocates");
  rename_storage(made, session_, before);
  rename_storage(storage, session_, after);
  forget_contents(storage);
}

// Returns whether the call is a view of freed memory. It computes nothing; the view becomes an alias once memory is
// allocated.
bool Recorder::is_view_of_freed_memory(const OperatorInfo& info, std::span<const CallArgument> arguments) const {
  if (!info.is_view && !info.inplace_view) return false;
  if (arguments.empty()) return false;
  const CallArgument& self = arguments[0];
  if (self.kind() == CallArgument::Kind::kTensor) return is_emptied(self.tensor());
  return self.kind() == CallArgument::Kind::kBoxed && self.boxed().isTensor() && is_emptied(self.boxed().toTensor());
}

// Rejects reads and writes of freed memory, where eager would dereference a null pointer.
void Recorder::check_has_memory(const FakeTensorImpl& fake) const {
  if (fake.layout() != c10::Layout::Strided || fake.numel() == 0) return;
  int64_t end = fake.storage_offset() + 1;
  for (size_t d = 0; d < fake.sizes().size(); ++d) end += (fake.sizes()[d] - 1) * fake.strides()[d];
  const auto bytes = static_cast<int64_t>(fake.unsafe_storage().nbytes());
  const auto needed = end * static_cast<int64_t>(fake.dtype().itemsize());
  if (needed <= bytes) return;
  throw Error(c10::str(calling_ != nullptr ? calling_->name : std::string("the program"), " uses a tensor of shape ",
                       fake.sizes(), " and dtype ", fake.dtype().toScalarType(), ", which needs ", needed,
                       " bytes, but its storage has ", bytes,
                       " because it was resized (untyped_storage().resize_). Use it before its memory is freed, "
                       "or resize the storage back first"));
}

// Inserts the aten::empty that allocated the storage of `fake` at the position of the resize.
ValueId Recorder::insert_resize(FakeTensorImpl& fake, const Growth& growth) {
  c10::StorageImpl& impl = *fake.unsafe_storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<int64_t>(impl.nbytes());
  const auto item = static_cast<int64_t>(fake.dtype().itemsize());
  const c10::ScalarType dtype = bytes % item == 0 ? fake.dtype().toScalarType() : c10::kByte;
  const int64_t sizes[] = {bytes % item == 0 ? bytes / item : bytes};
  static const auto empty = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format");
  const Argument arguments[] = {graph_.int_list(sizes), Argument::of_int(static_cast<int64_t>(dtype)),
                                Argument::none(),       Argument::of_device(fake.simulated_device()),
                                Argument::none(),       Argument::none()};
  const NodeId next = growth.after.valid() ? graph_.node(growth.after).next : body_;
  const NodeId node = graph_.insert_before(next, target_of_operator(OperatorInfo::of(empty)), arguments);
  if (!growth.after.valid()) body_ = node;
  if (growth.after == last_) last_ = node;
  Node& n = mutable_node(graph_, node);
  n.phase = growth.phase;
  n.region = growth.region;

  const StorageId id = graph_.add_storage(storage_of(fake, node));
  rename_storage(impl, session_, id);
  const int64_t strides[] = {1};
  set_root(id,
           graph_.add_tensor_result(
               node,
               {.dtype = dtype, .sizes = sizes, .strides = strides, .storage = id, .device = fake.simulated_device()}));
  streams_.put(graph_, node, growth.streams);
  return value_of(fake);
}

}  // namespace shadowgraph
