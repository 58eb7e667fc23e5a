// Addresses at which the storages of fake tensors pretend to be, for programs that know tensors by where they are.
//
//     pretended_address(tensor.storage())       // distinct for each storage, the same as long as it lives
//
// Python's data_ptr() of a fake is this address plus its offset; C++'s data_ptr() cannot be told of it, and is null plus
// the offset. What a graph recorded needs none of this: its values name their storages (StorageId), and nodes say what
// autograd keeps (Graph::saved).
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

// Returns an address that no memory has: on x86-64 it is not canonical, so that reading or writing there ends the
// process. Ranges of storages of less than a TiB do not overlap. 0 for an empty storage. Throws Error for one with
// memory.
uintptr_t pretended_address(const c10::Storage& storage);
// Whether the storage has one, because it was asked for or somebody watches the storage.
bool has_pretended_address(const c10::Storage& storage);

}  // namespace shadowgraph
