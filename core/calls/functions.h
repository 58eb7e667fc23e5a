// Functions that save and restore the state of a generator, so that a graph can draw the same numbers twice.
//
//     %s = sg_random::get_state(device=cpu)                before dropout in forward
//     %t = sg_random::exchange_state(state=%s, device=cpu) before dropout is recomputed: sets %s, returns the old one
//          sg_random::set_state(state=%t, device=cpu)      after it: as if nothing had been drawn
//          sg_random::seed(seed=9, device=cpu)             torch.manual_seed(9) in the program
//
// They use the device's default generator, or with the overload `generator` one that the program created. A state is a
// byte tensor on the CPU (at::Generator::get_state), so it has a lifetime and a size like every other tensor.
// shadowgraph/graph/analysis.h treats the functions as random operators, so they are not reordered relative to draws,
// and those that set a state are never removed. find_function (shadowgraph/capture/replay.h) finds them.
#pragma once

#include <c10/core/Device.h>

#include "shadowgraph/graph/target.h"

namespace at {
struct Generator;
class Tensor;
}  // namespace at

namespace shadowgraph {

struct SHADOWGRAPH_API RegisteredFunction;

constexpr std::string_view kRandomStateNamespace = "sg_random";

// `own`: of a generator that the program created.
const Target& get_random_state(bool own = false);
const Target& exchange_random_state();
const Target& set_random_state(bool own = false);
const Target& seed_generator(bool own = false);

// Returns the size of a state of that device's generator in bytes; throws Error for devices other than CPU and CUDA.
int64_t random_state_bytes(c10::Device device);

// Return the generator's state, or replace it and return the previous one. Both lock the generator, and use real
// tensors even inside a fake mode.
at::Tensor state_of(at::Generator generator);
at::Tensor exchange_state(at::Generator generator, const at::Tensor& state);

// Returns nullptr unless the target is one of the above.
std::shared_ptr<const RegisteredFunction> random_state_function(const Target& target);

// Key of the note that names the program's generator a node draws from (core/calls/program_generators.h).
inline constexpr std::string_view kGeneratorNote = "generator";

// Key of the note of attention on packed sequences of known lengths, "a/b": the scores of all sequences, and what they
// were if each sequence were as long as the longest.
inline constexpr std::string_view kScoresNote = "scores";

// ---- Functionalized operators: operators that write arguments as functions that do not. Used for operators without a
// functional overload, and those whose functional overload is not bitwise equal.
//
//     aten::cudnn_batch_norm(Tensor input, ..., Tensor? running_mean, Tensor? running_var, ...) -> (Tensor, ...)
//     sg_functional::aten__cudnn_batch_norm(<the same>) -> (Tensor, ..., Tensor running_mean, Tensor running_var)
//
// The results are those of the operator that do not alias a written argument, followed by the final state of every
// written argument.
//
// A call copies the whole storages of the written arguments, including strides, offsets and gaps, moves all operands on
// them onto the copies, and runs the operator there. So the kernel behaves as it would in place, also for overlapping
// operands and errors. A returned tensor includes its whole storage, so other views of it can be taken. PyTorch's
// auto_functionalized copies tensors instead. find_function (shadowgraph/capture/replay.h) creates them by their names.

constexpr std::string_view kFunctionalCallNamespace = "sg_functional";

// Returns nullopt if nothing is written, `op` is not an operator, or a result views an argument that is not written.
std::optional<Target> functional_call_of(const Target& op);

// Returns the operator of a functionalized target; nullopt for other targets, or if this process does not have the
// operator.
std::optional<Target> operator_of_functional_call(const Target& target);

// Returns nullptr if `target` is not functionalized, or this process does not have its operator.
std::shared_ptr<const RegisteredFunction> functional_call_function(const Target& target);

}  // namespace shadowgraph
