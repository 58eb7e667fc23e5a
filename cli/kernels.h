// `shadowgraph kernels`: the folder of kernels made on demand, looked at and tidied.
#pragma once

#include <cstdint>
#include <string>

namespace shadowgraph::cli {

struct KernelsRequest {
  std::string directory;  // empty: where the library looks
  int64_t max_bytes = 0;  // prune: what may stay
  bool dry_run = false;   // prune, clear: say what would go
  bool json = false;
};

// A line an operator: kernels, bytes, last use, how many are broken or of another compiler or processor than this one.
void list_kernels(const KernelsRequest& request);
// Compares every library's digest with its manifest. Whether all are whole.
bool verify_kernels(const KernelsRequest& request);
void prune_kernels(const KernelsRequest& request);
void clear_kernels(const KernelsRequest& request);

}  // namespace shadowgraph::cli
