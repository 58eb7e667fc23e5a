// Functions of fake tensors for language bindings.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

class FakeTensorMode;

// Returns the id of the mode that created a fake tensor, also after the mode has ended. Ids are not reused; 0 for a
// real tensor, and for a fake tensor created without a mode.
uint32_t fake_mode_id(const at::Tensor& tensor);
// Returns the id of this thread's innermost mode; 0 without one.
uint32_t fake_mode_id();

// A mode's id and the fakes of real tensors in it, for entering it again.
struct ModeIdentity;
// Takes them from a mode that is about to end, and gives them to a new mode of the same options.
std::shared_ptr<ModeIdentity> take_identity(FakeTensorMode& mode);
void give_identity(FakeTensorMode& mode, ModeIdentity& identity);

// Sets the device of factory calls that name none in this thread's innermost mode, and returns the one before. In eager
// mode it is the CPU for C++ code of libtorch, such as DDP's reducer. Without a mode it does nothing and returns the CPU.
c10::Device exchange_default_device(c10::Device device);

// Must be called before the program seeds, saves or restores a generator that it created: a capture, or a deferred
// initialization, otherwise watches it only from its first draw on.
void watch_generator(const at::Generator& generator);

// Lets collectives assume that every rank sends the contents of this rank, if they are known: their results are then
// known, too. Applies to the storage of `fake`. For what ranks of a data-parallel program have in common, such as the
// parameters that a step uses. Without it, received contents are unknown and a read throws DataDependentError.
void assume_equal_on_all_ranks(const at::Tensor& fake);

}  // namespace shadowgraph
