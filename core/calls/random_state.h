// Declares functions that take the state of a random generator out and put it back, so that a graph can draw the same
// numbers twice.
//
//     %s = sg_random::get_state(device=cpu)                before dropout in forward
//     %t = sg_random::exchange_state(state=%s, device=cpu) before dropout runs again: as it was; gives what it is now
//          sg_random::set_state(state=%t, device=cpu)      after it: as if nothing had been drawn
//
// The generator is the default one of the device. A state is a tensor of bytes on the CPU (at::Generator::get_state),
// so that it has a lifetime and a size like every other tensor. It has 5056 bytes for the CPU's generator, 16 for a
// CUDA one. To shadowgraph/analysis/effects.h the functions are random operators. So they keep their place among those that
// draw, and the two that set are never dropped.
//
// The functions need no registration: find_function (shadowgraph/replay.h) knows them.
#pragma once

#include <c10/core/Device.h>

#include <memory>
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

}  // namespace shadowgraph
