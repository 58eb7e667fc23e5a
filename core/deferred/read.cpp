// What a described tensor holds, for those who read it by no operator: Python's tolist() and numpy(), and printing.
#include "core/deferred/record.h"
#include "core/fake/converter.h"
#include "core/fake/known_contents.h"
#include "core/fake/literals.h"
#include "shadowgraph/deferred.h"

namespace shadowgraph {
namespace {

// Copies what may be shared with the record, or with a tensor from outside.
at::Tensor own_copy(const at::Tensor& value) {
  const RealCalls real;
  return value.detach().cpu().resolve_conj().resolve_neg().clone();
}

}  // namespace

bool is_describing() { return DeferredRecord::recording() != nullptr; }

std::optional<at::Tensor> described_value(const at::Tensor& tensor) {
  close_open_literal();
  const FakeTensorImpl* fake = as_fake(tensor);
  DeferredRecord* const recording = DeferredRecord::recording();
  if (fake == nullptr || (recording == nullptr && active_fake_mode() != nullptr)) return std::nullopt;
  if (const auto record = DeferredRecord::of(*fake); record && record->storage_of(*fake).valid()) {
    const std::lock_guard lock(record->mutex());
    show_host_writes(tensor, *record);
    record->check_operand("reading the contents", tensor, /*written=*/false);
    return own_copy(record->value_of(*fake, {c10::Device(c10::kCPU), std::nullopt}));
  }
  const at::Tensor outside = recording != nullptr ? recording->outside(*fake) : at::Tensor();
  return outside.defined() ? std::optional(own_copy(outside)) : std::nullopt;
}

void check_recordable(const at::Tensor& tensor, const std::string& what) {
  DeferredRecord* const recording = DeferredRecord::recording();
  if (recording == nullptr || !tensor.defined()) return;
  const std::lock_guard lock(recording->mutex());
  recording->check_operand(what, fake_of_real(tensor, thread_state.mode), /*written=*/false);
}

}  // namespace shadowgraph
