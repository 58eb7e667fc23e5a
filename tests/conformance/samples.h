// The samples that export_samples.py wrote: calls of aten operators with all their arguments.
//
//     const Samples samples(path);
//     Arguments arguments = samples.arguments(i, Contents::kCopied);   // real tensors, ready to be called with
//
// The format is described at the head of export_samples.py. Throws shadowgraph::Error for a file that is not of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

namespace shadowgraph::conformance {

// Where a call was seen.
enum class Level : uint8_t { kBelowAutograd, kAboveAutograd, kMadeUp };

struct Sample {
  std::string op;      // "aten::add.Tensor"
  std::string origin;  // OpInfo's name
  std::string dtype;   // that OpInfo was asked for: "float32", ...; "errors" for samples that must raise
  Level level;
};

enum class Contents : uint8_t {
  kCopied,  // may be written to
  kShared,  // for what reads metadata alone
};

// A call with the tensors taken out: they are put in, converted or not, when the stack is made.
struct Arguments {
  std::vector<at::Tensor> tensors;  // each one once, leaves
  std::vector<bool> not_leaf;       // to be copied by the program before it is passed
};

// Changes one argument of a call, so that eager refuses many of the results.
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
  size_t tensor = 0;  // position in Arguments::tensors

  // Returns false if the call has no such tensor, or the fault changes nothing.
  bool apply(Arguments& arguments) const;
};

class Samples {
 public:
  explicit Samples(const std::string& path);

  size_t size() const { return calls_.size(); }
  const std::string& torch_version() const { return torch_version_; }
  Sample sample(size_t index) const;
  // How many calls the exporter left out, by reason.
  const std::vector<std::pair<std::string, int64_t>>& skipped() const { return skipped_; }

  Arguments arguments(size_t index, Contents contents) const;
  // The operator's arguments, `tensors` in their places. Empty if this libtorch does not have the operator.
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
