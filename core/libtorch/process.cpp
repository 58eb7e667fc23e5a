#include "core/libtorch/process.h"

#include <fmt/format.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/version.h>

#include "shadowgraph/error.h"

namespace shadowgraph {

// Formats an ABI version as "2.13.0": one byte per number, most significant first.
static std::string libtorch_version_text(uint64_t abi_version) {
  return fmt::format("{}.{}.{}", abi_version >> 56, abi_version >> 48 & 255, abi_version >> 40 & 255);
}

void check_libtorch_version() {
  constexpr uint64_t compiled = TORCH_ABI_VERSION;
  const uint64_t loaded = aoti_torch_abi_version();
  if (loaded == compiled) return;
  throw Error(
      fmt::format("this shadowgraph was compiled for libtorch {}, but the process has loaded {}, which is not ABI "
                  "compatible; load libtorch {}, or build shadowgraph with TORCH_DIR set to the one that is loaded",
                  libtorch_version_text(compiled), libtorch_version_text(loaded), libtorch_version_text(compiled)),
      NodeId(), Error::Fault::kOurs);
}

void require_of_libtorch(bool holds, const char* piece, const char* what_it_should_do) {
  if (holds) return;
  throw Error(
      fmt::format("libtorch {} is not compatible with this version of shadowgraph ({}: {}); to support it, adapt "
                  "core/libtorch (see CONTRIBUTING.md, a new PyTorch)",
                  libtorch_version_text(aoti_torch_abi_version()), piece, what_it_should_do),
      NodeId(), Error::Fault::kOurs);
}

}  // namespace shadowgraph
