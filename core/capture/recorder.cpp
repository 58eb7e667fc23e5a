#include "core/capture/recorder.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>

#include "core/calls/call_record.h"
#include "core/dispatch/operator_info.h"
#include "core/fake/autocast.h"
#include "core/fake/converter.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/kernel_depth.h"
#include "core/fake/process_groups.h"
#include "ir/records.h"

namespace shadowgraph {
Recorder::Recorder(ModeState& mode)
    : mode_(mode),
      session_(next_session()),
      own_link_(c10::make_intrusive<SessionLink>(session_)),
      link_(own_link_.get()),
      sequence_base_(at::sequence_number::peek()),
      sequence_seen_(sequence_base_) {
  OpenRegion root;
  root.id = Graph::kRootRegion;
  regions_.push_back(root);
}

Recorder::Recorder(ModeState& mode, SessionLink& link)
    : mode_(mode),
      session_(link.session()),
      link_(&link),
      sequence_base_(at::sequence_number::peek()),
      sequence_seen_(sequence_base_) {
  OpenRegion root;
  root.id = Graph::kRootRegion;
  regions_.push_back(root);
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
  // Parameters that lie in one buffer are views of it.
  const NodeId node = graph_.value(value).producer;
  if (graph_.node(node).target == target_of(Builtin::kAlias) && name->second.kind == Builtin::kParameter) {
    graph_.set_note(node, "parameter", name->second.name);
    in_buffers_.emplace(tensor.unsafeGetTensorImpl(), value);
  }
  name_what_was_made(value, name->second);
  return value;
}

// ---- Calls

void Recorder::begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) {
  if (link_->has_deaths()) flush_deaths();
  if (C10_UNLIKELY(info.group_argument >= 0)) {
    declare_group(arguments[static_cast<size_t>(info.group_argument)].boxed());  // collectives have no unboxed kernel
  }
  arguments_.clear();
  unrecorded_ = looks_at_nothing(info, arguments);
  if (C10_UNLIKELY(unrecorded_)) return;
  calling_ = &info;
  for (const CallArgument& argument : arguments) arguments_.push_back(argument_of(argument));
  calling_ = nullptr;
}

// Describes a group in the graph before the first collective on it. If nobody has a group of that name, the call will
// say so.
void Recorder::declare_group(const c10::IValue& group) {
  const auto info = describe_group(group);
  if (!info || !groups_.insert(info->name).second) return;
  const PhaseId outer = phase_;
  if (!phase_.valid() && torch::autograd::get_current_node()) phase_ = Graph::kBackward;
  record_function(process_group_target(), process_group_arguments(*info), at::Tensor());
  phase_ = outer;
}

void Recorder::end_call(const OperatorInfo& info, std::span<const CallArgument> results) {
  if (C10_UNLIKELY(std::exchange(unrecorded_, false))) return;
  const bool takes_storage = arguments_.size() > 1 && arguments_[1].kind == ArgumentKind::kOpaque &&
                             info.name.starts_with("aten::set_.source_Storage");
  const TargetId target =
      takes_storage ? set_from_storage(info, *as_fake(results[0].value().toTensor())) : target_of_operator(info);
  const NodeId node = graph_.append(target, arguments_);
  if (!body_.valid()) body_ = node;
  last_ = node;
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
  // An autograd function of the program's runs without gradients, behind a grad_fn that it has made. If it
  // communicates, that grad_fn is the collective's.
  if (n.flags.grad_mode || C10_UNLIKELY(info.group_argument >= 0)) claim_sequence(node);
  if (C10_UNLIKELY(streams_.in_use())) streams_.issued(graph_, node);
  if (mode_.data_sizes.has_asked()) note_data_sizes(node);
  if (C10_UNLIKELY(mode_.routings.has_made())) note_routings(node);
  if (info.depends_on_data && !results.empty()) note_host_read(info, node, results[0]);
}

namespace {

std::string text_of(const c10::Scalar& value) {
  if (value.isBoolean()) return value.toBool() ? "true" : "false";
  return c10::str(value);
}

}  // namespace

// Notes that the program has read a value (item(), equal()): the path depends on it.
void Recorder::note_host_read(const OperatorInfo& info, NodeId node, const CallArgument& result) {
  if (result.kind() != CallArgument::Kind::kBoxed || !result.boxed().isScalar()) return;
  ValueId read;
  graph_.for_each_value(graph_.arguments(node), [&](ValueId value) {
    if (!read.valid()) read = value;
  });
  if (!mode_.host_answers.has_asked()) {
    const std::string value = info.name + " = " + c10::str(result.boxed().toScalar());
    graph_.guards.push_back({Guard::Kind::kHostValue, read, -1, value});
  }
  for (const HostAnswers::Answer& answer : mode_.host_answers.take_asked()) {
    std::string observed = answer.name + " = " + text_of(answer.value);
    if (!answer.why.empty()) observed += ", " + answer.why;
    if (!answer.source.empty()) observed += ", at " + answer.source;
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

void Recorder::note_backtraces() {
  backtraces_ = std::make_unique<CppBacktraces>();
  locate_ = [] { return current_recorder()->backtraces_->note(); };
}

// Notes a size that the user gave in place of data: at the node, and as something that the path depended on.
void Recorder::note_data_sizes(NodeId node) {
  ValueId result;
  graph_.for_each_output(node, [&](ValueId value) {
    if (!result.valid()) result = value;
  });
  std::string names;
  for (const DataSizes::Asked& asked : mode_.data_sizes.take_asked()) {
    names += (names.empty() ? "" : ", ") + asked.name;
    std::string observed = asked.name + " = " + std::to_string(asked.size);
    if (!asked.why.empty()) observed += ", " + asked.why;
    graph_.guards.push_back({Guard::Kind::kHostValue, result, -1, std::move(observed)});
  }
  graph_.set_note(node, "data_size", names);
}

// Keeps what counts were assumed of, to note those that the program has read.
void Recorder::note_routings(NodeId node) {
  ValueId result;
  graph_.for_each_output(node, [&](ValueId value) {
    if (!result.valid()) result = value;
  });
  for (const auto& routing : mode_.routings.take_made()) routed_.emplace(routing.get(), result);
}

void Recorder::note_routings_read() {
  for (const Routings::Read& read : mode_.routings.take_read()) {
    const auto counted = routed_.find(read.routing.get());
    if (counted == routed_.end()) continue;  // before this capture
    std::string observed = read.routing->name + ": " + read.routing->what + ", assumed";
    if (!read.source.empty()) observed += ", read at " + read.source;
    graph_.guards.push_back({Guard::Kind::kHostValue, counted->second, -1, std::move(observed)});
  }
}

void Recorder::abandon_call(const OperatorInfo& info) noexcept {
  arguments_.clear();
  calling_ = nullptr;
  unrecorded_ = false;
  mode_.data_sizes.forget_asked();
  mode_.host_answers.forget_asked();
}

// Records the numbers of at::tensor({...}), or what an accessor wrote, as a copy from a constant of the graph.
void Recorder::host_wrote(const at::Tensor& fake, const at::Tensor& value) {
  const KernelDepth depth;
  if (link_->has_deaths()) flush_deaths();
  const ValueId written = value_of(*as_fake(fake));
  const at::Tensor constant =
      FakeTensorImpl::empty_strided(value.sizes(), value.strides(), value.dtype(), c10::Device(c10::kCPU));
  const Argument name[] = {Argument::of_constant(graph_.add_constant(value))};
  const NodeId placeholder = graph_.insert_before(body_, target_of(Builtin::kConstant), name);
  graph_.set_note(placeholder, "literal", "host");
  Storage storage;
  storage.bytes = static_cast<int64_t>(constant.storage().nbytes());
  storage.device_type = c10::kCPU;
  storage.born = placeholder;
  storage.kind = StorageKind::kConstant;
  const StorageId id = graph_.add_storage(storage);
  storage_root_.resize(size_t{id.index} + 1);
  const ValueId source = new_value(placeholder, *as_fake(constant), id);
  storage_root_[id.index] = source;
  const Argument made[] = {Argument::of_value(source)};
  graph_.set_results(placeholder, made);

  static const auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  const Argument arguments[] = {Argument::of_value(written), Argument::of_value(source), Argument::of_bool(false)};
  const NodeId node = graph_.append(target_of_operator(OperatorInfo::of(copy)), arguments);
  if (!body_.valid()) body_ = node;
  last_ = node;
  const Argument results[] = {result_of_tensor(fake, node)};
  graph_.set_results(node, results);
  Node& n = mutable_node(graph_, node);
  n.phase = phase_.valid() ? phase_ : Graph::kForward;
  n.region = current_region(arguments);
  if (streams_.in_use()) streams_.issued(graph_, node);
}

void Recorder::flush_deaths() {
  deaths_.clear();
  if (last_.valid()) {
    const auto earlier = graph_.frees(last_);
    deaths_.assign(earlier.begin(), earlier.end());
  }
  const size_t known = deaths_.size();
  link_->take_deaths(deaths_);
  if (last_.valid() && deaths_.size() > known) graph_.set_frees(last_, deaths_);
}

void Recorder::record_function(const Target& target, std::span<const c10::IValue> arguments, const at::Tensor& result) {
  const KernelDepth depth;
  if (link_->has_deaths()) flush_deaths();
  arguments_.clear();
  for (const c10::IValue& argument : arguments) arguments_.push_back(argument_of(argument));
  const NodeId node = graph_.append(graph_.intern_target(target), arguments_);
  if (!body_.valid()) body_ = node;
  last_ = node;
  if (result.defined()) {
    const Argument value = result_of_tensor(result, node);
    graph_.set_results(node, {&value, 1});
  }
  Node& n = mutable_node(graph_, node);
  n.phase = !recomputations_.empty() ? Graph::kBackward : phase_.valid() ? phase_ : Graph::kForward;
  n.region = materialise(regions_.size() - 1);
}

// ---- What the path depended on

void Recorder::size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept {
  try {
    // Note only what the program itself asked for: not a decomposition, not autograd.
    if (regions_.back().region.kind == RegionKind::kComposite || phase_.valid()) return;
    if (torch::autograd::get_current_node()) return;
    const KernelDepth depth;
    const ValueId value = value_of(const_cast<FakeTensorImpl&>(tensor));
    const uint64_t key = (uint64_t{value.index} << 16) | (static_cast<uint64_t>(what) << 8) |
                         static_cast<uint64_t>(static_cast<uint8_t>(dimension));
    if (!size_reads_.insert(key).second) return;
    Guard guard;
    guard.value = value;
    switch (what) {
      case SizeRead::kRank:
        guard.kind = Guard::Kind::kRank;
        guard.observed = std::to_string(tensor.sizes().size());
        break;
      case SizeRead::kSize:
        guard.kind = Guard::Kind::kSize;
        guard.dimension = c10::maybe_wrap_dim(dimension, static_cast<int64_t>(tensor.sizes().size()));
        guard.observed = std::to_string(tensor.sizes()[static_cast<size_t>(guard.dimension)]);
        break;
      case SizeRead::kSizes:
        guard.kind = Guard::Kind::kSizes;
        guard.observed = c10::str(tensor.sizes());
        break;
    }
    graph_.guards.push_back(std::move(guard));
    // NOLINTNEXTLINE(bugprone-empty-catch): observers of size reads are noexcept
  } catch (const std::exception&) {
    // A size that is out of range is the program's own error, raised where it asked.
  }
}

// ---- The end

Graph Recorder::finish(const std::vector<at::Tensor>& outputs,
                       const std::vector<std::pair<at::Tensor, at::Tensor>>& gradients) {
  const KernelDepth depth;
  flush_deaths();
  const auto declare_value = [&](const at::Tensor& tensor) { return argument_of_tensor(tensor); };
  for (const auto& [parameter, gradient] : gradients) {
    // Take the parameter as it was declared, not as the optimizer's last in-place update left it.
    const Argument last = declare_value(parameter);
    const auto in_buffer = in_buffers_.find(parameter.unsafeGetTensorImpl());
    const ValueId declared =
        in_buffer != in_buffers_.end() ? in_buffer->second : storage_root_[graph_.value(last.ref.value).storage.index];
    const Argument pair[] = {Argument::of_value(declared), declare_value(gradient)};
    graph_.append(target_of(Builtin::kGradient), pair);
  }
  std::vector<Argument> values;
  for (const at::Tensor& output : outputs) values.push_back(declare_value(output));
  const Argument list[] = {graph_.make_list(values)};
  graph_.append(target_of(Builtin::kOutput), list);
  note_routings_read();
  attach_saved_tensors();
  if (!modules_named_) infer_modules_from_neighbours();
  link_->close();
  if (backtraces_) backtraces_->resolve(graph_);
  return std::move(graph_);
}

}  // namespace shadowgraph
