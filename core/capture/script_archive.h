// Checks what libtorch's reader of TorchScript files trusts: sizes of records and in pickles, indices in debug
// records, the depth of code. Internal to core/capture.
#pragma once

#include <string>

namespace shadowgraph {

// Throws Error, which names the record. Reads pickles and the code, no weights.
void check_script_archive(const std::string& path);

}  // namespace shadowgraph
