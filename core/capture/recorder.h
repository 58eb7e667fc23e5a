// What is inside a wrapper (core/fake/fake_tensor_impl.h): only its language can look (set_wrapper_parts). Internal to
// core/capture.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/capture/source_location.h"
#include "core/capture/storage_identity.h"
#include "core/fake/call_observer.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode/process_state.h"
#include "core/fake/mode_state.h"
#include "core/fake/pretended_devices.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Returns the tensors inside, those of wrappers inside it, too. Empty: it holds none and is a tensor itself. Throws Error if nobody can look inside.
std::vector<at::Tensor> parts_of(const at::Tensor& wrapper);

// Notes on which stream each node was issued and for what it waited there.
//
//     n7: ... | note("event"="1")                  something waits for the stream up to this node
//     n8: ... | note("stream"="2", "waits"="1")    issued on stream 2, which waits for event 1 first
//
// Stream 0, the default one, is not noted; others are numbered as they are first used. A stream does in order what it is
// given. So an event is the last node that its stream had been given, and one that nobody waits for is no note.

class StreamRecord {
 public:
  explicit StreamRecord(uint32_t session) : session_(session) {}

  // Says whether the program has had to do with streams, or has now: else nothing need be told.
  bool in_use() const { return !last_.empty() || !other_streams().empty(); }
  // A node was recorded, on the streams that are current.
  void issued(Graph& graph, NodeId node);
  // A node was put among earlier ones. `streams` were current there.
  void put(Graph& graph, NodeId node, const std::vector<c10::Stream>& streams);
  // `newest`: the node recorded last.
  uint64_t event(const c10::Stream& stream, NodeId newest);
  void wait(Graph& graph, const c10::Stream& stream, uint64_t event);
  // `born`: the node that made the memory.
  void use(Graph& graph, NodeId born, const c10::Stream& stream);

 private:
  struct Event {
    NodeId after;
    uint32_t stream;
  };
  uint32_t number_of(const c10::Stream& stream);

  const uint32_t session_;
  std::vector<c10::Stream> streams_;  // by number - 1
  std::vector<NodeId> last_;          // by number; empty until the program has to do with streams
  std::vector<std::vector<std::string>> waits_;
  std::vector<Event> events_;
  std::map<std::pair<uint32_t, uint32_t>, NodeId> awaited_;  // by waiting and awaited stream: up to where
  int events_named_ = 0;
};

// Writes what the program does into a Graph. Internal to core/capture; programs use CaptureSession.
//
// The tensors are the truth. A fake tensor carries the Value it was last seen as, and its storage carries a StorageId.
// At each use the recorder compares them with what the graph believes. An unknown tensor on a known storage becomes an
// alias value (`.data =`, detach and unpacked saved variables need no hook). An unknown storage becomes a placeholder.
// The recorder holds no fake tensor, so use counts, and with them autograd's in-place gradient accumulation, are as
// without it.

class Recorder final : public CallObserver, public SavedTensorObserver, public StreamObserver {
 public:
  explicit Recorder(ModeState& mode);
  // Uses a link of the caller's, which must outlive the recorder and which it does not close. What the storages keep
  // alive may then own the recorder.
  Recorder(ModeState& mode, SessionLink& link);
  // A number that no other session has.
  static uint32_t next_session();
  ~Recorder() override;

  // ---- Names, before the program runs
  void name_tensor(const at::Tensor& tensor, Builtin kind, const std::string& name);
  void name_module(const void* module, std::string path) { module_paths_[module] = std::move(path); }
  // Makes the placeholder of a named tensor now, so that placeholders come in the order of declaration.
  ValueId declare(const at::Tensor& tensor);

  // ---- What the program is doing
  void enter_region(RegionKind kind, const std::string& name, const std::string& class_name);
  void enter_module(const void* module, const std::string& class_name);
  void leave_region() noexcept;
  bool is_in_module() const { return regions_.back().region.kind == RegionKind::kModule; }
  // Opens an activation checkpoint (shadowgraph/capture/activation_checkpoint.h) for what is recorded until it is left. When backward runs
  // the same again, that becomes a region of the same name and class "recompute". Each node there is linked to the one
  // it repeats.
  uint32_t enter_checkpoint(const std::string& name);
  void leave_checkpoint() noexcept;
  void enter_recomputation(uint32_t checkpoint, const std::string& name);
  void leave_recomputation() noexcept;
  // Records a call of a function that no operator made. Undefined results are none.
  void record_function(const Target& target, std::span<const c10::IValue> arguments, const at::Tensor& result);
  uint32_t session() const { return session_; }
  PhaseId set_phase(PhaseId phase) { return std::exchange(phase_, phase); }
  PhaseId phase_named(const std::string& name) { return graph_.intern_phase(name); }
  // Returns "file:line" of what the program is doing, or an empty text; asked at every node that is not backward's.
  using Locate = CaptureSession::Locate;
  Locate set_locate(Locate locate) { return std::exchange(locate_, locate); }
  // Call stacks of C++ are the sources, wherever nothing else tells them.
  void note_backtraces();

  // ---- The end: closes the record. `gradients` are (parameter, gradient) pairs.
  Graph finish(const std::vector<at::Tensor>& outputs, const std::vector<std::pair<at::Tensor, at::Tensor>>& gradients);

  // Says what a tensor is that the program made (recorder_made.cpp).
  void mark(const at::Tensor& tensor, StorageKind kind);

  // ---- The record so far, for who goes on with it
  const Graph& graph() const { return graph_; }
  NodeId last_node() const { return last_; }
  // Returns the first value that the storage was seen as.
  ValueId root_of(StorageId storage) const { return storage_root_[storage.index]; }

  // ---- CallObserver
  void begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) override;
  void end_call(const OperatorInfo& info, std::span<const CallArgument> results) override;
  void abandon_call(const OperatorInfo& info) noexcept override;
  void enter_composite(const OperatorInfo& info, std::span<const CallArgument> arguments) override;
  void leave_composite() noexcept override;
  std::string location() override;
  // Notes what the user says that an input holds.
  void assume(const at::Tensor& input, const std::string& what);
  void host_wrote(const at::Tensor& fake, const at::Tensor& value) override;
  void storage_resized(c10::StorageImpl& storage, size_t bytes) override;
  void size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept override;

  // ---- SavedTensorObserver
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_saved_tensor() override;
  void tensor_saved(const at::Tensor& tensor);

  // ---- StreamObserver (stream_record.cpp)
  uint64_t event_recorded(const c10::Stream& stream) override;
  void stream_waits(const c10::Stream& stream, uint64_t event) override;
  void memory_used_on(const StorageContext& storage, const c10::Stream& stream) override;

 private:
  // An entered region; it becomes part of the graph only when a node is recorded inside.
  struct OpenRegion {
    Region region;
    RegionId id;        // invalid until materialised
    Run arguments;      // composite: in composite_arguments_
    RegionId inferred;  // the inferred module last opened directly inside this region
    StringId inferred_path;
  };
  struct Saved {
    uint64_t sequence;
    NodeId last_node;  // recorded before
    ValueId value;
  };
  // Where the program was when it gave memory to a storage that the session had not met.
  struct Growth {
    NodeId after;  // invalid: before the first node
    PhaseId phase;
    RegionId region;
    std::vector<c10::Stream> streams;  // that were current, but for default ones
  };
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Name {
    Builtin kind;
    std::string name;
    WeakTensor tensor;  // while this is there, nobody else has its address
  };

  Argument argument_of(const CallArgument& value);
  Argument argument_of(const c10::IValue& value);
  Argument argument_of_tensor(const at::Tensor& tensor);
  Argument result_of(const CallArgument& value, NodeId node);
  Argument result_of(const c10::IValue& value, NodeId node);
  Argument result_of_tensor(const at::Tensor& tensor, NodeId node);
  bool comes_from_elsewhere(ValueId value) const;
  void name_what_was_made(ValueId value, const Name& name);
  ValueId value_of(FakeTensorImpl& fake);
  ValueId placeholder_for(FakeTensorImpl& fake);
  ValueId grown_before(FakeTensorImpl& fake, const Growth& growth);
  // Appends a node of the program's.
  NodeId append(TargetId target, std::span<const Argument> arguments);
  PhaseId current_phase() const {
    return !recomputations_.empty() ? Graph::kBackward : phase_.valid() ? phase_ : Graph::kForward;
  }
  void set_root(StorageId newest, ValueId root) {
    storage_root_.resize(size_t{newest.index} + 1);
    storage_root_[newest.index] = root;
  }
  ValueId new_value(NodeId producer, FakeTensorImpl& fake, StorageId storage);
  StorageId storage_of_result(FakeTensorImpl& fake, NodeId node);
  bool looks_at_nothing(const OperatorInfo& info, std::span<const CallArgument> arguments) const;
  void check_has_memory(const FakeTensorImpl& fake) const;
  bool matches(const Value& value, ValueId id, const FakeTensorImpl& fake) const;
  TargetId target_of_operator(const OperatorInfo& info);
  TargetId set_from_storage(const OperatorInfo& info, FakeTensorImpl& after);
  RegionId current_region(std::span<const Argument> arguments);
  RegionId materialise(size_t depth);
  RegionId inferred_region(size_t depth, std::span<const Argument> arguments);
  RegionId add_inferred_module(RegionId parent, StringId name);
  StringId owner_path(std::span<const Argument> arguments) const;
  void flush_deaths();
  void link_backward(NodeId node);
  void declare_group(const c10::IValue& group);
  void note_data_sizes(NodeId node);
  void note_routings(NodeId node);
  void note_routings_read();
  void note_host_read(const OperatorInfo& info, NodeId node, const CallArgument& result);
  void claim_sequence(NodeId node);
  // Returns the forward node whose grad_fn has this number; invalid if there is none here.
  NodeId owner_of(uint64_t sequence) const {
    const uint64_t at = sequence - sequence_base_;
    return at < sequence_owner_.size() ? sequence_owner_[at] : NodeId();
  }
  void attach_saved_tensors();
  void link_recomputation(NodeId node);
  bool is_recomputed(NodeId node) const;
  void infer_modules_from_neighbours();
  void put_parents_first();

  ModeState& mode_;
  const uint32_t session_;
  c10::intrusive_ptr<SessionLink> own_link_;
  SessionLink* link_;
  Graph graph_;
  PhaseId phase_;  // invalid: forward, or backward under the engine
  Locate locate_ = nullptr;
  std::unique_ptr<CppBacktraces> backtraces_;

  std::vector<TargetId> targets_;  // by OperatorInfo::id
  std::unordered_set<std::string> input_names_;
  std::unordered_set<std::string> groups_;                          // process groups that the graph knows
  std::unordered_map<const c10::TensorImpl*, Name> names_;          // of tensors that become placeholders
  std::unordered_map<const c10::TensorImpl*, ValueId> in_buffers_;  // parameters that are views of another's storage
  std::unordered_map<const void*, std::string> module_paths_;
  std::unordered_map<uint64_t, uint32_t> calls_;  // (parent region, name) -> entered before
  std::vector<ValueId> storage_root_;             // by StorageId: its first value
  std::vector<StringId> owners_;                  // by StorageId of a parameter or buffer: module path
  NodeId body_;                                   // the first node that is not a placeholder
  NodeId last_;                                   // the node recorded last
  NodeId built_;                                  // the last node by which the program built its modules
  NodeId entered_;                                // the node before the first call of a module
  uint32_t inputs_ = 0;
  bool modules_named_ = false;

  std::vector<Argument> arguments_;  // of the call under way
  const OperatorInfo* calling_ = nullptr;
  bool unrecorded_ = false;  // the call under way
  std::vector<Argument> results_;
  std::vector<OpenRegion> regions_;
  std::vector<Argument> composite_arguments_;
  std::vector<StorageId> deaths_;
  std::unordered_map<const c10::StorageImpl*, Growth> growths_;  // of storages bound to no id yet
  StreamRecord streams_{session_};

  std::unordered_map<const Routing*, ValueId> routed_;  // by the value that the program counted

  struct Recomputation {
    uint32_t checkpoint;
    uint32_t next = 0;  // in its nodes
  };
  std::vector<std::vector<NodeId>> checkpoints_;  // the nodes of each, in order
  std::vector<uint32_t> open_checkpoints_;
  std::vector<Recomputation> recomputations_;  // under way

  uint64_t sequence_base_;  // autograd's counter when the session began
  uint64_t sequence_seen_;
  std::vector<NodeId> sequence_owner_;  // by sequence number - base: the forward node whose grad_fn has it
  std::vector<Saved> saved_;
  std::unordered_set<uint64_t> size_reads_;
};

// Returns the recorder of the capture that is under way on this thread, or nullptr.
Recorder* current_recorder();

// While it lives, nodes that the capture under way records on this thread carry what `locate` says.
class LocateScope {
 public:
  explicit LocateScope(Recorder::Locate locate)
      : recorder_(current_recorder()), outer_(recorder_ ? recorder_->set_locate(locate) : nullptr) {}
  ~LocateScope() {
    if (recorder_) recorder_->set_locate(outer_);
  }
  LocateScope(const LocateScope&) = delete;
  LocateScope& operator=(const LocateScope&) = delete;

 private:
  Recorder* recorder_;
  Recorder::Locate outer_;
};

// The insides of CaptureSession, for core.
struct CaptureAccess {
  // nullptr after finish().
  static Recorder* recorder(CaptureSession& session) { return session.finished_ ? nullptr : session.recorder_.get(); }
};

}  // namespace shadowgraph
