#include "core/fake/host_reads.h"

#include <ATen/core/Formatting.h>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

const char* kind_of(const std::string& question, const at::Tensor& tensor) {
  if (question == "equal" || tensor.scalar_type() == c10::kBool) return "bool";
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) ? "int" : "float";
}

// As the program will find it: a number for a bool would be no bool.
c10::Scalar as_kind(const c10::Scalar& value, const char* kind, const std::string& name) {
  const std::string_view wanted = kind;
  if (wanted == "bool") {
    if (!value.isBoolean() && !(value.isIntegral(false) && (value.toLong() == 0 || value.toLong() == 1))) {
      throw Error("the answer to the host read '" + name + "' must be true or false: " + c10::str(value) +
                  " was given");
    }
    return value.toBool();
  }
  if (wanted == "int") {
    if (!value.isIntegral(/*includeBool=*/true)) {
      throw Error("the answer to the host read '" + name + "' must be an integer: " + c10::str(value) + " was given");
    }
    return value.toLong();
  }
  return value.isComplex() ? value : c10::Scalar(value.toDouble());
}

}  // namespace

std::optional<HostAnswers::Answer> HostAnswers::find(const std::string& name, const std::string& op,
                                                     const std::string& question, const at::Tensor& tensor,
                                                     const std::string& source) {
  const auto given = [&](const std::string& key) -> std::optional<Answer> {
    const auto value = reads_.values.find(key);
    if (value == reads_.values.end()) return std::nullopt;
    return Answer{name, value->second, "", source};
  };
  if (auto answer = given(name)) return answer;
  if (reads_.hint) {
    if (const auto value = reads_.hint({name, op, tensor, source})) return Answer{name, *value, "", source};
  }
  if (auto answer = given(kind_of(question, tensor))) return answer;
  if (reads_.finite && (tensor.is_floating_point() || tensor.is_complex())) {
    return Answer{name, 1.0, "assumed finite", source};
  }
  return std::nullopt;
}

c10::Scalar HostAnswers::read(const std::string& op, const std::string& question, const at::Tensor& tensor,
                              const std::string& source, const std::function<std::optional<Assumed>()>& assume) {
  const std::lock_guard lock(mutex_);
  const std::string name = question + std::to_string(count_[question]++);
  auto answer = find(name, op, question, tensor, source);
  if (!answer && assume) {
    if (const auto assumed = assume()) answer = Answer{name, assumed->value, assumed->why, source};
  }
  if (!answer) {
    --count_[question];
    const char* const kind = kind_of(question, tensor);
    const bool floating = std::string_view(kind) == "float";
    throw DataDependentError(
        op + ": the result depends on the data of a fake tensor, which has none" +
        (source.empty() ? "" : " (read at " + source + ")") +
        ". Ways out: answer the read with the option host_reads, {\"" + name + "\": value}, {\"" + kind +
        "\": value} for all such, a function" + (floating ? ", or \"finite\"" : "") +
        "; compute the value from sizes or from tensors whose contents are known; pass it in as a number; or run this "
        "part on real tensors under an UnfakeGuard");
  }
  answer->value = as_kind(answer->value, kind_of(question, tensor), name);
  asked_.push_back(*answer);
  return answer->value;
}

c10::Scalar HostAnswers::assume(const std::string& question, const c10::Scalar& value, const std::string& why,
                                const std::string& source) {
  const std::lock_guard lock(mutex_);
  asked_.push_back({question + std::to_string(count_[question]++), value, why, source});
  return value;
}

}  // namespace shadowgraph
