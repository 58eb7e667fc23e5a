#include "profiler/traces/kineto_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <string>

#include "shadowgraph/graph/signature.h"
#include "shadowgraph/profile/collective_kind.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

// The words of c10's type names, as Kineto has them.
std::string kineto_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return "float";
    case c10::ScalarType::Double:
      return "double";
    case c10::ScalarType::Half:
      return "c10::Half";
    case c10::ScalarType::BFloat16:
      return "c10::BFloat16";
    case c10::ScalarType::Long:
      return "long int";
    case c10::ScalarType::Int:
      return "int";
    case c10::ScalarType::Short:
      return "short int";
    case c10::ScalarType::Char:
      return "signed char";
    case c10::ScalarType::Byte:
      return "unsigned char";
    case c10::ScalarType::Bool:
      return "bool";
    case c10::ScalarType::ComplexFloat:
      return "c10::complex<float>";
    case c10::ScalarType::ComplexDouble:
      return "c10::complex<double>";
    default:
      return std::string("c10::") + c10::toString(dtype);
  }
}

std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == text.npos) text += '.';
  return text;
}

struct KinetoInput {
  std::string type;
  std::string text;
  json sizes = json::array();
  json strides = json::array();
};

json json_list(std::span<const int64_t> values) {
  json list = json::array();
  for (const int64_t value : values) list.push_back(value);
  return list;
}

KinetoInput input_of(const Graph& graph, const Argument& argument) {
  switch (argument.kind) {
    case ArgumentKind::kValue: {
      const Value& value = graph.value(argument.ref.value);
      if (value.kind != ValueKind::kTensor) return {.type = "Scalar"};
      return {.type = kineto_type(value.dtype),
              .sizes = json_list(graph.sizes(argument.ref.value)),
              .strides = json_list(graph.strides(argument.ref.value))};
    }
    case ArgumentKind::kConstant: {
      const auto constant = graph.constant_meta(argument.constant);
      if (!constant) return {};
      return {.type = kineto_type(constant->dtype),
              .sizes = json_list(constant->sizes),
              .strides = json_list(constant->strides)};
    }
    case ArgumentKind::kInt:
      return {.type = "Scalar", .text = std::to_string(argument.i)};
    case ArgumentKind::kFloat:
      return {.type = "Scalar", .text = real_text(argument.d)};
    case ArgumentKind::kBool:
      return {.type = "Scalar", .text = argument.b ? "True" : "False"};
    case ArgumentKind::kIntList:
      return {.type = "ScalarList", .text = fmt::format("[{}]", fmt::join(graph.ints(argument), ", "))};
    case ArgumentKind::kList: {
      KinetoInput input{.type = "TensorList"};
      std::string numbers;
      bool tensors = false;
      for (const Argument& element : graph.list(argument)) {
        if (element.kind == ArgumentKind::kList) continue;
        const KinetoInput one = input_of(graph, element);
        if (one.type == "Scalar") numbers += (numbers.empty() ? "" : ", ") + one.text;
        if (one.type == "Scalar" || one.type.empty()) continue;
        tensors = true;
        input.sizes.push_back(one.sizes);
        input.strides.push_back(one.strides);
      }
      return tensors ? input : KinetoInput{.type = "ScalarList", .text = "[" + numbers + "]"};
    }
    default:
      return {};
  }
}

}  // namespace

void add_kineto_inputs(const Graph& graph, NodeId node, json& into) {
  json dims = json::array();
  json strides = json::array();
  json types = json::array();
  json concrete = json::array();
  const auto& formals = graph.target(node).signature().arguments;
  const auto arguments = graph.arguments(node);
  for (size_t i = 0; i < arguments.size(); ++i) {
    KinetoInput input = input_of(graph, arguments[i]);
    // A number in a tensor's place is a tensor without dimensions.
    if (input.type == "Scalar" && i < formals.size() && formals[i].type.type == TypeClass::kTensor) {
      const bool real = arguments[i].kind == ArgumentKind::kFloat;
      input = {.type = real ? "double" : arguments[i].kind == ArgumentKind::kBool ? "bool" : "long int"};
    }
    types.push_back(std::move(input.type));
    concrete.push_back(std::move(input.text));
    dims.push_back(std::move(input.sizes));
    strides.push_back(std::move(input.strides));
  }
  into["Input Dims"] = std::move(dims);
  into["Input Strides"] = std::move(strides);
  into["Input type"] = std::move(types);
  into["Concrete Inputs"] = std::move(concrete);
}

void add_kineto_collective(const Collective& sent, const ProcessGroupInfo& group, json& into) {
  const int64_t part = sent.payload / group.size;
  const bool gathers = sent.kind == CollectiveKind::kAllGather || sent.kind == CollectiveKind::kGather;
  const bool scatters = sent.kind == CollectiveKind::kReduceScatter || sent.kind == CollectiveKind::kScatter;
  into["Collective name"] = std::string(to_string(sent.kind));
  into["In msg nelems"] = gathers ? part : sent.payload;
  into["Out msg nelems"] = scatters ? part : sent.payload;
  into["dtype"] = "Byte";
  into["Group size"] = group.size;
  into["Process Group Name"] = group.name;
  into["Process Group Ranks"] = fmt::format("[{}]", fmt::join(group.ranks, ", "));
}

}  // namespace shadowgraph
