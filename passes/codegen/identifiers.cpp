// Makes identifiers of paths and class names. One list of reserved words serves both languages, so a graph gives the
// same names in C++ and in Python.
#include "passes/codegen/identifiers.h"

#include <cctype>
#include <unordered_set>

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
      "void", "volatile", "wchar_t", "while", "xor", "xor_eq", "final", "override", "main", "errno", "assert", "NULL",
      "EOF", "NAN", "INFINITY", "unix", "linux", "signals", "slots", "emit", "stdin", "stdout", "stderr",
      // Python
      "None", "True", "False", "as", "async", "await", "def", "del", "elif", "except", "from", "global", "import", "in",
      "is", "lambda", "nonlocal", "pass", "raise", "with", "yield", "print", "match", "type", "list", "dict", "tuple",
      "set", "map", "range", "len", "math", "self", "super", "str", "object",
      // what the generated code itself uses
      "at", "c10", "std", "torch", "aten", "ops", "outputs", "inputs", "generator", "constants", "Inputs", "Outputs",
      "Tensors", "run", "forward", "drop", "number", "alias_of", "own", "copy_of", "checkpoint", "call_operator",
      "embedded", "shallow_copy", "functional_call", "expect", "draws", "random_state", "exchange_random_state",
      "no_gradients", "with_gradients", "restore_grad_mode", "out", "named", "tensors", "default_generator",
      "below_autograd", "grad_mode", "device", "result", "detail", "device_guard"};
  return words.contains(name);
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
  // Functions of the generated code begin with run_ and embedded_.
  if (name.starts_with("run_") || name.starts_with("embedded_")) name = "value_" + name;
  return name;
}

// A class becomes a function in snake case: BertSelfAttentionImpl gives bert_self_attention.
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

std::string Scope::take(std::string_view wanted) { return take_identifier(identifier(wanted)); }

// Counts per name, and skips numbers that a path has taken: x, x_2, x_3.
std::string Scope::take_identifier(const std::string& base) {
  if (taken_.try_emplace(base, 1).second) return base;
  while (true) {
    const std::string name = base + "_" + std::to_string(++taken_[base]);
    if (taken_.try_emplace(name, 1).second) return name;
  }
}

}  // namespace shadowgraph
