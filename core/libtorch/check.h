// Whether the libtorch of this process is the one that the library was compiled for, and behaves as its private pieces are
// taken to. Asked once, when what changes the process is installed (core/process/process_state.h).
#pragma once

#include <cstdint>
#include <string>

namespace shadowgraph {

// "2.13.0" of what TORCH_ABI_VERSION and aoti_torch_abi_version() say: a byte for each number, the first the highest.
std::string libtorch_version_text(uint64_t abi_version);

// Throws EnvironmentError unless `loaded` is the version of the headers: classes of libtorch have other layouts and
// virtual functions in each.
void check_libtorch_version(uint64_t loaded);
void check_libtorch_version();

// Throws EnvironmentError that names `piece` of libtorch unless it did what is relied on.
void require_of_libtorch(bool holds, const char* piece, const char* what_it_should_do);

}  // namespace shadowgraph
