// Runs one sample on real and on fake tensors and compares the outcomes.
#pragma once

#include <functional>
#include <string>

#include "tests/conformance/samples.h"

namespace shadowgraph::conformance {

enum class Verdict : uint8_t {
  kAgree,          // the same metadata, or both raise
  kDataDependent,  // DataDependentError: eager's result depends on data
  kTypedError,     // another shadowgraph::Error although eager returns a result
  kWrong,          // anything else
  kCrash,          // the process died with fake tensors
  kEagerCrash,     // the process died with real tensors: nothing to compare
};
constexpr const char* kVerdictNames[] = {"agree", "data-dependent", "typed error", "wrong", "crash", "eager crashed"};

// Properties that were compared besides the results.
enum Compared : uint8_t { kRaised = 1, kGradients = 2, kWrites = 4 };

struct Result {
  Verdict verdict = Verdict::kAgree;
  std::string difference;  // one difference per line; "" if they agree
  uint8_t compared = 0;    // flags of Compared, for samples that agree
};

// Compares the call, and backward from ones if arguments require grad. Both runs raise or neither does, and they have
// the same
//
//   - sizes, dtype, strides, offset, conjugate and negative bits, requires_grad, non-tensor results;
//   - aliasing of results with arguments and with each other, and version counters of arguments.
//
// `entering` is called with true before the real run and with false before the fake run. With a fault, both run on the
// changed arguments; a call to which the fault does not apply counts as agreeing.
Result judge(const Samples& samples, size_t index, const std::function<void(bool real)>& entering,
             const Fault& fault = {});

}  // namespace shadowgraph::conformance
