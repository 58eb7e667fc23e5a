// Deferred initialization: records how tensors are created, and materializes them later in any order. For models that
// do not fit in the constructing machine's memory, and for ranks that create shards. Costs as much as a capture.
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

namespace torch::nn {
class Module;
}

namespace SHADOWGRAPH_API shadowgraph {

class Graph;

// Runs a program that creates tensors without allocating them.
//
//     // Nothing is allocated:
//     auto net = shadowgraph::deferred_init([] { return std::make_shared<Net>(70'000'000'000); });
//     shadowgraph::materialize_module(*net->layer3);   // bitwise equal to eager construction
//
// Tensors created inside are deferred tensors: fake tensors whose operators are recorded in a graph that they own.
// Operations on them later, outside of any mode, are recorded as well. Under a FakeTensorMode or a Capture,
// deferred tensors act as ordinary fakes, and operations there do not affect the recording.
//
// Random numbers are not drawn while recording, but after deferred_init the generators have the state they would have
// in eager mode, and materializing does not advance them. Later ones therefore match eager mode, regardless of what is
// materialized and when. Generators can be seeded, saved and restored inside; a saved state is not usable outside.
//
// Values that the program reads (item(), a mask as an index, nonzero()) are computed at once, from the nodes they need.
//
// Real tensors from outside may be read but not written. They are held, and must not change until the tensors that
// depend on them are materialized. Threads started by `fn` create real tensors.

class DeferredRecord;

struct DeferredOptions {
  c10::Device device = c10::Device(c10::DeviceType::CPU);  // default device of factories
  DeviceProfile profile;
};

// The scope of deferred_init, for programs that are not a single function. A nested scope joins the outer one.
class DeferredInit {
 public:
  explicit DeferredInit(const DeferredOptions& options = {});
  ~DeferredInit();  // calls finish(), ignoring errors
  C10_DISABLE_COPY_AND_ASSIGN(DeferredInit);

  // Ends the scope. Throws DeferredError (shadowgraph/error.h), and errors of operators run for a generator's state.
  void finish();

 private:
  std::unique_ptr<FakeTensorMode> mode_;
  std::shared_ptr<void> link_;
  std::shared_ptr<DeferredRecord> record_;
};

// Returns whether deferred initialization is active on this thread.
bool is_deferring();

// Calls fn(args...) in a DeferredInit scope and returns its result.
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

// Materializes deferred tensors (deferred_init) in place.
//
//     materialize_tensor(net->weight);                            // one
//     materialize_module(*net, {.buffers_only = true});           // the buffers of a module
//     at::Tensor rows = materialize_shard(weight, 0, 4096, 1024); // a shard, without allocating the whole tensor
//
// The tensor object itself becomes real for all its holders (module, optimizer, tied modules, autograd). Views that
// share its storage share the real one once they are materialized, too. In any order, and for any subset of tensors,
// results are bitwise equal to eager construction with the same seed. Storages are computed one after another, each
// with the operators it needs, so peak memory is one tensor above the tensors kept (unless tensors were computed from
// one another). Operators whose results are overwritten without being read do not run.
//
// Tensors are computed on the CPU and then moved; a tensor deferred for a CUDA device has the CPU's random numbers.
//
// Errors: shadowgraph/error.h. Tensors before the failing one are real, the others are unchanged; the call may be
// repeated. Thread-safe, also for tensors of one recording.

struct MaterializeOptions {
  std::optional<c10::Device> device;    // replaces the recorded device
  std::optional<at::ScalarType> dtype;  // of floating-point tensors: equal to eager followed by .to(dtype)
  // Uses a separate random stream, derived from this seed, for every random operator of the recording. Reproducible in
  // all processes that record the same program, and for shards, but different from eager.
  std::optional<uint64_t> independent_streams;
  bool keep_recipe = true;  // allows dematerialize; otherwise the recording is freed with its last fake tensor
};

struct MaterializeModuleOptions : MaterializeOptions {
  bool buffers_only = false;
  // Returns whether to materialize a module's own parameters and buffers; submodules are visited in any case.
  std::function<bool(const torch::nn::Module& module)> check_fn;
};

// Returns `tensor`. Real tensors are unchanged; throws DeferredError for a fake tensor that is not deferred.
const at::Tensor& materialize_tensor(const at::Tensor& tensor, const MaterializeOptions& options = {});
// Materializes several tensors, computing common dependences once.
void materialize_tensors(const std::vector<at::Tensor>& tensors, const MaterializeOptions& options = {});
// Materializes parameters and buffers, including those of submodules, but no other tensors held by a module.
void materialize_module(const torch::nn::Module& module, const MaterializeModuleOptions& options = {});

// Returns tensor.narrow(dim, start, length) as a new, contiguous real tensor; `tensor` remains deferred. If it is
// created by factories, random fills and elementwise operators on whole tensors only, just the shard and a small buffer
// are allocated. Otherwise the whole tensor is allocated temporarily, or DeferredError is thrown with `never_whole`.
at::Tensor materialize_shard(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t length,
                             const MaterializeOptions& options = {}, bool never_whole = false);

// Returns the current value of a deferred tensor as a new real CPU tensor; it remains deferred. std::nullopt for other
// tensors, and within another mode or a capture. Throws DeferredError, and errors of operators.
std::optional<at::Tensor> deferred_value(const at::Tensor& tensor);
// Throws the error that an operator on `tensor` would throw in deferred initialization; `what` starts the message.
void check_recordable(const at::Tensor& tensor, const std::string& what);

// Returns whether the tensor, or any parameter or buffer of the module, is deferred. O(1) for a tensor.
bool is_deferred(const at::Tensor& tensor);
bool is_deferred(const torch::nn::Module& module);

// Frees the data and makes the tensor deferred again, in the state in which it was materialized; later writes are lost.
// The memory is freed once no real tensor shares it. Throws DeferredError if the tensor has no recording. For a module,
// applies to the parameters and buffers that have one.
void dematerialize(const at::Tensor& tensor);
void dematerialize(const torch::nn::Module& module);

// Returns the recorded graph of a deferred tensor, for printing and inspection. Throws DeferredError.
const Graph& deferred_graph(const at::Tensor& tensor);

// Writes a state dict that Python's torch.load can read (also with weights_only=True), tensor by tensor.
//
//     write_weights("w.pt", named_tensors, {});   // deferred tensors are materialized and freed one at a time
//
// The format is that of torch.save: a zip archive with data.pkl (an OrderedDict of names to tensors, pickle protocol 2)
// and one record per storage. Tensors that share a storage share it in the file, so tied weights remain tied.

struct WrittenWeights {
  size_t tensors = 0;
  size_t storages = 0;
  uint64_t bytes = 0;  // of all storages
};

// Real tensors are written as they are. Writes atomically. Throws FileError, and errors of materializing.
WrittenWeights write_weights(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                             const MaterializeOptions& options = {});

}  // namespace shadowgraph
