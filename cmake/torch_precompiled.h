// The C++ frontend, for models, tests and benchmarks.
#pragma once
#include <torch/torch.h>
