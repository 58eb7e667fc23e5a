// Remembers which operators have an unboxed kernel (core/dispatch/unboxed_call.h), and where each is registered.
#pragma once

#include <source_location>
#include <string>

namespace shadowgraph {

// Called once for each operator, when the process state is installed. Thread-safe.
void note_fast_path(const std::string& operator_name, std::source_location place);

// Returns where the unboxed kernel of "aten::add.Tensor" is registered. The line is 0 if there is none, or if the
// process state is not installed yet (core/process/process_state.h). Thread-safe.
std::source_location fast_path_place(const std::string& operator_name);

}  // namespace shadowgraph
