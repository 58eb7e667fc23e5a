// Names are chosen on first use, in textual order. One list of reserved words covers both languages.
#include "codegen/code_names.h"

#include <cctype>
#include <unordered_set>

#include "codegen/literals.h"
#include "ir/operators/operator_name.h"

namespace shadowgraph {
namespace {

bool is_reserved(const std::string& name) {
  static const std::unordered_set<std::string> words = {
      // C++
      "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char",
      "char8_t", "char16_t", "char32_t", "class", "compl", "concept", "const", "consteval", "constexpr", "constinit",
      "const_cast", "continue", "co_await", "co_return", "co_yield", "decltype", "default", "delete", "do", "double",
      "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if",
      "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or",
      "or_eq", "private", "protected", "public", "register", "reinterpret_cast", "requires", "return", "short",
      "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch", "template", "this",
      "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual",
      "void", "volatile", "wchar_t", "while", "xor", "xor_eq", "final", "override", "main", "errno", "assert",
      "int32_t", "int64_t", "uint8_t", "uint64_t", "size_t",
      // macros of headers; others are excluded by Scope::take()
      "unix", "linux", "signals", "slots", "emit", "stdin", "stdout", "stderr", "sched_priority", "math_errhandling",
      // Python
      "print", "match", "type", "list", "dict", "tuple", "set", "map", "range", "len", "math", "self", "super", "str",
      "object", "bytearray", "complex", "getattr", "os", "struct",
      // used by generated code
      "at", "c10", "std", "torch", "aten", "ops", "outputs", "inputs", "generator", "constants", "Inputs", "Outputs",
      "Tensors", "run", "forward", "drop", "number", "alias_of", "own", "copy_of", "checkpoint", "call_operator",
      "embedded", "shallow_copy", "functional_call", "expect", "draws", "random_state", "exchange_random_state",
      "seed_generator", "no_gradients", "with_gradients", "restore_grad_mode", "out", "named", "tensors",
      "default_generator", "below_autograd", "grad_mode", "device", "result", "detail", "device_guard",
      "StatisticsOnce", "DrawFrom"};
  return words.contains(name) || python::is_keyword(name);
}

}  // namespace

std::string plain_identifier(std::string_view text) {
  std::string name;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  while (!name.empty() && name.back() == '_') name.pop_back();
  if (name.empty()) return "value";
  if (std::isdigit(static_cast<unsigned char>(name[0])) != 0) name.insert(name.begin(), 'v');
  return name;
}

std::string identifier(std::string_view text) {
  std::string name = plain_identifier(text);
  if (is_reserved(name)) name += "_value";
  // Functions of generated code start with run_ and embedded_.
  if (name.starts_with("run_") || name.starts_with("embedded_")) name = "value_" + name;
  return name;
}

std::string function_identifier(std::string_view class_name) {
  if (const size_t colon = class_name.rfind("::"); colon != std::string_view::npos) class_name.remove_prefix(colon + 2);
  if (class_name.ends_with("Impl") && class_name.size() > 4) class_name.remove_suffix(4);
  std::string snake;
  for (size_t i = 0; i < class_name.size(); ++i) {
    const auto c = static_cast<unsigned char>(class_name[i]);
    const bool after_lower = i != 0 && std::islower(static_cast<unsigned char>(class_name[i - 1])) != 0;
    const bool before_lower =
        i != 0 && i + 1 < class_name.size() && std::islower(static_cast<unsigned char>(class_name[i + 1])) != 0;
    if (std::isupper(c) != 0 && (after_lower || before_lower)) snake += '_';
    snake += static_cast<char>(std::tolower(c));
  }
  return identifier(snake);
}

std::string Scope::take(std::string_view wanted) {
  std::string name = identifier(wanted);
  // Other first letters may begin macros of headers (INT_MAX, M_PIf, SYS_read) or constants of generated code. These
  // prefixes may begin members of libc structs, which are macros.
  const bool may_be_macro = std::islower(static_cast<unsigned char>(name[0])) == 0 || name.starts_with("st_") ||
                            name.starts_with("si_") || name.starts_with("sa_") || name.starts_with("sigev_");
  if (may_be_macro && !name.ends_with("_value")) name += "_value";
  return take_identifier(name);
}

// Counts per name, and skips numbers that are taken: x, x_2, x_3.
std::string Scope::take_identifier(const std::string& base) {
  if (taken_.try_emplace(base, 1).second) return base;
  while (true) {
    const std::string name = base + "_" + std::to_string(++taken_[base]);
    if (taken_.try_emplace(name, 1).second) return name;
  }
}

std::string short_operator_name(const std::string& target) {
  std::string_view name = short_name(target);
  while (name.starts_with('_')) name.remove_prefix(1);
  while (name.ends_with('_')) name.remove_suffix(1);
  return std::string(name);
}

// Removes the path of the block's module: inside layers.3, the weight layers.3.attn.weight is attn.weight.
std::string BlockNames::relative(std::string_view path) const {
  const std::string_view own = block_.path;
  if (own.empty() || !path.starts_with(own)) return std::string(path);
  if (path.size() == own.size()) return {};
  return std::string(path[own.size()] == '.' ? path.substr(own.size() + 1) : path);
}

// Placeholders keep the graph's names. Results are named after their operator, or after their name in the schema if
// there are several.
std::string BlockNames::wanted(uint32_t variable) const {
  const CodeVariable& v = plan_.variables[variable];
  if (v.defined == CodeLayout::kGiven) return relative(plan_.given[v.given].name);
  const CodeStep& step = plan_.steps[v.defined];
  const Graph& graph = *plan_.graph;
  std::string name = short_operator_name(graph.target(step.node).name());
  const auto& returns = graph.target(step.node).signature().returns;
  if (returns.size() == step.results.size() && returns.size() > 1) {
    for (size_t i = 0; i < returns.size(); ++i) {
      if (step.results[i] == variable && !returns[i].name.empty()) name += "_" + returns[i].name;
    }
  }
  for (const CodeStep::Copy& copy : step.copies) {
    if (copy.to == variable) name = "before_" + name;
  }
  const bool inside = v.defined >= block_.begin && v.defined < block_.end;
  const std::string path(plan_.path_of(graph.node(step.node).region));
  const std::string from_here = relative(path);
  // Results of other modules are named by the operator only, or the same block in two places would differ.
  if (from_here.empty() || (!inside && from_here == path)) return name;
  return from_here + "_" + name;
}

const std::string& BlockNames::of(uint32_t variable) {
  const auto found = names_.find(variable);
  if (found != names_.end()) return found->second;
  return names_.emplace(variable, scope_.take(wanted(variable))).first->second;
}

std::string function_name(const CodeLayout& plan, const CodeBlock& block) {
  const Graph& graph = *plan.graph;
  std::string name;
  const Region& region = graph.region(block.region);
  // Updates are the same for every module.
  if (region.kind != RegionKind::kRoot && block.phase != Graph::kOptimizer) {
    const std::string_view class_name = graph.text_or_empty(region.class_name);
    if (!class_name.empty()) {
      name = function_identifier(class_name);
    } else {
      // The last word of the path that is not a number: "transformer.h.0.ln_1" gives ln_1.
      std::string_view path = graph.text_or_empty(region.name);
      while (!path.empty()) {
        const size_t dot = path.rfind('.');
        const std::string_view word = dot == std::string_view::npos ? path : path.substr(dot + 1);
        if (word.find_first_not_of("0123456789") != std::string_view::npos) {
          name = plain_identifier(word);
          break;
        }
        path = dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
      }
      if (name.empty()) name = std::string(to_string(region.kind));
    }
  }
  const std::string& phase = graph.phase_name(block.phase);
  if (block.phase != Graph::kForward || name.empty()) name += (name.empty() ? "" : "_") + plain_identifier(phase);
  return "run_" + (block.part ? name + "_part" : name);
}

// Returns the tensors whose last use is each statement of a block. Generated code frees them there, so that its peak
// memory is the graph's.
std::vector<std::vector<uint32_t>> last_uses(const CodeLayout& plan, const CodeBlock& block,
                                             const std::vector<uint32_t>& kept) {
  std::unordered_map<uint32_t, size_t> last;
  std::vector<uint32_t> order;
  for (size_t i = 0; i < block.items.size(); ++i) {
    const auto use = [&](uint32_t variable) {
      // The map has the last use, the list the order, so that the output is deterministic.
      if (last.insert_or_assign(variable, i).second) order.push_back(variable);
    };
    const CodeBlock::Item& item = block.items[i];
    if (item.is_block()) {
      for (const uint32_t variable : plan.blocks[item.block].inputs) use(variable);
      for (const uint32_t variable : plan.blocks[item.block].outputs) use(variable);
      continue;
    }
    plan.for_each_operand(item.step, use);
    plan.for_each_constant(plan.graph->arguments(plan.steps[item.step].node), use);
    for (const CodeStep::Copy& copy : plan.steps[item.step].copies) use(copy.to);
    for (const uint32_t variable : plan.steps[item.step].results) use(variable);
  }
  // Outputs of the block are needed at its end.
  for (const uint32_t variable : block.outputs) last.erase(variable);
  for (const uint32_t variable : kept) last.erase(variable);
  std::vector<std::vector<uint32_t>> at(block.items.size());
  for (const uint32_t variable : order) {
    const auto found = last.find(variable);
    if (found != last.end() && plan.variables[variable].kind == ValueKind::kTensor)
      at[found->second].push_back(variable);
  }
  return at;
}

}  // namespace shadowgraph
