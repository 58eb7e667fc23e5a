// Precompiled header of library sources that use libtorch; must not include <torch/torch.h>.
#pragma once
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "cmake/precompiled.h"
