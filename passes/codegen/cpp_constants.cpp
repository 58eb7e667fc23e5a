// Writes a small constant tensor as a function that makes it from a list of numbers.
//
// Other types than int, long, float and double are written as their bytes. Linear in the elements, which
// CodegenOptions::max_embedded_elements bounds.
#include "passes/codegen/cpp_constants.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ir/text/tensor_bytes.h"
#include "passes/codegen/cpp_call.h"
#include "passes/codegen/cpp_literals.h"
#include "shadowgraph/codegen/options.h"

namespace shadowgraph {
namespace {

// Spells each element as the type T of the list that the generated function is given.
template <class T, class F>
std::string elements(const std::vector<uint8_t>& bytes, F&& spell) {
  std::string text;
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + i, sizeof(T));
    text += (i == 0 ? "" : ", ") + spell(value);
  }
  return text;
}

template <class T>
bool all_finite(const std::vector<uint8_t>& bytes) {
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + i, sizeof(T));
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

std::string embedded_constant(const Graph& graph, ConstantId id) {
  const auto content = tensor_bytes(graph.constant(id));
  if (!content) {
    throw CodegenError("the contents of the constant c" + std::to_string(id.index) +
                       " cannot be read, so no code can hold them");
  }
  const auto& bytes = content->bytes;
  std::string type = "uint8_t";
  std::string text;
  // Numbers are written so that they read back bit for bit. NaN and infinity have no literal and go as bytes.
  if (content->dtype == at::kFloat && all_finite<float>(bytes)) {
    type = "float";
    text = elements<float>(bytes, [](float value) {
      std::string number = fmt::format("{}", value);
      // "1f" is no C++ literal; "1.0f" is one.
      if (number.find_first_of(".e") == std::string::npos) number += ".0";
      return number + "f";
    });
  } else if (content->dtype == at::kDouble && all_finite<double>(bytes)) {
    type = "double";
    text = elements<double>(bytes, [](double value) { return cpp::number(value); });
  } else if (content->dtype == at::kLong) {
    type = "int64_t";
    text = elements<int64_t>(bytes, [](int64_t value) { return cpp::number(value); });
  } else if (content->dtype == at::kInt) {
    type = "int32_t";
    text = elements<int32_t>(bytes, [](int32_t value) {
      // -2147483648 is the negation of a literal that int32_t cannot hold.
      return value == std::numeric_limits<int32_t>::min() ? "std::numeric_limits<int32_t>::min()"
                                                          : std::to_string(value);
    });
  } else {
    text = elements<uint8_t>(bytes, [](uint8_t value) { return std::to_string(value); });
  }
  return fmt::format("at::Tensor {}() {{\n  return embedded<{}>({}, {}, {}, {{{}}});\n}}\n",
                     CppCalls::constant_name(id), type, cpp::dtype(content->dtype), cpp::ints(content->sizes),
                     cpp::ints(content->strides), text);
}

}  // namespace shadowgraph
