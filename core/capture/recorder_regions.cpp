// The recorder's regions: module scopes, composite calls, and modules inferred from their parameters.
//
// An open region is added to the graph when the first node is recorded inside. So composites that compute nothing leave
// no trace, such as reshape of a contiguous tensor to its own shape.
#include <ATen/SequenceNumber.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/capture/recorder.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/thread_state.h"
#include "ir/records.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/analysis.h"

namespace shadowgraph {
namespace {

bool is_inside(std::string_view path, std::string_view module) {
  return module.empty() || (path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.');
}

// "layer1.0.conv1", "layer1.0.bn2" -> "layer1.0"
std::string_view common_module(std::string_view a, std::string_view b) {
  size_t end = 0;
  for (size_t i = 0;; ++i) {
    const bool a_ends = i == a.size() || a[i] == '.', b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

class SavedTensorHook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedTensorHook(Recorder& recorder) : recorder_(recorder) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    data_.emplace(tensor);
    recorder_.tensor_saved(tensor);
  }
  at::Tensor call_unpack_hook() override { return data_->unpack(); }

 private:
  Recorder& recorder_;
  std::optional<SavedData> data_;
};

// Returns the accelerator that a node computes on, with its index, or the CPU.
c10::Device accelerator_of(const Graph& graph, NodeId node) {
  c10::Device found(c10::kCPU);
  const auto look = [&](ValueId id) {
    const Value& value = graph.value(id);
    if (!found.is_cpu() || value.kind != ValueKind::kTensor || !value.storage.valid()) return;
    found = graph.storage(value.storage).device();
  };
  graph.for_each_output(node, look);
  if (found.is_cpu()) graph.for_each_input(node, look);
  if (!found.is_cpu() && !found.has_index()) found.set_index(0);
  return found;
}

bool is_default(const c10::Stream& stream) {
  return stream.id() == c10::Stream(c10::Stream::DEFAULT, stream.device()).id();
}

}  // namespace

void Recorder::enter_region(RegionKind kind, const std::string& name, const std::string& class_name) {
  regions_.push_back({{.kind = kind, .name = graph_.intern(name), .class_name = graph_.intern(class_name)}});
  if (kind == RegionKind::kModule && !std::exchange(modules_named_, true)) entered_ = last_;
}

void Recorder::enter_module(const void* module, const std::string& class_name) {
  const auto path = module_paths_.find(module);
  enter_region(RegionKind::kModule, path == module_paths_.end() ? class_name : path->second, class_name);
}

void Recorder::leave_region() noexcept { regions_.pop_back(); }

uint32_t Recorder::enter_checkpoint(const std::string& name) {
  enter_region(RegionKind::kCheckpoint, name, "");
  const auto checkpoint = static_cast<uint32_t>(checkpoints_.size());
  checkpoints_.emplace_back();
  open_checkpoints_.push_back(checkpoint);
  return checkpoint;
}

void Recorder::leave_checkpoint() noexcept {
  open_checkpoints_.pop_back();
  leave_region();
}

void Recorder::enter_recomputation(uint32_t checkpoint, const std::string& name) {
  enter_region(RegionKind::kCheckpoint, name, std::string(kRecomputeClass));
  recomputations_.push_back({checkpoint});
}

void Recorder::leave_recomputation() noexcept {
  recomputations_.pop_back();
  leave_region();
}

bool Recorder::is_recomputed(NodeId node) const {
  for (RegionId region = graph_.node(node).region; region.valid(); region = graph_.region(region).parent) {
    if (is_recompute_region(graph_, region)) return true;
  }
  return false;
}

void Recorder::enter_composite(const OperatorInfo& info, std::span<const CallArgument> arguments) {
  OpenRegion open{{.kind = RegionKind::kComposite, .target = target_of_operator(info)}};
  open.arguments.offset = static_cast<uint32_t>(composite_arguments_.size());
  {
    const KernelDepth depth;
    for (const CallArgument& argument : arguments) {
      try {
        composite_arguments_.push_back(argument_of(argument));
      } catch (const Error&) {  // a tensor without memory: reported by the operator inside that uses it
        composite_arguments_.push_back(Argument::none());
      }
    }
  }
  open.arguments.size = static_cast<uint32_t>(composite_arguments_.size()) - open.arguments.offset;
  regions_.push_back(open);
}

void Recorder::leave_composite() noexcept {
  composite_arguments_.resize(regions_.back().arguments.offset);
  regions_.pop_back();
}

RegionId Recorder::current_region(std::span<const Argument> arguments) {
  const size_t depth = regions_.size() - 1;
  if (regions_[depth].region.kind == RegionKind::kComposite) return add_open_region(depth);
  return inferred_region(depth, arguments);
}

RegionId Recorder::add_open_region(size_t depth) {
  OpenRegion& open = regions_[depth];
  if (open.id.valid()) return open.id;
  const std::span<const Argument> arguments(composite_arguments_.data() + open.arguments.offset, open.arguments.size);
  const bool outermost_composite =
      open.region.kind == RegionKind::kComposite && regions_[depth - 1].region.kind != RegionKind::kComposite;
  open.region.parent = outermost_composite ? inferred_region(depth - 1, arguments) : add_open_region(depth - 1);
  if (open.region.kind == RegionKind::kComposite) {
    open.region.name = graph_.intern(graph_.target(open.region.target).name());
    open.region.class_name = graph_.intern("");
  } else {
    open.region.call = calls_[(uint64_t{open.region.parent.index} << 32) | open.region.name.index]++;
  }
  open.id = graph_.add_region(open.region);
  graph_.set_region_arguments(open.id, arguments);
  return open.id;
}

StringId Recorder::owner_path(std::span<const Argument> arguments) const {
  StringId owner;
  // By storage, so that views count: a matmul with weight.t() belongs to the weight's module.
  graph_.for_each_value(arguments, [&](ValueId value) {
    const StorageId storage = graph_.value(value).storage;
    if (!owner.valid() && storage.index < owners_.size()) owner = owners_[storage.index];
  });
  return owner;
}

RegionId Recorder::add_inferred_module(RegionId parent, StringId name) {
  return graph_.add_region({.kind = RegionKind::kModule,
                            .inferred = true,
                            .parent = parent,
                            .name = name,
                            .class_name = graph_.intern(""),
                            .call = calls_[(uint64_t{parent.index} << 32) | name.index]++});
}

// Returns the inferred module inside open region `depth` that owns a parameter in `arguments`, or that region itself.
RegionId Recorder::inferred_region(size_t depth, std::span<const Argument> arguments) {
  const RegionId outer = add_open_region(depth);
  const StringId path = owner_path(arguments);
  if (!path.valid()) return outer;
  std::string_view module;
  for (size_t i = depth + 1; i-- > 0;) {
    if (regions_[i].region.kind == RegionKind::kModule) {
      module = graph_.text(regions_[i].region.name);
      break;
    }
  }
  if (!is_inside(graph_.text(path), module)) return outer;
  OpenRegion& open = regions_[depth];
  if (open.inferred_path == path) return open.inferred;
  open.inferred = add_inferred_module(outer, path);
  open.inferred_path = path;
  return open.inferred;
}

// Infers modules for programs without a ModuleScope. A node without parameters belongs to the innermost module that
// contains both the preceding and the following operators.
void Recorder::infer_modules_from_neighbors() {
  struct Unit {
    NodeId node;
    RegionId top;  // the child of the root that holds the node, invalid if it is in the root itself
  };
  std::vector<Unit> pending;
  StringId before;
  const auto settle = [&](StringId after) {
    if (before.valid() && after.valid() && !pending.empty()) {
      const std::string module(common_module(graph_.text(before), graph_.text(after)));
      if (!module.empty()) {
        const RegionId id = add_inferred_module(Graph::kRootRegion, graph_.intern(module));
        for (const Unit& unit : pending) {
          if (unit.top.valid()) {
            mutable_region(graph_, unit.top).parent = id;
          } else {
            mutable_node(graph_, unit.node).region = id;
          }
        }
      }
    }
    pending.clear();
    before = after;
  };
  for (const NodeId node : graph_.nodes()) {
    if (graph_.node(node).phase != Graph::kForward || graph_.target(node).kind() != TargetKind::kOperator) continue;
    RegionId top = graph_.node(node).region;
    while (top != Graph::kRootRegion && graph_.region(top).parent != Graph::kRootRegion)
      top = graph_.region(top).parent;
    if (top != Graph::kRootRegion && graph_.region(top).kind == RegionKind::kModule) {
      settle(graph_.region(top).name);
    } else {
      pending.push_back({node, top == Graph::kRootRegion ? RegionId() : top});
    }
  }
  for (const NodeId node : graph_.nodes()) {
    const NodeId forward = graph_.node(node).forward;
    if (forward.valid() && !is_recomputed(node)) mutable_node(graph_, node).region = graph_.node(forward).region;
  }
  sort_regions();
}

// Sorts regions so that parents precede children, as a graph requires; regions inferred at the end were appended.
void Recorder::sort_regions() {
  std::vector<Region> ordered;
  std::vector<RegionId> moved(graph_.region_count());
  std::vector<RegionId> chain;
  for (uint32_t i = 0; i < graph_.region_count(); ++i) {
    for (RegionId id(i); id.valid() && !moved[id.index].valid(); id = graph_.region(id).parent) chain.push_back(id);
    for (; !chain.empty(); chain.pop_back()) {
      Region region = graph_.region(chain.back());
      if (region.parent.valid()) region.parent = moved[region.parent.index];
      moved[chain.back().index] = RegionId(static_cast<uint32_t>(ordered.size()));
      ordered.push_back(region);
    }
  }
  for (uint32_t i = 0; i < ordered.size(); ++i) mutable_region(graph_, RegionId(i)) = ordered[i];
  for (const NodeId node : graph_.nodes()) mutable_node(graph_, node).region = moved[graph_.node(node).region.index];
}

// Marks a node that runs under the autograd engine as backward, and links it to the forward node of the current
// grad_fn.
void Recorder::link_backward(NodeId node) {
  const auto grad_fn = torch::autograd::get_current_node();
  if (!grad_fn) {
    // Callbacks queued on the engine run after its last node; FSDP2 and DistributedDataParallel finish there.
    if (torch::autograd::get_current_graph_task_id() >= 0) mutable_node(graph_, node).phase = Graph::kBackward;
    return;
  }
  Node& n = mutable_node(graph_, node);
  n.phase = Graph::kBackward;
  n.forward = owner_of(grad_fn->sequence_nr());
  if (!n.forward.valid()) return;
  n.region = graph_.node(n.forward).region;
  n.source = graph_.node(n.forward).source;
}

// Marks a recomputed node as backward and links it to the forward node it repeats, as long as both runs agree.
void Recorder::link_recomputation(NodeId node) {
  Node& n = mutable_node(graph_, node);
  n.phase = Graph::kBackward;
  n.region = current_region(arguments_);
  Recomputation& run = recomputations_.back();
  const std::vector<NodeId>& first = checkpoints_[run.checkpoint];
  if (run.next == first.size()) return;
  const NodeId repeated = first[run.next++];
  if (graph_.node(repeated).target != n.target) {
    // torch.utils.checkpoint detaches a tensor that it now keeps.
    if (graph_.target(n.target).name() == "aten::detach") {
      --run.next;
      return;
    }
    // The recomputation diverged: a later operator with the same target is not the same node.
    run.next = static_cast<uint32_t>(first.size());
    return;
  }
  n.forward = repeated;
  n.source = graph_.node(repeated).source;
}

// Assigns new sequence numbers to the node: autograd creates an operator's grad_fn just before calling it.
void Recorder::claim_sequence(NodeId node) {
  if (!own_link_) return;  // a shared link spans scopes and threads, where sequence numbers are not comparable
  const uint64_t now = at::sequence_number::peek();
  if (now == sequence_seen_) return;
  sequence_seen_ = now;
  sequence_owner_.resize(now - sequence_base_, node);
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Recorder::hooks_for_saved_tensor() {
  return std::make_unique<SavedTensorHook>(*this);
}

void Recorder::tensor_saved(const at::Tensor& tensor) {
  if (C10_UNLIKELY(is_wrapper(tensor))) {
    const std::vector<at::Tensor> parts = parts_of(tensor);
    for (const at::Tensor& part : parts) tensor_saved(part);
    if (!parts.empty()) return;
  }
  const KernelDepth depth;
  const Argument argument = argument_of_tensor(tensor);
  if (argument.kind != ArgumentKind::kValue) return;
  saved_.push_back({at::sequence_number::peek() - 1, last_, argument.ref.value});
}

void Recorder::attach_saved_tensors() {
  std::vector<std::pair<NodeId, SavedTensor>> attached;
  attached.reserve(saved_.size());
  for (const Saved& saved : saved_) {
    NodeId owner = owner_of(saved.sequence);
    if (!owner.valid()) owner = saved.last_node;
    if (!owner.valid()) continue;
    SavedTensor entry;
    entry.value = saved.value;
    const auto look = [&](ValueId value, SavedRole role, uint16_t index) {
      if (entry.role != SavedRole::kInternal || value != saved.value) return;
      entry.role = role;
      entry.index = index;
    };
    uint16_t position = 0;
    for (const Argument& argument : graph_.arguments(owner)) {
      graph_.for_each_value({&argument, 1}, [&](ValueId value) { look(value, SavedRole::kArgument, position); });
      ++position;
    }
    uint16_t index = 0;
    graph_.for_each_output(owner, [&](ValueId value) { look(value, SavedRole::kResult, index++); });
    attached.emplace_back(owner, entry);
  }
  std::ranges::stable_sort(attached, {}, [](const auto& entry) { return entry.first.index; });
  std::vector<SavedTensor> group;
  for (size_t i = 0; i < attached.size();) {
    const NodeId owner = attached[i].first;
    group.clear();
    for (; i < attached.size() && attached[i].first == owner; ++i) group.push_back(attached[i].second);
    graph_.set_saved(owner, group);
  }
}

// ---- Parameters, buffers and inputs created during the capture. One that existed before is a placeholder; one that
// the program creates, and moves to a device, is the result of an operator.

// Only values created without inputs or from another device are inputs; other arguments of a module are computed.
bool Recorder::is_new_or_transferred(ValueId value) const {
  const NodeId born = graph_.storage(graph_.value(value).storage).born;
  bool elsewhere = true;
  graph_.for_each_input(born, [&](ValueId operand) {
    const StorageId storage = graph_.value(operand).storage;
    if (storage.valid() && graph_.storage(storage).device() == graph_.value(value).device()) elsewhere = false;
  });
  return elsewhere;
}

void Recorder::name_created_value(ValueId value, const Name& name) {
  const StorageId storage = graph_.value(value).storage;
  if (!storage.valid()) return;
  const NodeId born = graph_.storage(storage).born;
  if (!born.valid() || graph_.is_placeholder(born)) return;
  if (name.kind == Builtin::kInput) {
    if (is_new_or_transferred(value)) graph_.set_storage_kind(storage, StorageKind::kInput);
    return;
  }
  const bool parameter = name.kind == Builtin::kParameter;
  graph_.set_storage_kind(storage, parameter ? StorageKind::kParameter : StorageKind::kBuffer);
  const NodeId made = graph_.value(value).producer;
  graph_.set_note(made, parameter ? "parameter" : "buffer", name.name);
  // Module construction extends to here, except for nodes after the first module call.
  const uint32_t last = modules_named_ ? (entered_.valid() ? std::min(entered_.index, made.index) : 0) : made.index;
  NodeId node = built_.valid() ? graph_.node(built_).next : *graph_.nodes().begin();
  for (; node.valid(); node = graph_.node(node).next) {
    if (graph_.is_placeholder(node)) continue;
    if (node.index > last) break;
    if (graph_.node(node).phase == Graph::kForward) graph_.set_phase(node, Graph::kInit);
    built_ = node;
  }
}

void Recorder::mark(const at::Tensor& tensor, StorageKind kind) {
  const StorageId storage = graph_.value(declare(tensor)).storage;
  if (storage.valid() && graph_.storage(storage).kind == StorageKind::kTemporary)
    graph_.set_storage_kind(storage, kind);
}

static void mark(const at::Tensor& tensor, StorageKind kind) {
  Recorder* const recorder = current_recorder();
  if (recorder != nullptr && is_fake(tensor)) recorder->mark(tensor, kind);
}

void mark_gradient(const at::Tensor& gradient) { mark(gradient, StorageKind::kGradient); }
void mark_optimizer_state(const at::Tensor& state) { mark(state, StorageKind::kOptimizerState); }

uint32_t StreamRecord::number_of(const c10::Stream& stream) {
  const auto found = std::ranges::find(streams_, stream);
  const auto number = is_default(stream) ? size_t{0} : static_cast<size_t>(found - streams_.begin()) + 1;
  if (number > streams_.size()) streams_.push_back(stream);
  last_.resize(std::max(last_.size(), number + 1));
  waits_.resize(last_.size());
  return static_cast<uint32_t>(number);
}

void StreamRecord::issued(Graph& graph, NodeId node) {
  const c10::Device device = accelerator_of(graph, node);
  if (device.is_cpu()) return;
  const uint32_t number = number_of(current_stream(device));
  last_[number] = node;
  if (number > 0) graph.set_note(node, "stream", std::to_string(number));
  if (waits_[number].empty()) return;
  graph.set_note(node, "waits", fmt::format("{}", fmt::join(waits_[number], " ")));
  waits_[number].clear();
}

void StreamRecord::put(Graph& graph, NodeId node, const std::vector<c10::Stream>& streams) {
  const c10::Device device = accelerator_of(graph, node);
  for (const c10::Stream& stream : streams) {
    if (stream.device() == device) graph.set_note(node, "stream", std::to_string(number_of(stream)));
  }
}

uint64_t StreamRecord::event(const c10::Stream& stream, NodeId newest) {
  const bool fresh = last_.empty();
  const uint32_t number = number_of(stream);
  if (fresh) last_[0] = newest;
  if (!last_[number].valid()) return 0;
  events_.push_back({last_[number], number});
  return (uint64_t{session_} << 32) | events_.size();
}

void StreamRecord::wait(Graph& graph, const c10::Stream& stream, uint64_t event) {
  if (event >> 32 != session_) return;  // of another session, already complete
  const auto [after, awaited] = events_[static_cast<uint32_t>(event) - 1];
  const uint32_t waiting = number_of(stream);
  if (waiting == awaited) return;
  NodeId& known = awaited_[{waiting, awaited}];
  if (known.valid() && !graph.is_before(known, after)) return;
  known = after;
  std::string name(graph.note(after, "event"));
  if (name.empty()) {
    name = std::to_string(++events_named_);
    graph.set_note(after, "event", name);
  }
  waits_[waiting].push_back(std::move(name));
}

void StreamRecord::use(Graph& graph, NodeId born, const c10::Stream& stream) {
  const std::string number = std::to_string(number_of(stream));
  std::string used(graph.note(born, "used_on"));
  if ((" " + used + " ").find(" " + number + " ") != std::string::npos) return;
  graph.set_note(born, "used_on", used.empty() ? number : used + " " + number);
}

uint64_t Recorder::event_recorded(const c10::Stream& stream) { return streams_.event(stream, last_); }

void Recorder::stream_waits(const c10::Stream& stream, uint64_t event) { streams_.wait(graph_, stream, event); }

void Recorder::memory_used_on(const StorageContext& storage, const c10::Stream& stream) {
  const StorageId id = find_storage_id(storage, session_);
  if (id.valid() && graph_.storage(id).born.valid()) streams_.use(graph_, graph_.storage(id).born, stream);
}

}  // namespace shadowgraph
