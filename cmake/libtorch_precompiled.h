// What sources of the library that speak libtorch include; keep <torch/torch.h> out of it.
#pragma once
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "cmake/precompiled.h"
