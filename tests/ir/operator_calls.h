// Calls of operators on real tensors, and what each left: what tests of ir/operators/ hold facts against.
//
// A call runs several times on the same arguments, with the generator seeded alike. Memory is filled with another byte
// before it is handed out, or contents differ. So a result that depends on what it must not depend on shows.
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
  std::string name;  // with overload
  std::function<Arguments()> arguments;
  // False: what is said to be written may stay as it is, in a case that the schema cannot tell.
  bool exactly = true;
};
const std::vector<Call>& all_calls();

// Bytes that memory holds before it is handed out.
constexpr int kPoison = 0x5A;
constexpr int kOtherPoison = 0x3C;
constexpr uint64_t kCallSeed = 23;

c10::OperatorHandle operator_of(const std::string& name);
Target target_of_name(const std::string& name);
std::vector<at::Tensor> tensors_in(const IValue& value);
bool same_bytes(const at::Tensor& a, const at::Tensor& b);
bool same_contents(const IValue& a, const IValue& b);
bool same_contents(const std::vector<IValue>& a, const std::vector<IValue>& b);
// Other contents of the same dtype and geometry, in place; the first element alone, or all.
void change(const at::Tensor& tensor, bool only_first = false);

// One run and what it left.
struct Outcome {
  Arguments arguments;  // after it
  std::vector<IValue> results;
  std::set<size_t> written;
  std::set<std::pair<size_t, size_t>> aliases;  // result, argument
  bool drew = false;
  bool moved_objects = false;  // an argument has another geometry or storage
  bool moved_storage = false;  // another storage
  bool moved_sizes = false;    // an argument or result has other sizes than the first argument had
};

Arguments made_arguments(const c10::FunctionSchema& schema, const std::function<Arguments()>& make,
                         int poison = kPoison);
using Prepare = std::function<void(Arguments&)>;
// Missing arguments are the schema's defaults.
Outcome run_call(const std::string& name, const std::function<Arguments()>& make, int poison = kPoison,
                 const Prepare& prepare = nullptr, uint64_t seed = kCallSeed);
std::vector<IValue> run_on(const c10::OperatorHandle& op, Arguments arguments);
// What the arguments hold of what is written, and the results.
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
