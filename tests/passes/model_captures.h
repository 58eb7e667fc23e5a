// Captures tiny built-in models for tests of passes: a training step with AdamW, or forward alone.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

struct ModelCapture {
  bool train = true;
  int64_t batch = 2;
  int64_t seq = 0;
  int64_t image_size = 0;
  c10::DeviceType device = c10::kCPU;
};

Graph capture_tiny(const std::string& name, const ModelCapture& how);

}  // namespace shadowgraph
