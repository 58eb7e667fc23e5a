#include "viz/constant_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/text/words.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

constexpr size_t kLongestConstants = 2000;  // characters of the constant arguments of a call

class ConstantText {
 public:
  ConstantText(const Graph& graph, const std::function<uint32_t(ValueId)>& number_of)
      : graph_(graph), number_of_(number_of) {}

  std::string of(NodeId id) const {
    std::string text;
    const auto& formal = graph_.target(id).signature().arguments;
    const auto actual = graph_.arguments(id);
    for (size_t i = 0; i < actual.size() && i < formal.size() && text.size() < kLongestConstants; ++i) {
      if (actual[i].kind == ArgumentKind::kNone || actual[i].kind == ArgumentKind::kValue) continue;
      const size_t before = text.size();
      text += (text.empty() ? "" : ", ") + formal[i].name + "=";
      if (!append(text, actual[i], formal[i].type.type, 0)) text.resize(before);
    }
    if (text.size() > kLongestConstants) text = text.substr(0, kLongestConstants) + " ...";
    return text;
  }

 private:
  // Appends an argument; says whether there is anything but values in it.
  bool append(std::string& text, const Argument& argument, TypeClass type, int depth) const {
    switch (argument.kind) {
      case ArgumentKind::kNone:
        text += "None";
        return false;
      case ArgumentKind::kValue:
        text += '%';
        text += std::to_string(number_of_(argument.ref.value));
        return false;
      case ArgumentKind::kInt:
        if (type == TypeClass::kDtype && argument.i >= 0 && argument.i < 127) {
          text += dtype_word(static_cast<c10::ScalarType>(argument.i));
        } else if (type == TypeClass::kLayout) {
          text += layout_word(static_cast<c10::Layout>(argument.i));
        } else if (type == TypeClass::kMemoryFormat) {
          text += memory_format_word(static_cast<c10::MemoryFormat>(argument.i));
        } else {
          append_int(text, argument.i);
        }
        return true;
      case ArgumentKind::kFloat:
        append_float(text, argument.d);
        return true;
      case ArgumentKind::kBool:
        text += argument.b ? "true" : "false";
        return true;
      case ArgumentKind::kComplex: {
        const auto parts = graph_.complex_parts(argument);
        text += fmt::format("{}{:+}i", parts[0], parts[1]);
        return true;
      }
      case ArgumentKind::kString:
        append_quoted(text, graph_.text(argument.string));
        return true;
      case ArgumentKind::kOpaque:
        text += '<';
        text += graph_.text(argument.string);
        text += '>';
        return true;
      case ArgumentKind::kDevice:
      case ArgumentKind::kGenerator:
        append_device(text, argument.device());
        return true;
      case ArgumentKind::kIntList:
        text += fmt::format("[{}]", fmt::join(graph_.ints(argument), ", "));
        return true;
      case ArgumentKind::kConstant: {
        const auto tensor = graph_.constant_meta(argument.constant);
        text += tensor ? fmt::format("constant {}[{}]", dtype_word(tensor->dtype), fmt::join(tensor->sizes, ","))
                       : std::string("constant");
        return true;
      }
      case ArgumentKind::kList: {
        bool any = false;
        bool first = true;
        text += '[';
        for (const Argument& element : graph_.list(argument)) {
          if (!first) text += ", ";
          first = false;
          if (depth > 8 || text.size() > kLongestConstants) {
            text += "...";
            break;
          }
          any = append(text, element, TypeClass::kAny, depth + 1) || any;
        }
        text += ']';
        return any;
      }
    }
    return false;
  }

  const Graph& graph_;
  const std::function<uint32_t(ValueId)>& number_of_;
};

}  // namespace

std::string constant_text(const Graph& graph, NodeId node, const std::function<uint32_t(ValueId)>& number_of) {
  return ConstantText(graph, number_of).of(node);
}

}  // namespace shadowgraph
