// `shadowgraph list kernels`: the folder of kernels made on demand, looked at and tidied.
#pragma once

#include <cstdint>
#include <string>

namespace shadowgraph::cli {

struct KernelsRequest {
  std::string directory;  // empty: where the library looks
  bool dry_run = false;   // prune, clear: say what would go
  bool json = false;
};

// A line an operator: kernels, bytes, last use, how many are broken or of another compiler or processor than this one.
void list_kernels(const KernelsRequest& request);
// Compares every library's digest with its manifest. Whether all are whole.
bool verify_kernels(const KernelsRequest& request);
// `most`: bytes that may stay.
void prune_kernels(const KernelsRequest& request, int64_t most);
void clear_kernels(const KernelsRequest& request);

}  // namespace shadowgraph::cli
