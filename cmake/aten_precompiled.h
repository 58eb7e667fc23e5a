// What sources of the library include that need a header of libtorch which brings all of ATen along: modules, optimizers,
// process groups, autocast.
#pragma once
#include <torch/nn/module.h>

#include "cmake/libtorch_precompiled.h"
