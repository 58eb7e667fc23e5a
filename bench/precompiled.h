// The C++ frontend and Google Benchmark, for benchmarks.
#pragma once
#include <benchmark/benchmark.h>
#include <torch/torch.h>
