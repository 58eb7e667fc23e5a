// Records operator calls into a Graph. Internal to core/capture; programs use Capture.
#pragma once

#include "core/capture/source_location.h"
#include "core/capture/storage_identity.h"
#include "core/capture/watched_generators.h"
#include "core/fake/call_observer.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode/process_state.h"
#include "core/fake/mode_state.h"
#include "core/fake/simulated_devices.h"
#include "shadowgraph/capture/capture.h"

namespace shadowgraph {

// Returns the inner tensors of a tensor subclass from another language, recursively. Empty for a plain tensor. Throws
// Error if no unwrap function is registered (set_wrapper_parts).
std::vector<at::Tensor> parts_of(const at::Tensor& wrapper);

// Records the stream each node was issued on and the events it waited for.
//
//     n7: ... | note("event"="1")                  event 1 is recorded after this node
//     n8: ... | note("stream"="2", "waits"="1")    issued on stream 2, which first waits for event 1
//
// The default stream, 0, is not noted; others are numbered in order of first use. Work on a stream is ordered, so an
// event is the last node issued on its stream before it. Events without a waiter are not noted.
class StreamRecord {
 public:
  explicit StreamRecord(uint32_t session) : session_(session) {}

  // Returns whether the program uses streams. If not, nothing needs to be recorded.
  bool in_use() const { return !last_.empty() || !non_default_streams().empty(); }
  // Called after a node was recorded on the current streams.
  void issued(Graph& graph, NodeId node);
  // Called after a node was inserted among earlier ones, where `streams` were current.
  void put(Graph& graph, NodeId node, const std::vector<c10::Stream>& streams);
  // Records an event. `newest`: the latest node.
  uint64_t event(const c10::Stream& stream, NodeId newest);
  void wait(Graph& graph, const c10::Stream& stream, uint64_t event);
  // Memory is used on another stream. `born`: the node that allocated it.
  void use(Graph& graph, NodeId born, const c10::Stream& stream);

 private:
  struct Event {
    NodeId after;
    uint32_t stream;
  };
  uint32_t number_of(const c10::Stream& stream);

  const uint32_t session_;
  std::vector<c10::Stream> streams_;  // by number - 1
  std::vector<NodeId> last_;          // by number; empty until the program uses streams
  std::vector<std::vector<std::string>> waits_;
  std::vector<Event> events_;
  std::map<std::pair<uint32_t, uint32_t>, NodeId> awaited_;  // (waiting, awaited stream) -> the latest node waited for
  int events_named_ = 0;
};

// Builds the Graph from the calls that a mode observes.
//
// A fake tensor carries the ValueId it was last seen as, and its storage carries a StorageId. At each use the recorder
// compares the tensor with that value. An unknown tensor on a known storage becomes an alias value, so `.data =`,
// detach and unpacked saved variables need no hook. An unknown storage becomes a placeholder. The recorder owns no fake
// tensor, so use counts, on which autograd's in-place gradient accumulation depends, are the same as without it.
class Recorder final : public CallObserver, public SavedTensorObserver, public StreamObserver {
 public:
  explicit Recorder(ModeState& mode);
  // Uses the caller's link, which must outlive the recorder and is not closed by it. Objects kept alive by the storages
  // may then own the recorder.
  Recorder(ModeState& mode, SessionLink& link);
  // Returns a process-wide unique number.
  static uint32_t next_session();
  ~Recorder() override;

  // ---- Names, set before the program runs
  void name_tensor(const at::Tensor& tensor, Builtin kind, const std::string& name);
  void name_module(const void* module, std::string path) { module_paths_[module] = std::move(path); }
  // Creates the placeholder of a named tensor, so that placeholders are in order of declaration.
  ValueId declare(const at::Tensor& tensor);

  void enter_region(RegionKind kind, const std::string& name, const std::string& class_name);
  void enter_module(const void* module, const std::string& class_name);
  void leave_region() noexcept;
  // A RegionScope or PhaseScope of this capture: one that is left in another capture has no effect there, even if that
  // capture has the address of the first.
  void open_scope(const void* scope) { scopes_.push_back(scope); }
  bool close_scope(const void* scope) noexcept { return std::erase(scopes_, scope) != 0; }
  bool is_in_module() const { return regions_.back().region.kind == RegionKind::kModule; }
  // Opens an activation checkpoint. Its recomputation in backward becomes a region of the same name and class
  // "recompute", where each node is linked to the one it repeats.
  uint32_t enter_checkpoint(const std::string& name);
  void leave_checkpoint() noexcept;
  void enter_recomputation(uint32_t checkpoint, const std::string& name);
  void leave_recomputation() noexcept;
  // Records a call of a function that is not a dispatched operator. An undefined `result` means no result.
  void record_function(const Target& target, std::span<const c10::IValue> arguments, const at::Tensor& result);
  uint32_t session() const { return session_; }
  PhaseId set_phase(PhaseId phase) { return std::exchange(phase_, phase); }
  PhaseId phase_named(const std::string& name) { return graph_.intern_phase(name); }
  // Returns "file:line" of the program's current position, or an empty string; called for every node outside backward.
  using Locate = Capture::Locate;
  Locate set_locate(Locate locate) { return std::exchange(locate_, locate); }
  // Uses C++ backtraces as sources where no `locate` is set.
  void record_backtraces();

  // ---- Finishes the graph. `gradients` are (parameter, gradient) pairs.
  Graph finish(const std::vector<at::Tensor>& outputs, const std::vector<std::pair<at::Tensor, at::Tensor>>& gradients);

  // Sets the kind of a tensor created by the program.
  void mark(const at::Tensor& tensor, StorageKind kind);

  const Graph& graph() const { return graph_; }
  NodeId last_node() const { return last_; }
  // Returns the first value on the storage.
  ValueId root_of(StorageId storage) const { return storage_root_[storage.index]; }

  // Detects where the program changes the states of generators (core/capture/watched_generators.h), from now on those of
  // the CPU and of the default device, later those that it draws from.
  void watch_generators();
  // Does nothing without watch_generators().
  void watch(const at::Generator& generator) { argument_of_generator(generator); }

  void mode_suspended() override {
    if (generators_) generators_->suspend();
  }
  void mode_resumed() noexcept override {
    if (generators_) generators_->resume();
  }
  void begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) override;
  void end_call(const OperatorInfo& info, std::span<const CallArgument> results) override;
  void abandon_call(const OperatorInfo& info) noexcept override;
  void enter_composite(const OperatorInfo& info, std::span<const CallArgument> arguments) override;
  void leave_composite() noexcept override;
  std::string location() override;
  // Records an assumption about an input's contents as a guard.
  void assume(const at::Tensor& input, const std::string& what);
  void host_wrote(const at::Tensor& fake, const at::Tensor& value) override;
  void storage_resized(c10::StorageImpl& storage, size_t bytes) override;
  void size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_saved_tensor() override;
  void tensor_saved(const at::Tensor& tensor);

  uint64_t event_recorded(const c10::Stream& stream) override;
  void stream_waits(const c10::Stream& stream, uint64_t event) override;
  void memory_used_on(const StorageContext& storage, const c10::Stream& stream) override;

 private:
  // An open region; added to the graph when the first node is recorded inside.
  struct OpenRegion {
    Region region;
    RegionId id;        // invalid until added to the graph
    Run arguments;      // composite: in composite_arguments_
    RegionId inferred;  // the latest inferred module directly inside this region
    StringId inferred_path;
  };
  struct Saved {
    uint64_t sequence;
    NodeId last_node;  // the node recorded before
    ValueId value;
  };
  // Position of the program when it resized a storage unknown to the session.
  struct Growth {
    NodeId after;  // invalid: before the first node
    PhaseId phase;
    RegionId region;
    std::vector<c10::Stream> streams;  // current ones, except default streams
  };
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Name {
    Builtin kind;
    std::string name;
    WeakTensor tensor;  // keeps the address from being reused
  };

  Argument argument_of(const CallArgument& value);
  Argument argument_of(const c10::IValue& value);
  Argument argument_of_tensor(const at::Tensor& tensor);
  Argument result_of(const CallArgument& value, NodeId node);
  Argument result_of(const c10::IValue& value, NodeId node);
  Argument result_of_tensor(const at::Tensor& tensor, NodeId node);
  bool is_new_or_transferred(ValueId value) const;
  void name_created_value(ValueId value, const Name& name);
  ValueId value_of(FakeTensorImpl& fake);
  ValueId placeholder_for(FakeTensorImpl& fake);
  ValueId insert_resize(FakeTensorImpl& fake, const Growth& growth);
  // Appends a node of the program.
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
  bool is_view_of_freed_memory(const OperatorInfo& info, std::span<const CallArgument> arguments) const;
  void check_has_memory(const FakeTensorImpl& fake) const;
  bool matches(const Value& value, ValueId id, const FakeTensorImpl& fake) const;
  TargetId target_of_operator(const OperatorInfo& info);
  TargetId set_from_storage(const OperatorInfo& info, FakeTensorImpl& after);
  RegionId current_region(std::span<const Argument> arguments);
  RegionId add_open_region(size_t depth);
  RegionId inferred_region(size_t depth, std::span<const Argument> arguments);
  RegionId add_inferred_module(RegionId parent, StringId name);
  StringId owner_path(std::span<const Argument> arguments) const;
  void flush_frees();
  Argument argument_of_generator(const at::Generator& generator);
  void note_draw(NodeId node);
  void link_backward(NodeId node);
  void declare_group(const c10::IValue& group);
  void note_data_sizes(NodeId node);
  void read_lengths(const OperatorInfo& info, std::span<const CallArgument> arguments);
  void note_routings(NodeId node);
  void note_routings_read();
  void note_host_read(const OperatorInfo& info, NodeId node, const CallArgument& result);
  void claim_sequence(NodeId node);
  // Returns the forward node whose grad_fn has this sequence number; invalid if it was not recorded.
  NodeId owner_of(uint64_t sequence) const {
    const uint64_t at = sequence - sequence_base_;
    return at < sequence_owner_.size() ? sequence_owner_[at] : NodeId();
  }
  void attach_saved_tensors();
  void link_recomputation(NodeId node);
  bool is_recomputed(NodeId node) const;
  void infer_modules_from_neighbors();
  void sort_regions();

  ModeState& mode_;
  const uint32_t session_;
  c10::intrusive_ptr<SessionLink> own_link_;
  SessionLink* link_;
  Graph graph_;
  PhaseId phase_;  // invalid: forward, or backward under the engine
  Locate locate_ = nullptr;
  std::unique_ptr<CppBacktraces> backtraces_;

  std::vector<TargetId> targets_;  // by OperatorInfo::id
  // By OperatorInfo::id: of attention on packed sequences, the argument with their cumulative lengths; 0: not read yet.
  std::vector<uint16_t> lengths_at_;
  std::string scores_;                       // kScoresNote of the current call
  std::unordered_set<std::string> assumed_;  // about packed sequences and block masks
  std::unordered_set<std::string> input_names_;
  std::unordered_set<std::string> groups_;                          // process groups declared in the graph
  std::unordered_map<const c10::TensorImpl*, Name> names_;          // of tensors that become placeholders
  std::unordered_map<const c10::TensorImpl*, ValueId> in_buffers_;  // parameters that are views into a flat buffer
  std::unordered_map<const void*, std::string> module_paths_;
  std::unordered_map<uint64_t, uint32_t> calls_;  // (parent region, name) -> number of calls
  std::vector<ValueId> storage_root_;             // by StorageId: its first value
  std::vector<StringId> owners_;                  // by StorageId of a parameter or buffer: module path
  NodeId body_;                                   // the first node that is not a placeholder
  NodeId last_;                                   // the latest node
  NodeId built_;                                  // the last node of module construction
  NodeId entered_;                                // the node before the first call of a module
  uint32_t inputs_ = 0;
  bool modules_named_ = false;

  std::vector<Argument> arguments_;  // of the current call
  const OperatorInfo* calling_ = nullptr;
  bool unrecorded_ = false;  // the current call is not recorded
  std::vector<Argument> results_;
  std::vector<const void*> scopes_;
  std::vector<OpenRegion> regions_;
  std::vector<Argument> composite_arguments_;
  std::vector<StorageId> freed_;
  std::unordered_map<const c10::StorageImpl*, Growth> growths_;  // of storages without an id
  StreamRecord streams_{session_};

  std::unordered_map<const Routing*, ValueId> routed_;  // the value whose elements the program counted

  struct Recomputation {
    uint32_t checkpoint;
    uint32_t next = 0;  // index into its nodes
  };
  std::vector<std::vector<NodeId>> checkpoints_;  // the nodes of each, in order
  std::vector<uint32_t> open_checkpoints_;
  std::vector<Recomputation> recomputations_;  // running, innermost last

  uint64_t sequence_base_;  // autograd's counter at the start of the session
  uint64_t sequence_seen_;
  std::vector<NodeId> sequence_owner_;  // by sequence number - base: the forward node of that grad_fn
  std::vector<Saved> saved_;
  std::unordered_set<uint64_t> size_reads_;
  std::optional<WatchedGenerators> generators_;
};

// Returns the recorder of this thread's active capture, or nullptr.
Recorder* current_recorder();

// Sets the source location of nodes recorded on this thread, for its lifetime.
class LocateScope {
 public:
  explicit LocateScope(Recorder::Locate locate)
      : recorder_(current_recorder()), outer_(recorder_ ? recorder_->set_locate(locate) : nullptr) {}
  ~LocateScope() {
    if (recorder_) recorder_->set_locate(outer_);
  }
  C10_DISABLE_COPY_AND_ASSIGN(LocateScope);

 private:
  Recorder* recorder_;
  Recorder::Locate outer_;
};

// Grants core access to a Capture.
struct CaptureAccess {
  // nullptr after finish().
  static Recorder* recorder(Capture& session) { return session.finished_ ? nullptr : session.recorder_.get(); }
};

}  // namespace shadowgraph
