// The recording of a deferred program, owned by its tensors. Internal to core/deferred.
//
// It contains a Recorder (core/capture/) that continues after its scope: calls on deferred tensors outside of any mode
// are recorded too, so that later modifications are not lost. It also holds the memory of tensors created outside.
#pragma once

#include <shared_mutex>

#include "core/capture/recorder.h"
#include "core/deferred/random_streams.h"
#include "core/deferred/recipe.h"

namespace shadowgraph {

class DeferredRecord;

// Held by every storage of the record, so the record lives as long as one of them.
class DeferredLink final : public SessionLink {
 public:
  explicit DeferredLink(uint32_t session) : SessionLink(session) {}
  bool outlives_session() const override { return true; }
  std::shared_ptr<DeferredRecord> record;
};

class DeferredRecord final : public CallObserver, public PersistentMode {
 public:
  // Begins a record in a new mode and becomes its observer.
  static c10::intrusive_ptr<DeferredLink> begin(std::shared_ptr<ModeState> mode);
  // Returns the record of a deferred tensor; nullptr for others. O(1). Another thread may be materializing it.
  static std::shared_ptr<DeferredRecord> of(const FakeTensorImpl& fake);
  // Locked exclusively while a tensor's storage is replaced, so that readers on other threads see a consistent state.
  static std::shared_mutex& storage_swap_mutex();
  // Returns the record being recorded on this thread; nullptr if there is none.
  static DeferredRecord* recording();

  DeferredRecord(DeferredLink& link, std::shared_ptr<ModeState> mode);
  ~DeferredRecord() override;

  // Ends the scope and sets the generators to their final states. Throws as RandomStreams::pause.
  void end_scope();

  const Graph& graph() const { return recorder_.graph(); }
  uint32_t session() const { return session_; }
  StorageId storage_of(const FakeTensorImpl& fake) const;
  std::recursive_mutex& mutex() { return mutex_; }

  // Throws if the record cannot use or write `tensor`; `user` begins the message. The caller holds the mutex.
  void check_operand(const std::string& user, const at::Tensor& tensor, bool written);
  // Returns the real tensor that `fake` was converted from; undefined if there is none.
  at::Tensor outside(const FakeTensorImpl& fake) const;

  // ---- Computation. The caller holds the mutex.
  struct Computed {
    StorageId id;
    at::Tensor tensor;  // the first tensor on the storage
  };
  struct ComputeOptions {
    std::optional<c10::Device> device;  // overrides the recorded one
    std::optional<uint64_t> independent_streams;
  };
  // Computes storages in independent groups, one after the other. `done` is called for each storage after its last use,
  // and may keep or drop it.
  void compute(const std::vector<StorageId>& storages, const ComputeOptions& options,
               const std::function<void(Computed)>& done);
  // Returns a real tensor with the current contents of `fake`, for internal use.
  at::Tensor value_of(const FakeTensorImpl& fake, const ComputeOptions& options);
  Recipe& recipe() { return recipe_; }
  RandomStreams& streams() { return streams_; }
  // Returns the number of nodes run so far, a measure of the total work.
  uint64_t nodes_run() const { return nodes_run_; }
  const Snapshots& snapshots() const { return snapshots_; }
  // Throws DeferredError if constants of the steps were modified since they were recorded.
  void check_constants(const std::vector<Recipe::Step>& steps) const;

  struct RealStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    std::optional<at::ScalarType> dtype;  // set if it was converted
    c10::Device device = c10::Device(c10::kCPU);
  };
  std::unordered_map<StorageId, RealStorage> real;
  // New meta storages of dematerialized tensors.
  std::unordered_map<StorageId, c10::weak_intrusive_ptr<c10::StorageImpl>> new_meta_storages;
  // Returns the real storage if it is still alive.
  c10::Storage real_storage(StorageId id);
  // Returns whether the tensor's storage was materialized through another one. If so, uses it, without a copy.
  bool join_real_storage(const FakeTensorImpl& fake);
  c10::intrusive_ptr<DeferredLink> link() { return c10::intrusive_ptr<DeferredLink>::reclaim_copy(link_); }

  void begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) override;
  void end_call(const OperatorInfo& info, std::span<const CallArgument> results) override;
  void abandon_call(const OperatorInfo& info) noexcept override;
  void host_wrote(const at::Tensor& fake, const at::Tensor& value) override;
  void storage_resized(c10::StorageImpl& storage, size_t bytes) override;
  bool compute(const OperatorInfo& info, torch::jit::Stack& stack) override;
  void mode_suspended() override;
  void mode_resumed() noexcept override;

  // RandomStreams::watch().
  void watch(const at::Generator& generator) {
    const std::lock_guard lock(mutex_);
    streams_.watch(generator);
  }

  ModeState& enter() override;
  void leave() noexcept override;

 private:
  // The contents of a tensor created outside, to detect writes.
  struct Contents {
    uint32_t version = 0;
    std::optional<uint64_t> sample;  // hash of some of its bytes; nullopt if they cannot be read
    static Contents of(const at::Tensor& tensor);
    bool operator==(const Contents&) const = default;
  };
  void note_constants();
  RandomState run_draw(NodeId node, const RandomState& before);
  void run(Recipe::Group group, const ComputeOptions& options, const std::function<void(Computed)>& done);

  DeferredLink* link_;  // owns this
  const uint32_t session_;
  std::shared_ptr<ModeState> mode_;
  Recorder recorder_;
  Recipe recipe_;
  RandomStreams streams_;
  Snapshots snapshots_;
  uint64_t nodes_run_ = 0;
  std::recursive_mutex mutex_;
  std::vector<Contents> constant_contents_;  // by ConstantId, when recorded
  std::optional<at::Generator> generator_;   // of the current call
  at::ScalarType default_dtype_;
  bool in_scope_ = true;
};

}  // namespace shadowgraph
