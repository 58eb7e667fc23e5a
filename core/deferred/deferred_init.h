// Describes a program that makes tensors, without making them: they are materialised later, in whatever order and number.
//
//     auto net = shadowgraph::deferred_init([] { return std::make_shared<Net>(70'000'000'000); });   // nothing allocated
//     shadowgraph::materialize_module(*net->layer3);   // core/deferred/materialize.h: bitwise what eager would have made
//
// Every tensor made inside is a fake one and every operator is recorded, in one graph that the tensors own: what is done
// to them later, outside of any mode, is recorded too. Under a FakeTensorMode or a CaptureSession a described tensor is a
// fake like any other: what is done there is asking "what if", and no part of the recipe.
//
// Random numbers: nothing is drawn, but when deferred_init returns, generators are where eager would have left them, and
// materialising does not move them. So what is drawn afterwards is as in eager, whatever is materialised and when.
// Seeding, saving and restoring generators inside works; a saved state means nothing outside.
//
// Values that the program reads (item(), a mask as an index, nonzero()) are computed at once, on just what they need.
//
// Real tensors from outside may be used but not written; they are held, and must not change until what uses them is
// materialised. Threads that `fn` starts make real tensors, as any thread without a mode. The idea is torchdistx'.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <utility>

#include "core/fake/device_profile.h"
#include "core/fake/fake_tensor_mode.h"

namespace shadowgraph {

class DeferredRecord;

struct DeferredOptions {
  c10::Device device = c10::Device(c10::DeviceType::CPU);  // for factories that name none
  DeviceProfile profile;
};

// The scope behind deferred_init, for programs that are no single function. Inside another one it joins that.
class DeferredInit {
 public:
  explicit DeferredInit(const DeferredOptions& options = {});
  ~DeferredInit();  // as finish(), errors ignored
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

  // Ends it. Throws GeneratorMovedError (core/deferred/errors.h), and what an operator throws that had to run to know
  // where its generator ends.
  void finish();

 private:
  std::unique_ptr<FakeTensorMode> mode_;
  std::shared_ptr<void> link_;
  std::shared_ptr<DeferredRecord> record_;
};

// Calls fn(args...) in such a scope and gives what it returns, whatever that is.
template <class Function, class... Args>
decltype(auto) deferred_init(const DeferredOptions& options, Function&& fn, Args&&... args) {
  DeferredInit scope(options);
  if constexpr (std::is_void_v<std::invoke_result_t<Function, Args...>>) {
    std::invoke(std::forward<Function>(fn), std::forward<Args>(args)...);
    scope.finish();
  } else {
    decltype(auto) result = std::invoke(std::forward<Function>(fn), std::forward<Args>(args)...);
    scope.finish();
    if constexpr (std::is_reference_v<decltype(result)>) {
      return static_cast<decltype(result)>(result);
    } else {
      return result;
    }
  }
}

template <class Function, class... Args>
requires std::is_invocable_v<Function, Args...>
decltype(auto) deferred_init(Function&& fn, Args&&... args) {
  return deferred_init(DeferredOptions(), std::forward<Function>(fn), std::forward<Args>(args)...);
}

}  // namespace shadowgraph
