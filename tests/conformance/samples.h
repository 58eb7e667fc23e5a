// Reads the samples written by export_samples.py: calls of aten operators with all their arguments.
//
//     const Samples samples(path);
//     Arguments arguments = samples.arguments(i, Contents::kCopied);   // real tensors, ready to be called with
//
// The format is described in export_samples.py. Throws shadowgraph::Error if the file has another format.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

namespace shadowgraph::conformance {

// Dispatch level at which the call was recorded.
enum class Level : uint8_t { kBelowAutograd, kAboveAutograd, kMadeUp };

struct Sample {
  std::string op;      // "aten::add.Tensor"
  std::string origin;  // OpInfo's name
  std::string dtype;   // dtype requested from OpInfo: "float32", ...; "errors" for samples that must raise
  Level level;
};

enum class Contents : uint8_t {
  kCopied,  // may be written
  kShared,  // for readers of metadata only
};

// A call without its tensors, which are inserted, converted or not, when the stack is created.
struct Arguments {
  std::vector<at::Tensor> tensors;  // distinct leaf tensors
  std::vector<bool> not_leaf;       // copied before the call, so that they are not leaves
};

// Changes one argument of a call so that eager usually refuses it.
struct Fault {
  enum Kind : uint8_t {
    kNone,
    kFloating,
    kOtherFloating,
    kInteger,
    kLonger,
    kWider,
    kFewerDimensions,
    kMoreDimensions
  };
  Kind kind = kNone;
  size_t tensor = 0;  // index into Arguments::tensors

  // Returns false if the call has no such tensor, or the fault has no effect.
  bool apply(Arguments& arguments) const;
};

class Samples {
 public:
  explicit Samples(const std::string& path);

  size_t size() const { return calls_.size(); }
  const std::string& torch_version() const { return torch_version_; }
  Sample sample(size_t index) const;
  // Numbers of calls that the exporter skipped, by reason.
  const std::vector<std::pair<std::string, int64_t>>& skipped() const { return skipped_; }

  Arguments arguments(size_t index, Contents contents) const;
  // Returns the operator's arguments with `tensors` inserted. Empty if this libtorch lacks the operator.
  std::optional<torch::jit::Stack> stack(size_t index, const std::vector<at::Tensor>& tensors) const;
  static std::optional<c10::OperatorHandle> find(const std::string& op);

 private:
  std::string torch_version_;
  at::Tensor storages_;
  std::vector<std::pair<int64_t, int64_t>> extents_;
  std::vector<c10::IValue> calls_;
  std::vector<std::pair<std::string, int64_t>> skipped_;
};

}  // namespace shadowgraph::conformance
