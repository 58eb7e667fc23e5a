// Declares functions that take the state of a random generator out and put it back, so that a graph can draw the same
// numbers twice.
//
//     %s = sg_random::get_state(device=cpu)                before dropout in forward
//     %t = sg_random::exchange_state(state=%s, device=cpu) before dropout runs again: as it was; gives what it is now
//          sg_random::set_state(state=%t, device=cpu)      after it: as if nothing had been drawn
//
// The generator is the default one of the device. A state is a tensor of bytes on the CPU (at::Generator::get_state),
// so that it has a lifetime and a size like every other tensor. It has 5056 bytes for the CPU's generator, 16 for a
// CUDA one. To shadowgraph/graph/analysis.h the functions are random operators. So they keep their place among those that
// draw, and the two that set are never dropped.
//
// The functions need no registration: find_function (shadowgraph/capture/replay.h) knows them.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string_view>

#include "shadowgraph/graph/target.h"

namespace at {
class Tensor;
}

namespace shadowgraph {

struct SHADOWGRAPH_API RegisteredFunction;

constexpr std::string_view kRandomStateNamespace = "sg_random";

const Target& get_random_state();
const Target& exchange_random_state();
const Target& set_random_state();

// Returns the bytes of a state of that device's generator; throws Error for a device other than CPU and CUDA.
int64_t random_state_bytes(c10::Device device);

// These return the default generator's state and put another one in its place; both lock it.
at::Tensor random_state(c10::Device device);
at::Tensor exchange_random_state(c10::Device device, const at::Tensor& state);

// Returns nullptr unless the target is one of the above.
std::shared_ptr<const RegisteredFunction> random_state_function(const Target& target);

// The key of the note at a node that draws from a generator of the program's own: it says which one
// (core/calls/own_generators.h).

inline constexpr std::string_view kGeneratorNote = "generator";

// Turns an operator that writes its arguments into a function that does not. It serves operators without a functional
// overload, and those whose functional overload does not give bitwise what they leave.
//
//     aten::cudnn_batch_norm(Tensor input, ..., Tensor? running_mean, Tensor? running_var, ...) -> (Tensor, ...)
//     sg_functional::aten__cudnn_batch_norm(<the same>) -> (Tensor, ..., Tensor running_mean, Tensor running_var)
//
// Results are those of the operator that do not alias a written argument, then every written argument as the operator
// leaves it.
//
// A call copies the whole storages of the written arguments, strides, offsets and gaps included. It puts every operand
// that shares one of them onto the copy, and runs the operator there. So the kernel sees what it would have seen,
// overlapping operands too, and what it refuses in place it refuses here. A returned tensor brings the whole storage
// with it: views that look at it elsewhere can be taken from it.
//
// PyTorch's auto_functionalized is the same idea for single operators; it copies tensors, not storages.
//
// The function needs no registration: find_function (shadowgraph/capture/replay.h) makes it from its name.

struct SHADOWGRAPH_API RegisteredFunction;

constexpr std::string_view kFunctionalCallNamespace = "sg_functional";

// Returns nullopt if nothing is written, if `op` is no operator, or if a result views an argument that is not written.
std::optional<Target> functional_call_of(const Target& op);

// Returns the operator that such a target stands for; nullopt if it is no such target, or this process does not have
// the operator.
std::optional<Target> operator_of_functional_call(const Target& target);

// Returns nullptr if `target` is no functional call, or stands for an operator that this process does not have.
std::shared_ptr<const RegisteredFunction> functional_call_function(const Target& target);

}  // namespace shadowgraph
