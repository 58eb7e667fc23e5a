// Measurements of operator calls on this machine: scratch memory of kernels, and times. Each distinct call of a graph
// is run on real tensors of its shapes; the model itself is never allocated.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

// Returns a description of everything that a kernel may depend on, including which tensors share memory.
//     "aten::add_.Tensor(f32[2,3]{3,1}@0, f32[3]{1}@1, alpha=1)"
std::string call_signature(const Graph& graph, NodeId node);

struct MeasuredCall {
  int64_t scratch = 0;  // bytes: peak allocation during the call beyond what remains after it
  double seconds = 0;   // median of a few calls with warm caches
};

// Measurements by signature, for one machine: CPU features used by kernels, version of libtorch, number of threads.
class MeasuredCalls {
 public:
  MeasuredCalls() : machine_(this_machine()) {}

  // Returns an empty set if the file does not exist or was measured on another machine. Throws ParseError.
  static MeasuredCalls read_file(const std::string& path);
  // Writes atomically. Throws FileError.
  void write_file(const std::string& path) const;
  // measured-calls.json in $XDG_CACHE_HOME/shadowgraph, or ~/.cache/shadowgraph.
  static std::string default_file();
  static std::string this_machine();  // "libtorch 2.13.0, AVX512, oneDNN bf16, 2 threads"

  const MeasuredCall* find(const std::string& signature) const {
    const auto found = calls_.find(signature);
    return found == calls_.end() ? nullptr : &found->second;
  }
  void set(std::string signature, MeasuredCall call) { calls_.insert_or_assign(std::move(signature), call); }
  size_t size() const { return calls_.size(); }
  const std::string& machine() const { return machine_; }

 private:
  std::string machine_;
  std::unordered_map<std::string, MeasuredCall> calls_;
};

struct MeasureOptions {
  int64_t bytes = int64_t{8} << 30;  // calls with larger tensors are skipped
  double seconds = 120;              // no call is started after this time
  int repeats = 3;                   // timed calls after the first; 0: measure scratch only, one call each
  std::function<void(size_t done, size_t all)> progress = {};
};

struct UnmeasuredCall {
  std::string op;
  std::string reason;
  int64_t calls = 0;
};

struct MeasureReport {
  size_t measured = 0;  // number of distinct calls
  size_t known = 0;     // already in the set
  std::vector<UnmeasuredCall> left_out;
};

// Measures the calls that `into` lacks: operators on CPU tensors, except views and collectives. Tensors are filled with
// 0.5, or 0 for integers, so data-dependent kernels are measured with that data. Throws Error under a FakeTensorMode.
// Allocations of other threads are not counted. The state of the default generator is restored.
MeasureReport measure_calls(const Graph& graph, MeasuredCalls& into, const MeasureOptions& options = {});

}  // namespace shadowgraph
