#include "core/exported/read_graph.h"

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include "core/capture/script_location.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Graphs within graphs, lists within lists.
constexpr int kDeepestGraph = 50;

struct SavedDtype {
  int64_t number;
  c10::ScalarType dtype;
};
// schema.py numbers dtypes in its own way.
constexpr SavedDtype kSavedDtypes[] = {
    {1, c10::ScalarType::Byte},
    {2, c10::ScalarType::Char},
    {3, c10::ScalarType::Short},
    {4, c10::ScalarType::Int},
    {5, c10::ScalarType::Long},
    {6, c10::ScalarType::Half},
    {7, c10::ScalarType::Float},
    {8, c10::ScalarType::Double},
    {9, c10::ScalarType::ComplexHalf},
    {10, c10::ScalarType::ComplexFloat},
    {11, c10::ScalarType::ComplexDouble},
    {12, c10::ScalarType::Bool},
    {13, c10::ScalarType::BFloat16},
    {28, c10::ScalarType::UInt16},
    {29, c10::ScalarType::Float8_e4m3fn},
    {30, c10::ScalarType::Float8_e5m2},
    {31, c10::ScalarType::Float8_e4m3fnuz},
    {32, c10::ScalarType::Float8_e5m2fnuz},
    {33, c10::ScalarType::Float8_e8m0fnu},
    {34, c10::ScalarType::UInt32},
    {35, c10::ScalarType::UInt64},
};

constexpr c10::Layout kSavedLayouts[] = {c10::Layout::Sparse,    c10::Layout::SparseCsr, c10::Layout::SparseCsc,
                                         c10::Layout::SparseBsr, c10::Layout::SparseBsc, c10::Layout::Mkldnn,
                                         c10::Layout::Strided};
constexpr int64_t kSavedStrided = 7;
constexpr c10::MemoryFormat kSavedMemoryFormats[] = {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast,
                                                     c10::MemoryFormat::ChannelsLast3d, c10::MemoryFormat::Preserve};

// The format counts from 1; 0 is unknown.
template <class T, size_t n>
int64_t from_table(const JsonPlace& place, const T (&table)[n], const char* what) {
  const int64_t number = place.integer();
  if (number < 1 || number > static_cast<int64_t>(n)) place.fail("is not a known " + std::string(what));
  return static_cast<int64_t>(table[number - 1]);
}

ExportedOperand literal(c10::IValue value) {
  ExportedOperand operand;
  operand.literal = std::move(value);
  return operand;
}

ExportedOperand unsupported(std::string what) {
  ExportedOperand operand = literal(std::move(what));
  operand.kind = ExportedOperand::Kind::kUnsupported;
  return operand;
}

c10::Device read_device(const JsonPlace& place) {
  std::string name = place["type"].text();
  if (const auto index = place.find("index")) name += ":" + std::to_string(index->integer());
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    place.fail("'" + name + "' is not a device");
  }
}

// Reads a trace: 'File "/net.py", line 12, in forward\n    code\n  File ...', from the outermost frame to the
// innermost.
std::string source_of(std::string_view trace) {
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kLine = "\", line ";
  UsersFrame place;
  while (!place.found()) {
    const size_t start = trace.rfind(kFile);
    if (start == std::string_view::npos) break;
    const std::string_view frame = trace.substr(start + kFile.size());
    const size_t line = frame.find(kLine);
    // Code that Dynamo wrote calls itself "<eval_with_key>.12".
    if (line != std::string_view::npos && !frame.starts_with('<')) {
      const std::string_view number = frame.substr(line + kLine.size());
      place.add(frame.substr(0, line), number.substr(0, number.find_first_not_of("0123456789")));
    }
    trace = trace.substr(0, start);
  }
  return std::move(place).text();
}

class GraphReader {
 public:
  GraphReader(ModuleStacks& modules, int depth) : modules_(modules), depth_(depth) {}

  ExportedGraph read(const JsonPlace& place) {
    if (depth_ > kDeepestGraph) place.fail("is a graph within too many graphs");
    const JsonPlace inputs = place["inputs"];
    for (size_t i = 0; i < inputs.size(); ++i) graph_.inputs.push_back(read_operand(inputs[i], true));
    const JsonPlace nodes = place["nodes"];
    graph_.nodes.reserve(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) graph_.nodes.push_back(read_node(nodes[i]));
    const JsonPlace outputs = place["outputs"];
    for (size_t i = 0; i < outputs.size(); ++i) graph_.outputs.push_back(read_operand(outputs[i], false));
    find_last_uses();
    return std::move(graph_);
  }

 private:
  ExportedNode read_node(const JsonPlace& place) {
    ExportedNode node;
    node.target = place["target"].text();
    const JsonPlace inputs = place["inputs"];
    for (size_t i = 0; i < inputs.size(); ++i) {
      const JsonPlace input = inputs[i];
      node.inputs.push_back({input["name"].text(), read_operand(input["arg"], false)});
    }
    const JsonPlace outputs = place["outputs"];
    for (size_t i = 0; i < outputs.size(); ++i) node.outputs.push_back(read_operand(outputs[i], true));
    if (const auto name = place.find("name")) {
      node.name = name->text();
    } else {
      node.name = node.outputs.empty() || node.outputs[0].kind != ExportedOperand::Kind::kValue
                      ? node.target
                      : graph_.value_names[node.outputs[0].value];
    }
    if (const auto metadata = place.find("metadata")) {
      if (const auto stack = metadata->find("nn_module_stack")) node.module_stack = modules_.intern(stack->text());
      if (const auto trace = metadata->find("stack_trace")) node.source = source_of(trace->text());
    }
    return node;
  }

  ExportedOperand value(const JsonPlace& name, bool is_made) {
    ExportedOperand operand;
    operand.kind = ExportedOperand::Kind::kValue;
    if (is_made) {
      operand.value = static_cast<uint32_t>(graph_.value_names.size());
      graph_.value_names.push_back(name.text());
      numbers_[name.text()] = operand.value;
    } else {
      const auto found = numbers_.find(name.text());
      if (found == numbers_.end()) name.fail("is '" + name.text() + "', which nothing before it makes");
      operand.value = found->second;
    }
    return operand;
  }

  template <class Read>
  ExportedOperand list(const JsonPlace& place, Read read) {
    ExportedOperand operand;
    operand.kind = ExportedOperand::Kind::kList;
    for (size_t i = 0; i < place.size(); ++i) operand.elements.push_back(read(place[i]));
    return operand;
  }

  // `is_made` says that the names in it are those of new values.
  ExportedOperand read_operand(const JsonPlace& place, bool is_made) {
    const auto [kind, inside] = place.alternative();
    const auto tensor = [&](const JsonPlace& p) { return value(p["name"], is_made); };
    const auto integer = [](const JsonPlace& p) { return literal(p.integer()); };
    const auto number = [](const JsonPlace& p) { return literal(p.number()); };
    const auto boolean = [](const JsonPlace& p) { return literal(p.boolean()); };
    const auto text = [](const JsonPlace& p) { return literal(p.text()); };
    const auto symbolic = [&](const JsonPlace& p) {
      const auto [which, content] = p.alternative();
      if (which == "as_name") return value(content, is_made);
      if (which == "as_int") return integer(content);
      if (which == "as_float") return number(content);
      if (which == "as_bool") return boolean(content);
      content.fail("is not a known kind of symbolic number");
    };
    const auto optional_tensor = [&](const JsonPlace& p) {
      const auto [which, content] = p.alternative();
      return which == "as_none" ? ExportedOperand() : tensor(content);
    };
    const auto lists_of = [&](auto element) {
      return [this, element](const JsonPlace& p) { return list(p, element); };
    };
    if (kind == "as_none") return {};
    if (kind == "as_tensor") return tensor(inside);
    if (kind == "as_tensors") return list(inside, tensor);
    if (kind == "as_optional_tensor") return optional_tensor(inside);
    if (kind == "as_optional_tensors") return list(inside, optional_tensor);
    if (kind == "as_nested_tensors") return list(inside, lists_of(tensor));
    if (kind == "as_int") return integer(inside);
    if (kind == "as_ints") return list(inside, integer);
    if (kind == "as_int_lists") return list(inside, lists_of(integer));
    if (kind == "as_float") return number(inside);
    if (kind == "as_floats") return list(inside, number);
    if (kind == "as_float_lists") return list(inside, lists_of(number));
    if (kind == "as_bool") return boolean(inside);
    if (kind == "as_bools") return list(inside, boolean);
    if (kind == "as_string") return text(inside);
    if (kind == "as_strings") return list(inside, text);
    if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") return symbolic(inside);
    if (kind == "as_sym_ints" || kind == "as_sym_floats" || kind == "as_sym_bools") return list(inside, symbolic);
    if (kind == "as_complex") return literal(c10::complex<double>(inside["real"].number(), inside["imag"].number()));
    if (kind == "as_scalar_type") return literal(static_cast<int64_t>(read_dtype(inside)));
    if (kind == "as_memory_format") return literal(from_table(inside, kSavedMemoryFormats, "memory format"));
    if (kind == "as_layout") return literal(from_table(inside, kSavedLayouts, "layout"));
    if (kind == "as_device") return literal(read_device(inside));
    if (kind == "as_graph") {
      ExportedOperand operand;
      operand.kind = ExportedOperand::Kind::kGraph;
      operand.graph = std::make_shared<const ExportedGraph>(GraphReader(modules_, depth_ + 1).read(inside["graph"]));
      return operand;
    }
    if (kind == "as_custom_obj") return unsupported("an object of class " + inside["class_fqn"].text());
    if (kind == "as_operator") return unsupported("the operator " + inside.text());
    if (kind == "as_string_to_argument") return unsupported("a dictionary");
    return unsupported("an argument of kind " + kind);
  }

  void find_last_uses() {
    constexpr size_t kNever = SIZE_MAX;
    std::vector<size_t> last(graph_.value_names.size(), kNever);
    std::vector<const ExportedOperand*> pending;
    const auto note = [&](const ExportedOperand& operand, size_t position) {
      pending.push_back(&operand);
      while (!pending.empty()) {
        const ExportedOperand& next = *pending.back();
        pending.pop_back();
        if (next.kind == ExportedOperand::Kind::kValue) last[next.value] = position;
        for (const ExportedOperand& element : next.elements) pending.push_back(&element);
      }
    };
    const size_t end = graph_.nodes.size();
    for (const ExportedOperand& input : graph_.inputs) note(input, end + 1);
    for (size_t i = 0; i < end; ++i) {
      for (const ExportedOperand& output : graph_.nodes[i].outputs)
        note(output, i);  // one that nobody uses dies at once
      for (const NamedOperand& input : graph_.nodes[i].inputs) note(input.operand, i);
    }
    for (const ExportedOperand& output : graph_.outputs) note(output, end);
    for (uint32_t value = 0; value < last.size(); ++value) {
      if (last[value] < end) graph_.nodes[last[value]].unused.push_back(value);
      if (last[value] == end + 1) graph_.unused.push_back(value);
    }
  }

  ModuleStacks& modules_;
  int depth_;
  ExportedGraph graph_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

}  // namespace

c10::ScalarType read_dtype(const JsonPlace& place) {
  const int64_t number = place.integer();
  for (const SavedDtype& row : kSavedDtypes) {
    if (row.number == number) return row.dtype;
  }
  place.fail("is " + std::to_string(number) + ", which is not the number of a known dtype");
}

SymbolicSize read_symbolic_size(const JsonPlace& place) {
  const auto [kind, inside] = place.alternative();
  SymbolicSize size;
  if (kind == "as_int") {
    size.value = inside.integer();
    return size;
  }
  if (kind != "as_expr") inside.fail("is not a known kind of size");
  const JsonPlace text = inside["expr_str"];
  size.expression = SizeExpression::parse(text.text());
  if (!size.expression) text.fail("is not a size: " + text.text().substr(0, 100));
  const auto hint = inside.find("hint");
  size.value = hint ? (*hint)["as_int"].integer() : -1;
  return size;
}

SavedGeometry read_geometry(const JsonPlace& place) {
  SavedGeometry geometry;
  geometry.dtype = read_dtype(place["dtype"]);
  const JsonPlace sizes = place["sizes"];
  const JsonPlace strides = place["strides"];
  if (strides.size() != sizes.size()) strides.fail("and the sizes are not of one length");
  for (size_t i = 0; i < sizes.size(); ++i) {
    geometry.sizes.push_back(read_symbolic_size(sizes[i]));
    geometry.strides.push_back(read_symbolic_size(strides[i]));
    if (!geometry.sizes[i].expression && geometry.sizes[i].value < 0) sizes[i].fail("is a negative size");
    if (!geometry.strides[i].expression && geometry.strides[i].value < 0) strides[i].fail("is a negative stride");
  }
  geometry.offset = read_symbolic_size(place["storage_offset"]);
  geometry.requires_grad = place["requires_grad"].boolean();
  if (place["layout"].integer() != kSavedStrided) place["layout"].fail("is of a tensor that is not a strided one");
  return geometry;
}

uint32_t ModuleStacks::intern(const std::string& text) {
  const auto [known, added] = known_.try_emplace(text, static_cast<uint32_t>(stacks_.size()));
  if (!added) return known->second;
  std::vector<SavedModuleCall> stack;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    const size_t first = entry.find(',');
    const size_t last = entry.rfind(',');
    if (first == std::string_view::npos || first == last) continue;
    SavedModuleCall call{std::string(entry.substr(0, first)), std::string(entry.substr(first + 1, last - first - 1)),
                         std::string(entry.substr(entry.rfind('.') + 1))};
    // What PyTorch's own passes add is in no module.
    if (call.key == "_empty_nn_module_stack_from_metadata_hook") continue;
    // Strict export of older versions writes "L['self'].layers.0".
    constexpr std::string_view kSelf = "L['self']";
    if (call.path.starts_with(kSelf)) call.path.erase(0, kSelf.size() + (call.path.size() > kSelf.size() ? 1 : 0));
    stack.push_back(std::move(call));
  }
  stacks_.push_back(std::move(stack));
  return known->second;
}

ExportedGraph read_graph(const JsonPlace& place, ModuleStacks& modules) { return GraphReader(modules, 0).read(place); }

}  // namespace shadowgraph
