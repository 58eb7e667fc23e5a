#include "core/deferred/record.h"
#include "shadowgraph/deferred.h"

namespace shadowgraph {

DeferredInit::DeferredInit(const DeferredOptions& options) {
  if (is_describing()) return;
  mode_ = std::make_unique<FakeTensorMode>(FakeTensorOptions{.device = options.device, .profile = options.profile});
  const auto link = DeferredRecord::begin(ModeAccess::state(*mode_));
  record_ = link->record;
  link_ = std::shared_ptr<void>(nullptr, [link](void*) {});
}

DeferredInit::~DeferredInit() {
  try {
    finish();
  } catch (const std::exception&) {  // the program's own exception is under way, or nobody asked
  }
}

void DeferredInit::finish() {
  if (!mode_) return;
  const auto record = std::exchange(record_, nullptr);
  const auto link = std::exchange(link_, nullptr);
  mode_.reset();
  record->end_scope();
}

}  // namespace shadowgraph
