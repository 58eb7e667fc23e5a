// What the user says of values that the program reads and data decides, and what was asked. Internal to core/; the
// options are FakeTensorOptions::host_reads (shadowgraph/fake.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/fake.h"

namespace shadowgraph {

// What a guard says of a mask that is taken to hide nothing.
inline constexpr const char* kAssumedFull = "assumed full of ones";

class HostAnswers {
 public:
  void give(HostReads reads) { reads_ = std::move(reads); }
  // By name, beside the user's: what another capture was answered.
  void give(const std::string& name, const c10::Scalar& value) { reads_.values.emplace(name, value); }

  struct Answer {
    std::string name;  // "item0"
    c10::Scalar value;
    std::string why;  // "" if given; "assumed finite"
    std::string source;
  };
  // For `question` ("item", "equal") about `tensor`, whose dtype the value gets. Throws DataDependentError, which tells
  // the name and the option, if nobody has an answer, and Error if it is of another kind than the tensor. Who has no
  // answer of the user's may assume one.
  struct Assumed {
    c10::Scalar value;
    std::string why;
  };
  c10::Scalar read(const std::string& op, const std::string& question, const at::Tensor& tensor,
                   const std::string& source, const std::function<std::optional<Assumed>()>& assume = {});
  // A reason without the user: aten::equal of a tensor with itself.
  c10::Scalar assume(const std::string& question, const c10::Scalar& value, const std::string& why,
                     const std::string& source);

  // What was asked since the last call of this.
  bool has_asked() const { return !asked_.empty(); }
  std::vector<Answer> take_asked() { return std::exchange(asked_, {}); }
  void forget_asked() noexcept { asked_.clear(); }

 private:
  std::optional<Answer> find(const std::string& name, const std::string& op, const std::string& question,
                             const at::Tensor& tensor, const std::string& source);

  std::recursive_mutex mutex_;  // a hint may read another value
  HostReads reads_;
  std::map<std::string, int> count_;
  std::vector<Answer> asked_;
};

}  // namespace shadowgraph
