// Puts c10d's objects into the words of a graph, and back: a process group is its name, a reduction "sum", "avg", ...
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

// Returns the name of a ProcessGroup or ReduceOp. Returns nothing for other objects, and for reductions that are more
// than a name (premul_sum).
std::optional<std::string> name_of_object(const c10::IValue& object);

// Says whether an argument of that type is one of those, for which the graph has a name.
bool is_named_object(const c10::Type& type);
// Returns the object that has the name in this process, or says in `problem` why there is none.
c10::IValue object_named(const c10::Type& type, const std::string& name, std::string& problem);

// Returns the group that an argument means: a ProcessGroup, or its name. nullptr if there is none of that name.
c10::intrusive_ptr<c10d::ProcessGroup> group_of_argument(const c10::IValue& argument);

// Returns what is known of the group that an argument means; nothing if there is none of that name.
std::optional<ProcessGroupInfo> describe_group(const c10::IValue& argument);

// Returns a collective that is done. If the call was asynchronous and a capture goes on, wait() records that the
// program now waits for `tensors`: _c10d_functional::wait_tensor. Tensors that were sent are kept as backends keep them.
c10::intrusive_ptr<c10d::Work> completed_work(std::vector<at::Tensor> tensors, bool asynchronous,
                                              std::vector<at::Tensor> sent = {});

// Waits for a c10d::Work among the results of a call on real tensors.
void wait_for_work(std::span<const c10::IValue> results);

// Returns the target of the node that says what a group is (shadowgraph/capture/process_group.h), with its schema.
const Target& process_group_target();
std::vector<c10::IValue> process_group_arguments(const ProcessGroupInfo& info);
// Throws Error if this process has no such group. Its arguments are those of the node.
void check_process_group(std::span<const c10::IValue> arguments);

}  // namespace shadowgraph
