// Precompiled header of benchmarks: the C++ frontend and Google Benchmark.
#pragma once
#include <benchmark/benchmark.h>
#include <torch/torch.h>
