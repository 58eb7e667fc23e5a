#pragma once

#include "core/capture/exported/program.h"

namespace shadowgraph {

// Calls the nodes of an exported graph in order, on one value for each of its inputs. A value is dropped after its last
// use, as in TorchScript's interpreter, so storages have the same lifetimes. Operator errors are rethrown with `path`,
// node and operator prepended: DataDependentError and NoRuleError keep their type, all others become Error. Checkpointed
// graphs run again in backward, so `program` and `path` must outlive the results.
std::vector<c10::IValue> run_exported(const SavedProgram& program, const std::string& path,
                                      std::vector<c10::IValue> inputs);

}  // namespace shadowgraph
