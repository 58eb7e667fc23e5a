// Headers of tests that build modules and optimizers.
#pragma once
#include <torch/torch.h>

#include "tests/precompiled_aten.h"
