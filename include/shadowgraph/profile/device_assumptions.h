// What is on a device and in no graph: constants of the device and of its libraries.
//
//     DeviceAssumptions assumptions = DeviceAssumptions::of(DeviceSpec::named("a100"));
//     assumptions.workspace();                                      // 8,519,680
//     assumptions.cublas_workspace = cublas_workspace(":4096:8");   // as CUBLAS_WORKSPACE_CONFIG has it
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/profile/allocator_settings.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceSpec;

// Every figure can be set.
struct DeviceAssumptions {
  // The CUDA context with PyTorch's kernels loaded lazily: not the allocator's, but nvidia-smi's. This is Hopper's.
  // Measured with CUDA 13.0: 527 MiB before a kernel, 693 of inference, 751 to 771 of training, 640 of convolutions. Other
  // architectures are taken to have 520: CUDA 12 took 480 to 560 on an H100, other drivers 300 to 800.
  int64_t context = 768 * kMebibyte;
  // NCCL's buffers for one process group, made when it is first used and kept; they are not the allocator's. NCCL has 4
  // MiB, 512 KiB and 4,915,200 bytes for its three protocols (NCCL src/init.cc, src/include/device.h). This is for two
  // neighbours on 16 channels; NCCL takes up to 32 channels, and fewer on slow links.
  int64_t nccl_group = 16 * 2 * (4 * kMebibyte + kMebibyte / 2 + 4'915'200);
  // Bytes of cuBLAS's workspace. The caching allocator gives it at a handle's first matrix product on a stream, and it
  // is kept. Without a figure it is what PyTorch takes on the architecture.
  std::optional<int64_t> cublas_workspace;
  // The device's, as DeviceSpec has it: "sm_90", "gfx942". Empty: unknown, and taken for Hopper's.
  std::string architecture;

  static DeviceAssumptions of(const DeviceSpec& spec);
  // Returns the bytes of one workspace, as aten/src/ATen/cuda/CublasHandlePool.cpp has them. Hopper and Blackwell (sm_9x,
  // sm_10x, sm_12x) take 32 MiB, other GPUs of NVIDIA 8,519,680. AMD's gfx94x and gfx95x take 128 MiB, others 32.
  int64_t workspace() const;
  // Says why it is as large, for people.
  std::string why_workspace() const;
};

// Returns the bytes that PyTorch takes where CUBLAS_WORKSPACE_CONFIG is this: ":KIBIBYTES:COUNT", once or more. Throws
// Error.
int64_t cublas_workspace(std::string_view config);

}  // namespace shadowgraph
