// One sample run for real and on fake tensors, and whether they agree.
#pragma once

#include <functional>
#include <string>

#include "tests/conformance/samples.h"

namespace shadowgraph::conformance {

enum class Verdict : uint8_t {
  kAgree,          // the same metadata, or both raise
  kDataDependent,  // DataDependentError: what eager gives depends on data
  kTypedError,     // another shadowgraph::Error where eager gives a result
  kWrong,          // anything else
  kCrash,          // the process died on the fake tensors
  kEagerCrash,     // the process died on the real ones: nothing to compare with
};
constexpr const char* kVerdictNames[] = {"agree", "data-dependent", "typed error", "wrong", "crash", "eager crashed"};

// What there was to compare beside the results.
enum Compared : uint8_t { kRaised = 1, kGradients = 2, kWrites = 4 };

struct Result {
  Verdict verdict = Verdict::kAgree;
  std::string difference;  // one line a difference; "" if they agree
  uint8_t compared = 0;    // Compared, of samples that agree
};

// Compares the call, and backward from ones where arguments require grad: that both runs raise or neither, and
//
//   - sizes, dtype, strides, offset, conjugate and negative bits, requires_grad, results that are no tensors;
//   - aliasing of results with arguments and with each other, and how often arguments were written.
//
// `entering` is called with true before the real run, with false before the fake one. With a fault both are run on the
// changed arguments; a call that the fault does not concern agrees.
Result judge(const Samples& samples, size_t index, const std::function<void(bool real)>& entering,
             const Fault& fault = {});

}  // namespace shadowgraph::conformance
