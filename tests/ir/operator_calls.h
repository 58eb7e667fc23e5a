// Calls operators on real tensors and records their effects, which tests of ir/operators/ compare with the fact table.
//
// A call runs several times on the same arguments with the same seed, while uninitialized memory or contents of
// operands differ. A result that wrongly depends on either then changes.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph::operator_facts_test {

using c10::IValue;
using Arguments = std::vector<IValue>;

struct Call {
  std::string name;  // with overload name
  std::function<Arguments()> arguments;
  // False: arguments marked as written may be left unwritten, in a case that the schema cannot distinguish.
  bool exactly = true;
};
const std::vector<Call>& all_calls();

// The byte that fills memory before it is allocated.
constexpr int kPoison = 0x5A;
constexpr int kOtherPoison = 0x3C;
constexpr uint64_t kCallSeed = 23;

c10::OperatorHandle operator_of(const std::string& name);
Target target_of_name(const std::string& name);
std::vector<at::Tensor> tensors_in(const IValue& value);
bool same_bytes(const at::Tensor& a, const at::Tensor& b);
bool same_contents(const IValue& a, const IValue& b);
bool same_contents(const std::vector<IValue>& a, const std::vector<IValue>& b);
// Changes contents in place, of the first element or of all; dtype and geometry stay.
void change(const at::Tensor& tensor, bool only_first = false);

// The outcome of one run.
struct Outcome {
  Arguments arguments;  // after the run
  std::vector<IValue> results;
  std::set<size_t> written;
  std::set<std::pair<size_t, size_t>> aliases;  // pairs of result and argument
  bool drew = false;
  bool moved_objects = false;  // geometry or storage of an argument changed
  bool moved_storage = false;  // storage of an argument changed
  bool moved_sizes = false;    // sizes of an argument or result differ from those of the first argument before the call
};

Arguments made_arguments(const c10::FunctionSchema& schema, const std::function<Arguments()>& make,
                         int poison = kPoison);
using Prepare = std::function<void(Arguments&)>;
// Missing arguments take the schema's defaults.
Outcome run_call(const std::string& name, const std::function<Arguments()>& make, int poison = kPoison,
                 const Prepare& prepare = nullptr, uint64_t seed = kCallSeed);
std::vector<IValue> run_on(const c10::OperatorHandle& op, Arguments arguments);
// Contents of written arguments, and the results.
std::vector<IValue> left_by(const Outcome& run, const OperatorFacts& facts);

class OperatorCalls : public ::testing::Test {
 protected:
  template <class Check>
  void for_each_call(Check&& check) {
    for (const Call& call : all_calls()) {
      SCOPED_TRACE(toString(operator_of(call.name).schema()));
      const Target target = target_of_name(call.name);
      check(call, target.facts());
    }
  }
};

}  // namespace shadowgraph::operator_facts_test
