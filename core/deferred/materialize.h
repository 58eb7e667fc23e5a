// From described tensors (core/deferred/deferred_init.h) to real ones, in place.
//
//     materialize_tensor(net->weight);                            // one
//     materialize_module(*net, {.buffers_only = true});           // those of a module
//     at::Tensor rows = materialize_shard(weight, 0, 4096, 1024); // a part, without ever having the whole
//
// The tensor object itself becomes real: whoever holds it (the module, an optimizer, a tied module, autograd) sees it, and
// views that share its storage share the real one once they are materialised too. Any order, partly or wholly, gives
// bitwise what eager construction would have given under the same seed. Storages are computed one after the other, each
// with just the operators it needs, so that memory peaks at one tensor above what is kept (unless tensors were computed
// from one another). Operators whose results are overwritten unread do not run.
//
// Computed on the CPU, then moved; a description for a CUDA device thus gets the numbers of the CPU's generators.
//
// Errors: core/deferred/errors.h. Those before the failing tensor are real by then, the others as they were; the call may
// be repeated. Thread-safe, also for tensors of one record.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace shadowgraph {

class Graph;

struct MaterializeOptions {
  std::optional<c10::Device> device;    // in place of the one it was described for
  std::optional<at::ScalarType> dtype;  // of floating-point tensors: what eager and then .to(dtype) gives
  // Random numbers from a stream of its own for every draw of the description, seeded with this: the same in every process
  // that describes the same program, and for parts. Not what eager gives.
  std::optional<uint64_t> independent_streams;
  bool keep_recipe = true;  // for dematerialize; otherwise the description goes with its last fake tensor
};

struct MaterializeModuleOptions : MaterializeOptions {
  bool buffers_only = false;
  // Whether a module's own parameters and buffers are materialised; submodules are visited in any case.
  std::function<bool(const torch::nn::Module& module)> check_fn;
};

// Gives back `tensor`. A real tensor stays as it is; a fake one that is not described throws NotDeferredError.
const at::Tensor& materialize_tensor(const at::Tensor& tensor, const MaterializeOptions& options = {});
// As one call each, but what they need in common is computed once.
void materialize_tensors(const std::vector<at::Tensor>& tensors, const MaterializeOptions& options = {});
// Parameters and buffers, of submodules too. Tensors that a module holds otherwise stay as they are unless they are the
// same objects.
void materialize_module(const torch::nn::Module& module, const MaterializeModuleOptions& options = {});

// A new real tensor with tensor.narrow(dim, start, length), contiguous; `tensor` stays described. If its recipe is made of
// factories, random fills and elementwise operators on whole tensors, no more than that part and a small buffer is
// allocated. Otherwise the whole is, for the time being; with `never_whole` that throws DeferredError.
at::Tensor materialize_shard(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t length,
                             const MaterializeOptions& options = {}, bool never_whole = false);

// O(1), and O(parameters and buffers).
bool is_deferred(const at::Tensor& tensor);
bool is_deferred(const torch::nn::Module& module);

// Drops the data and keeps the recipe: the tensor is described again, as it was when it was materialised; what has been
// written since is lost. The memory is free once no real tensor shares it. Throws NotDeferredError for a tensor that has
// no recipe. Of a module: those parameters and buffers that have one.
void dematerialize(const at::Tensor& tensor);
void dematerialize(const torch::nn::Module& module);

// The graph that describes it, as recorded so far: to print, or to look at. Throws NotDeferredError.
const Graph& deferred_graph(const at::Tensor& tensor);

}  // namespace shadowgraph
