// Records live bytes of a real run after every operator.
#pragma once

#include <string>
#include <vector>

#include "core/fake/call_observer.h"
#include "core/fake/dispatch/operator_info.h"
#include "tests/counting_allocator.h"

namespace shadowgraph {

struct AfterCall {
  std::string name;
  int64_t live = 0;  // bytes, at the end of the call
  int64_t most = 0;  // bytes, the maximum during the call
};

class LiveBytes final : public CallObserver {
 public:
  std::vector<AfterCall> calls;
  explicit LiveBytes(CountingAllocator& allocator) : allocator_(allocator) {}
  void begin_call(const OperatorInfo&, std::span<const CallArgument>) override { allocator_.most = allocator_.live; }
  void end_call(const OperatorInfo& info, std::span<const CallArgument>) override {
    calls.push_back({info.name, allocator_.live, allocator_.most});
  }
  void abandon_call(const OperatorInfo&) noexcept override {}
  void enter_composite(const OperatorInfo&, std::span<const CallArgument>) override {}
  void leave_composite() noexcept override {}

 private:
  CountingAllocator& allocator_;
};

}  // namespace shadowgraph
