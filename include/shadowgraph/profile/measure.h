// What single operator calls take on this very machine: scratch memory inside kernels, and seconds. Measured on
// request, by running each distinct call of a graph once on real tensors of its shapes; the model itself is never
// allocated.
//
//     MeasuredCalls calls = MeasuredCalls::read_file(MeasuredCalls::default_file());
//     measure_calls(graph, calls);
//     calls.write_file(MeasuredCalls::default_file());
//     profile(graph, {.measured = &calls}).peak_with_scratch;
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

// Describes a call as far as its kernel can tell. That is the operator, dtypes, sizes and strides of its tensors, which
// of them share memory, and its other arguments.
//     "aten::add_.Tensor(f32[2,3]{3,1}@0, f32[3]{1}@1, alpha=1)"
std::string call_signature(const Graph& graph, NodeId node);

struct MeasuredCall {
  int64_t scratch = 0;  // bytes: the most that was allocated at once, beyond what is left when the call returns
  double seconds = 0;   // the median of a few calls with warm caches
};

// By signature, for one machine: processor features that kernels ask for, version of libtorch, number of threads.
class MeasuredCalls {
 public:
  MeasuredCalls() : machine_(this_machine()) {}

  // Empty if there is no such file, or if it was measured on another machine. Throws ParseError for one that is
  // damaged.
  static MeasuredCalls read_file(const std::string& path);
  // Whole or not at all. Throws FileError.
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
  int64_t bytes = int64_t{8} << 30;  // a call whose tensors take more is left out
  double seconds = 120;              // no call begins after this
  int repeats = 3;                   // timed calls after the first; 0: scratch alone, every call once
  std::function<void(size_t done, size_t all)> progress = {};
};

struct UnmeasuredCall {
  std::string op;
  std::string reason;
  int64_t calls = 0;
};

struct MeasureReport {
  size_t measured = 0;  // distinct calls
  size_t known = 0;     // already there
  std::vector<UnmeasuredCall> left_out;
};

// Measures the calls that `into` lacks: operators on CPU tensors that are neither views nor collectives. Tensors hold
// one half, or zeros where they are integers, so kernels whose memory depends on data are seen at that data. Must not
// run inside a fake mode (throws Error), and what other threads allocate meanwhile is not counted. Draws leave the
// default generator as it was.
MeasureReport measure_calls(const Graph& graph, MeasuredCalls& into, const MeasureOptions& options = {});

}  // namespace shadowgraph
