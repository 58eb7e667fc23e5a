#include "passes/codegen/python_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/replay/functional_call.h"
#include "ir/operator_facts.h"
#include "ir/printer.h"
#include "ir/tensor_bytes.h"
#include "passes/codegen/codegen.h"
#include "passes/codegen/identifiers.h"

namespace shadowgraph {
namespace {

std::string python_layout(int64_t layout) {
  switch (static_cast<c10::Layout>(layout)) {
    case c10::Layout::Sparse:
      return "torch.sparse_coo";
    case c10::Layout::SparseCsr:
      return "torch.sparse_csr";
    case c10::Layout::SparseCsc:
      return "torch.sparse_csc";
    case c10::Layout::SparseBsr:
      return "torch.sparse_bsr";
    case c10::Layout::SparseBsc:
      return "torch.sparse_bsc";
    case c10::Layout::Mkldnn:
      return "torch._mkldnn";
    case c10::Layout::Jagged:
      return "torch.jagged";
    default:
      return "torch.strided";
  }
}

std::string python_memory_format(int64_t format) {
  switch (static_cast<c10::MemoryFormat>(format)) {
    case c10::MemoryFormat::Preserve:
      return "torch.preserve_format";
    case c10::MemoryFormat::ChannelsLast:
      return "torch.channels_last";
    case c10::MemoryFormat::ChannelsLast3d:
      return "torch.channels_last_3d";
    default:
      return "torch.contiguous_format";
  }
}

}  // namespace

std::string PythonCalls::dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return "torch.uint8";
    case at::kChar:
      return "torch.int8";
    case at::kShort:
      return "torch.int16";
    case at::kInt:
      return "torch.int32";
    case at::kLong:
      return "torch.int64";
    case at::kHalf:
      return "torch.float16";
    case at::kFloat:
      return "torch.float32";
    case at::kDouble:
      return "torch.float64";
    case at::kComplexHalf:
      return "torch.complex32";
    case at::kComplexFloat:
      return "torch.complex64";
    case at::kComplexDouble:
      return "torch.complex128";
    case at::kBFloat16:
      return "torch.bfloat16";
    default: {
      std::string name = c10::toString(dtype);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      return "torch." + name;
    }
  }
}

std::string PythonCalls::number(double value) {
  if (std::isnan(value)) {
    const auto bits = std::bit_cast<uint64_t>(value);
    if (bits == 0x7ff8000000000000ULL) return "math.nan";
    return fmt::format("struct.unpack('<d', ({:#x}).to_bytes(8, 'little'))[0]", bits);
  }
  if (std::isinf(value)) return value < 0 ? "-math.inf" : "math.inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string PythonCalls::quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out + '"';
}

std::string PythonCalls::ints(std::span<const int64_t> list) { return fmt::format("[{}]", fmt::join(list, ", ")); }

std::string PythonCalls::device(c10::Device device) const {
  if (options_.device) device = *options_.device;
  return fmt::format("torch.device(\"{}\")", device.str());
}

void PythonCalls::fail(NodeId node, const std::string& what) const {
  throw CodegenError("cannot write " + to_text(graph_, node) + "\n  as code: " + what, node);
}

std::string PythonCalls::constant(ConstantId id) const {
  const auto content = tensor_bytes(graph_.constant(id));
  if (!content) {
    throw CodegenError("the contents of the constant c" + std::to_string(id.index) +
                       " cannot be read, so no code can hold them");
  }
  if (content->bytes.empty()) {
    return fmt::format("torch.empty_strided({}, {}, dtype={})", ints(content->sizes), ints(content->strides),
                       dtype(content->dtype));
  }
  std::string elements;
  if (content->dtype == at::kLong) {
    for (size_t i = 0; i + 8 <= content->bytes.size(); i += 8) {
      int64_t value = 0;
      std::memcpy(&value, content->bytes.data() + i, 8);
      elements += (i == 0 ? "" : ", ") + std::to_string(value);
    }
    elements = "torch.tensor([" + elements + "], dtype=torch.int64)";
  } else {
    for (const uint8_t byte : content->bytes) elements += fmt::format("{:02x}", byte);
    elements = fmt::format("torch.frombuffer(bytearray.fromhex(\"{}\"), dtype={})", elements, dtype(content->dtype));
  }
  return fmt::format("{}.as_strided({}, {})", elements, ints(content->sizes), ints(content->strides));
}

std::string PythonCalls::operator_text(const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  if (const size_t colons = name.find("::"); colons != std::string::npos) {
    const std::string library = name.substr(0, colons);
    if (library != "aten" && library != "prim" && library != "prims") libraries_.insert(library);
    name.replace(colons, 2, ".");
  }
  const std::string overload = schema.overload_name().empty() ? "default" : schema.overload_name();
  // random_.from is Python's own word.
  if (identifier(overload) == overload + "_value") {
    return fmt::format("getattr(torch.ops.{}, {})", name, quoted(overload));
  }
  return "torch.ops." + name + "." + overload;
}

std::string PythonCalls::call(uint32_t step, const NameOf& name_of) {
  step_ = step;
  name_of_ = &name_of;
  const NodeId node = plan_.steps[step].node;
  const Target& target = graph_.target(node);
  const auto arguments = graph_.arguments(node);
  if (target.kind() == TargetKind::kBuiltin) {
    if (graph_.node(node).target != target_of(Builtin::kAlias)) return constant(arguments[0].constant);
    const ValueId from = arguments[0].ref.value;
    const ValueId to = graph_.results(node)[0].ref.value;
    const Value& source = graph_.value(from);
    const Value& result = graph_.value(to);
    helpers_.insert("alias_of");
    const int64_t bytes = result.offset * static_cast<int64_t>(c10::elementSize(result.dtype)) -
                          source.offset * static_cast<int64_t>(c10::elementSize(source.dtype));
    return fmt::format("alias_of({}, {}, {}, {}, {})", name_of(plan_.variable_of(from, step)), dtype(result.dtype),
                       ints(graph_.sizes(to)), ints(graph_.strides(to)), bytes);
  }
  std::optional<Target> behind;
  if (target.kind() == TargetKind::kFunction) {
    behind = operator_of_functional_call(target);
    if (!behind) {
      fail(node,
           "a function of the user's own has no Python text; write its body into the graph with inline_call "
           "(ir/group_call.h), or rewrite the node to operators (shadowgraph opt --pass rewrite)");
    }
  }
  const auto here = c10::Dispatcher::singleton().findSchema(target.schema().operator_name());
  if (here && !behind && !target.find_operator()) {
    fail(node, "this libtorch has the operator with another schema than " + target.schema_text() +
                   "; capture the graph again with this libtorch");
  }
  const TargetFormals& formals = formals_.of(graph_, graph_.node(node).target);
  const auto& schema = target.schema();
  bool any_tensor = false;
  graph_.for_each_input(node, [&](ValueId) { any_tensor = true; });
  ValueId first;
  graph_.for_each_output(node, [&](ValueId value) {
    if (!first.valid()) first = value;
  });
  std::vector<std::string> positional;
  std::vector<std::string> keywords;
  size_t last = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const FormalType type = i < formals.arguments.size() ? formals.arguments[i].type : FormalType{};
    const bool keyword = i < schema.arguments().size() && schema.arguments()[i].kwarg_only();
    bool is_default = i < formals.arguments.size() && formals.arguments[i].default_value &&
                      formals.arguments[i].default_value->equals(graph_, arguments[i]);
    std::string text = argument(arguments[i], type);
    // A factory that named no device made its tensor on the mode's default one: here that is what the result says.
    if (type.type == TypeClass::kDevice && arguments[i].kind == ArgumentKind::kNone && !any_tensor && first.valid() &&
        graph_.value(first).kind == ValueKind::kTensor) {
      text = device(graph_.value(first).device());
      is_default = false;
    }
    if (behind || !keyword) {
      positional.push_back(text);
      if (!is_default || behind) last = positional.size();
    } else if (!is_default) {
      keywords.push_back(schema.arguments()[i].name() + "=" + text);
    }
  }
  positional.resize(last);
  if (behind) {
    helpers_.insert("functional_call");
    const OperatorFacts facts = facts_of(*behind);
    std::vector<size_t> fresh;
    for (size_t r = 0; r < behind->schema().returns().size(); ++r) {
      if (std::ranges::find(facts.aliases, r, &OperatorFacts::Alias::result) == facts.aliases.end()) fresh.push_back(r);
    }
    return fmt::format("functional_call({}, [{}], [{}], [{}])", operator_text(behind->schema()),
                       fmt::join(facts.written, ", "), fmt::join(fresh, ", "), fmt::join(positional, ", "));
  }
  positional.insert(positional.end(), keywords.begin(), keywords.end());
  return fmt::format("{}({})", operator_text(schema), fmt::join(positional, ", "));
}

std::string PythonCalls::argument(const Argument& a, const FormalType& type) {
  switch (a.kind) {
    case ArgumentKind::kNone:
      return "None";
    case ArgumentKind::kValue:
      return (*name_of_)(plan_.variable_of(a.ref.value, step_));
    case ArgumentKind::kInt:
      switch (type.type) {
        case TypeClass::kDtype:
          return dtype(static_cast<c10::ScalarType>(a.i));
        case TypeClass::kLayout:
          return python_layout(a.i);
        case TypeClass::kMemoryFormat:
          return python_memory_format(a.i);
        default:
          return std::to_string(a.i);
      }
    case ArgumentKind::kFloat:
      return number(a.d);
    case ArgumentKind::kBool:
      return a.b ? "True" : "False";
    case ArgumentKind::kComplex: {
      const auto parts = graph_.complex_parts(a);
      return fmt::format("complex({}, {})", number(parts[0]), number(parts[1]));
    }
    case ArgumentKind::kString:
      return quoted(graph_.text(a.string));
    case ArgumentKind::kDevice:
      return device(a.device());
    case ArgumentKind::kIntList:
      return ints(graph_.ints(a));
    case ArgumentKind::kList: {
      std::vector<std::string> elements;
      const FormalType element{type.element, type.element_optional};
      for (const Argument& e : graph_.list(a)) elements.push_back(argument(e, element));
      return fmt::format("[{}]", fmt::join(elements, ", "));
    }
    case ArgumentKind::kConstant:
      if (const auto variable = plan_.variable_of_constant(a.constant)) return (*name_of_)(*variable);
      return constant(a.constant);
    case ArgumentKind::kGenerator:
      if (type.optional) return "None";
      return a.device().is_cpu()
                 ? "torch.default_generator"
                 : fmt::format("torch.cuda.default_generators[{}]", std::max<int>(a.device().index(), 0));
    case ArgumentKind::kOpaque:
      fail(plan_.steps[step_].node, "its argument is an object that a graph does not hold (" + graph_.text(a.string) +
                                        "); rewrite the node to operators first");
  }
  return {};
}

}  // namespace shadowgraph
