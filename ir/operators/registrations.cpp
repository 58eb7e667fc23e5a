#include "ir/operators/registrations.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>

namespace shadowgraph {
namespace {

constinit std::atomic<uint64_t> registrations_seen = 0;

class RegistrationCounter final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override { registrations_seen.fetch_add(1); }
  void onOperatorDeregistered(const c10::OperatorHandle& /*op*/) override { registrations_seen.fetch_add(1); }
};

}  // namespace

uint64_t operator_generation() {
  // Never removed: the dispatcher tells it of deregistrations until the process ends.
  static const auto* const listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<RegistrationCounter>()));
  static_cast<void>(listening);
  return registrations_seen.load();
}

}  // namespace shadowgraph
