// Deferred initialisation: programs that make tensors are described, and the tensors made later, in whatever order.
//
// For models that do not fit where they are built, and for ranks that each make their part. Describing costs what a
// capture costs. A tensor costs the nodes that it needs, and at most one tensor is held above what is kept.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// Describes a program that makes tensors, without making them: they are materialised later, in whatever order and
// number.
//
//     auto net = shadowgraph::deferred_init([] { return std::make_shared<Net>(70'000'000'000); });   // nothing allocated
//     shadowgraph::materialize_module(*net->layer3);   // shadowgraph/deferred/deferred.h: bitwise what eager would have made
//
// Every tensor made inside is a fake one and every operator is recorded, in one graph that the tensors own. What is
// done to them later, outside of any mode, is recorded too. Under a FakeTensorMode or a CaptureSession a described
// tensor is a fake like any other. What is done there asks "what if", and is no part of the recipe.
//
// Random numbers: nothing is drawn, but when deferred_init returns, generators are where eager would have left them,
// and materialising does not move them. So what is drawn afterwards is as in eager, whatever is materialised and when.
// Seeding, saving and restoring generators inside works; a saved state means nothing outside.
//
// Values that the program reads (item(), a mask as an index, nonzero()) are computed at once, on just what they need.
//
// Real tensors from outside may be used but not written; they are held, and must not change until what uses them is
// materialised. Threads that `fn` starts make real tensors, as any thread without a mode. The idea is torchdistx'.

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

  // Ends it. Throws DeferredError (shadowgraph/error.h), and what an operator throws that had to run to know
  // where its generator ends.
  void finish();

 private:
  std::unique_ptr<FakeTensorMode> mode_;
  std::shared_ptr<void> link_;
  std::shared_ptr<DeferredRecord> record_;
};

// Whether a program is being described on this thread.
bool is_describing();

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

namespace torch::nn {
class Module;
}

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// Turns described tensors (deferred_init) into real ones, in place.
//
//     materialize_tensor(net->weight);                            // one
//     materialize_module(*net, {.buffers_only = true});           // those of a module
//     at::Tensor rows = materialize_shard(weight, 0, 4096, 1024); // a part, without ever having the whole
//
// The tensor object itself becomes real: whoever holds it (the module, an optimizer, a tied module, autograd) sees it.
// Views that share its storage share the real one once they are materialised too. Any order, partly or wholly, gives
// bitwise what eager construction would have given under the same seed. Storages are computed one after the other, each
// with just the operators it needs. So memory peaks at one tensor above what is kept (unless tensors were computed from
// one another). Operators whose results are overwritten unread do not run.
//
// Computed on the CPU, then moved; a description for a CUDA device thus gets the numbers of the CPU's generators.
//
// Errors: shadowgraph/error.h. Those before the failing tensor are real by then, the others as they were; the call may
// be repeated. Thread-safe, also for tensors of one record.

class Graph;

struct MaterializeOptions {
  std::optional<c10::Device> device;    // in place of the one it was described for
  std::optional<at::ScalarType> dtype;  // of floating-point tensors: what eager and then .to(dtype) gives
  // Gives every draw of the description a stream of random numbers of its own, seeded with this. It is the same in
  // every process that describes the same program, and for parts. It is not what eager gives.
  std::optional<uint64_t> independent_streams;
  bool keep_recipe = true;  // for dematerialize; otherwise the description goes with its last fake tensor
};

struct MaterializeModuleOptions : MaterializeOptions {
  bool buffers_only = false;
  // Whether a module's own parameters and buffers are materialised; submodules are visited in any case.
  std::function<bool(const torch::nn::Module& module)> check_fn;
};

// Gives back `tensor`. A real tensor stays as it is; a fake one that is not described throws DeferredError.
const at::Tensor& materialize_tensor(const at::Tensor& tensor, const MaterializeOptions& options = {});
// As one call each, but what they need in common is computed once.
void materialize_tensors(const std::vector<at::Tensor>& tensors, const MaterializeOptions& options = {});
// Parameters and buffers, of submodules too. Tensors that a module holds otherwise stay as they are unless they are the
// same objects.
void materialize_module(const torch::nn::Module& module, const MaterializeModuleOptions& options = {});

// Returns a new real tensor with tensor.narrow(dim, start, length), contiguous; `tensor` stays described. If its recipe
// has only factories, random fills and elementwise operators on whole tensors, just that part and a small buffer are
// allocated. Otherwise the whole is, for the time being; with `never_whole` that throws DeferredError.
at::Tensor materialize_shard(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t length,
                             const MaterializeOptions& options = {}, bool never_whole = false);

// Returns what a described tensor holds now, as a real CPU tensor of its own, computed from its recipe; it stays
// described. Nothing for a tensor that is not described, and inside another mode or a capture, where it is a fake like
// any other. Throws DeferredError and what materialising throws.
std::optional<at::Tensor> described_value(const at::Tensor& tensor);
// Throws what an operator on `tensor` would throw while a program is described on this thread (DeferredError,
// UnsupportedError, ...); `what` begins the message.
void check_recordable(const at::Tensor& tensor, const std::string& what);

// O(1), and O(parameters and buffers).
bool is_deferred(const at::Tensor& tensor);
bool is_deferred(const torch::nn::Module& module);

// Drops the data and keeps the recipe: the tensor is described again, as it was when it was materialised. What has been
// written since is lost. The memory is free once no real tensor shares it. Throws DeferredError for a tensor that
// has no recipe. For a module it drops those parameters and buffers that have one.
void dematerialize(const at::Tensor& tensor);
void dematerialize(const torch::nn::Module& module);

// The graph that describes it, as recorded so far: to print, or to look at. Throws DeferredError.
const Graph& deferred_graph(const at::Tensor& tensor);

// ---------------------------------------------------------------------------------------------------------------------
// A state dict in a file that Python's torch.load reads, weights_only=True included, written tensor by tensor.
//
//     write_weights("w.pt", named_tensors, {});   // described tensors are materialised one at a time and dropped again
//
// The format is torch.save's: a zip archive with data.pkl (an OrderedDict of names to tensors, pickle protocol 2) and
// one record for every storage. Tensors that share a storage share it in the file, so ties survive.

struct WrittenWeights {
  size_t tensors = 0;
  size_t storages = 0;
  uint64_t bytes = 0;  // of the storages
};

// Real tensors are written as they are. Nothing is left half-written; throws FileError, and what materialising throws.
WrittenWeights write_weights(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                             const MaterializeOptions& options = {});

}  // namespace shadowgraph
