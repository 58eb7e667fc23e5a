// Converts c10d objects to their names in a graph, and back: process groups by name, reductions as "sum", "avg", ...
// Internal to core/.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/capture/process_group.h"

namespace c10d {
class Work;
}

namespace shadowgraph {

// Returns the name of a ProcessGroup or ReduceOp; nullopt for other objects, and for reductions with parameters
// (premul_sum).
std::optional<std::string> name_of_object(const c10::IValue& object);

// Returns whether arguments of that type are recorded by name.
bool is_named_object(const c10::Type& type);
// Returns the object of that name in this process; otherwise None, and sets `problem` to the reason.
c10::IValue object_named(const c10::Type& type, const std::string& name, std::string& problem);

// Returns the group of an argument, a ProcessGroup or its name; nullptr if there is no group of that name.
c10::intrusive_ptr<c10d::ProcessGroup> group_of_argument(const c10::IValue& argument);

// Returns the description of an argument's group; nullopt if there is no group of that name.
std::optional<ProcessGroupInfo> describe_group(const c10::IValue& argument);

// Returns a completed Work. If the call was asynchronous and a capture is active, wait() records
// _c10d_functional::wait_tensor on `tensors`. `sent` tensors are kept alive as a backend would.
c10::intrusive_ptr<c10d::Work> completed_work(std::vector<at::Tensor> tensors, bool asynchronous,
                                              std::vector<at::Tensor> sent = {});

// Waits for a c10d::Work among the results of a call on real tensors.
void wait_for_work(std::span<const c10::IValue> results);

// Returns the target, with its schema, of the node that describes a group (shadowgraph/capture/process_group.h).
const Target& process_group_target();
std::vector<c10::IValue> process_group_arguments(const ProcessGroupInfo& info);
// Throws Error if this process has no such group. `arguments` are those of the node.
void check_process_group(std::span<const c10::IValue> arguments);

}  // namespace shadowgraph
