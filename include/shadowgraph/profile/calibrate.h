// This machine's rates, from a few kernels of each class at several sizes, in under a minute, with libtorch's threads, on
// an idle machine. Must not run in a fake mode (throws Error).
#pragma once

#include <functional>
#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/profile/device_spec.h"

namespace SHADOWGRAPH_API shadowgraph {

struct CalibrateOptions {
  double seconds = 50;  // no kernel begins after this
  std::function<void(const std::string& kernel)> progress = {};
};
DeviceSpec calibrate(const CalibrateOptions& options = {});

}  // namespace shadowgraph
