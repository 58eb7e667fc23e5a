// Keeps the record of a described program, owned by the tensors it describes. Internal to core/deferred; programs use
// deferred_init.h and materialize.h.
//
// It is a Recorder (core/capture/) that goes on after its scope. Calls on described tensors outside of any mode are
// recorded as well, so that nothing done to them later is lost. It adds what replaying in parts needs:
//   - who writes which storage (recipe.h);
//   - where random numbers come from (random_streams.h);
//   - in which version tensors from outside were.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "core/capture/recorder.h"
#include "core/deferred/random_streams.h"
#include "core/deferred/recipe.h"
#include "core/fake/mode_state.h"

namespace shadowgraph {

class DeferredRecord;

// Every storage that the record describes holds this link, so the record lives as long as one of them.
class DeferredLink final : public SessionLink {
 public:
  explicit DeferredLink(uint32_t session) : SessionLink(session) {}
  bool outlives_session() const override { return true; }
  std::shared_ptr<DeferredRecord> record;
};

class DeferredRecord final : public CallObserver, public LastingMode {
 public:
  // Begins a record in a mode that has just begun; it becomes the mode's observer.
  static c10::intrusive_ptr<DeferredLink> begin(std::shared_ptr<ModeState> mode);
  // Returns the record that describes `tensor`, nullptr if none does. O(1). Another thread may be turning it real
  // meanwhile.
  static std::shared_ptr<DeferredRecord> of(const FakeTensorImpl& fake);
  // A tensor holds this alone while it changes its storage for another. A thread that asks then finds one of them
  // whole.
  static std::shared_mutex& turning();
  // Returns the record of the program that is being described on this thread, nullptr if none is.
  static DeferredRecord* recording();

  DeferredRecord(DeferredLink& link, std::shared_ptr<ModeState> mode);
  ~DeferredRecord() override;

  // Ends the scope: generators are left where the program would have left them. Throws as RandomStreams::pause.
  void end_scope();

  const Graph& graph() const { return recorder_.graph(); }
  uint32_t session() const { return session_; }
  StorageId storage_of(const FakeTensorImpl& fake) const;
  std::recursive_mutex& mutex() { return mutex_; }

  // Throws if the record cannot use `tensor`, or write it; `user` begins the message. The caller holds the mutex.
  void check_operand(const std::string& user, const at::Tensor& tensor, bool written);
  // Returns the real tensor from outside that `fake` stands for; undefined if there is none.
  at::Tensor outside(const FakeTensorImpl& fake) const;

  // ---- Computing. The caller holds the mutex.
  struct Computed {
    StorageId id;
    at::Tensor tensor;  // the first tensor on the storage; the storage is what counts
  };
  struct ComputeOptions {
    std::optional<c10::Device> device;  // in place of the recorded one
    std::optional<uint64_t> independent_streams;
  };
  // Runs what the storages need, in groups that share nothing, one after the other. Each storage is handed over when
  // nothing needs it any more; `done` may keep or drop it.
  void compute(const std::vector<StorageId>& storages, const ComputeOptions& options,
               const std::function<void(Computed)>& done);
  // Returns a real tensor with the contents that `fake` has now, for our own use.
  at::Tensor value_of(const FakeTensorImpl& fake, const ComputeOptions& options);
  Recipe& recipe() { return recipe_; }
  RandomStreams& streams() { return streams_; }
  // Returns how many nodes have been run so far, or given in another way: the work of it all.
  uint64_t nodes_run() const { return nodes_run_; }
  const Snapshots& snapshots() const { return snapshots_; }
  // Checks that constants of the steps are as they were when they were recorded. Throws DeferredError.
  void check_constants(const std::vector<Recipe::Step>& steps) const;

  // ---- Storages that have become real
  struct RealStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    std::optional<at::ScalarType> dtype;  // that it was converted to
    c10::Device device = c10::Device(c10::kCPU);
  };
  std::unordered_map<StorageId, RealStorage> real;
  // Meta storages made anew for what was dematerialised.
  std::unordered_map<StorageId, c10::weak_intrusive_ptr<c10::StorageImpl>> remade;
  // Returns the real storage, if somebody still holds it.
  c10::Storage real_storage(StorageId id);
  c10::intrusive_ptr<DeferredLink> link() { return c10::intrusive_ptr<DeferredLink>::reclaim_copy(link_); }

  // ---- CallObserver
  void begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) override;
  void end_call(const OperatorInfo& info, std::span<const CallArgument> results) override;
  void abandon_call(const OperatorInfo& info) noexcept override;
  void host_wrote(const at::Tensor& fake, const at::Tensor& value) override;
  void storage_resized(c10::StorageImpl& storage, size_t bytes) override;
  void enter_composite(const OperatorInfo&, std::span<const CallArgument>) override {}
  void leave_composite() noexcept override {}
  bool compute(const OperatorInfo& info, torch::jit::Stack& stack) override;
  void mode_suspended() override;
  void mode_resumed() noexcept override;

  // ---- LastingMode
  ModeState& enter() override;
  void leave() noexcept override;

 private:
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
  std::vector<std::pair<uint32_t, bool>> constant_versions_;  // by ConstantId; false: it has none
  std::optional<at::Generator> generator_;                    // of the call under way
  at::ScalarType default_dtype_;
  bool in_scope_ = true;
};

}  // namespace shadowgraph
