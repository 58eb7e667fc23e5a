#include "kernels/compiler/program_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/compiler/vector_math.h"

namespace shadowgraph {
namespace {

using Operation = KernelOperation;
using c10::ScalarType;

const char* cpp_type(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Byte:
      return "unsigned char";
    case ScalarType::Char:
      return "signed char";
    case ScalarType::Short:
      return "short";
    case ScalarType::Int:
      return "i32";
    case ScalarType::Long:
      return "i64";
    case ScalarType::Float:
      return "float";
    case ScalarType::Double:
      return "double";
    default:
      throw KernelError(std::string("a kernel cannot compute with ") + c10::toString(type));
  }
}

const char* stored_type(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
      return "unsigned char";
    case ScalarType::BFloat16:
      return "u16";
    case ScalarType::Half:
      return "_Float16";
    default:
      return cpp_type(type);
  }
}

bool is_reduction(Operation operation) {
  return operation == Operation::kRowSum || operation == Operation::kRowMaximum;
}

std::string literal(double number) {
  if (std::isnan(number)) return "__builtin_nan(\"\")";
  if (std::isinf(number)) return number > 0 ? "__builtin_inf()" : "-__builtin_inf()";
  return fmt::format("{:a}", number);
}

class ProgramWriter {
 public:
  explicit ProgramWriter(const KernelProgram& program) : program_(program), places_(program.expressions.size()) {
    for (uint32_t i = 0; i < places_.size(); ++i) place(i);
  }

  std::string run() {
    line(
        "{}extern \"C\" __attribute__((visibility(\"default\"))) void {}(void* const* data, const i64* sizes, "
        "const i64* strides, const i64* scalars, i64 begin, i64 end) {{",
        vector_math_source(), kKernelSymbol);
    const uint32_t rank = program_.outer_rank;
    const bool by_elements = rank == 0 && !program_.has_reductions();
    write_level(kKernelLevel, 0, "  ");
    if (by_elements) {
      pointers("  ", {});
      write_level(kRowLevel, 0, "  ");
      loop("begin", "end", 0, "  ", true);
      line("}}");
      return std::move(out_);
    }
    line("  const i64 N = sizes[{}];", rank);
    for (uint32_t d = rank; d-- > 0;) {
      if (d + 1 == rank) line("  i64 rest = begin;");
      line("  i64 i{0} = {1}; {2}", d, d == 0 ? "rest" : fmt::format("rest % sizes[{}]", d),
           d == 0 ? "" : fmt::format("rest /= sizes[{}];", d));
    }
    line("  for (i64 row = begin; row < end; ++row) {{");
    std::vector<std::string> counters;
    for (uint32_t d = 0; d < rank; ++d) counters.push_back(fmt::format("i{}", d));
    pointers("    ", counters);
    for (uint32_t phase = 0; phase <= last_phase_; ++phase) {
      write_level(kRowLevel, phase, "    ");
      if (phase < last_phase_) reduce(phase);
    }
    for (const KernelStore& store : program_.stores) {
      if (of_row(store)) write_store(store, "    ", true);
    }
    loop("0", "N", last_phase_, "    ", false);
    std::string carry;
    for (uint32_t d = rank; d-- > 0;) {
      line("    {}++i{};{}", carry, d, d == 0 ? "" : fmt::format(" if (i{0} == sizes[{0}]) {{ i{0} = 0;", d));
    }
    if (rank > 1) line("    {}", std::string(rank - 1, '}'));
    line("  }}\n}}");
    return std::move(out_);
  }

 private:
  static constexpr uint8_t kKernelLevel = 0;
  static constexpr uint8_t kRowLevel = 1;
  static constexpr uint8_t kElementLevel = 2;
  struct Place {
    uint8_t level = kKernelLevel;
    uint32_t phase = 0;  // reductions that come before it
  };

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  static uint32_t arity(Operation operation) {
    if (operation <= Operation::kConstant || operation == Operation::kRowSize) return 0;
    if (operation >= Operation::kAdd && operation <= Operation::kLessEqual) return 2;
    return operation == Operation::kMultiplyAdd || operation == Operation::kSelect ? 3 : 1;
  }

  void place(uint32_t i) {
    const KernelExpression& e = program_.expressions[i];
    Place& own = places_[i];
    for (uint32_t k = 0; k < arity(e.operation); ++k) {
      const Place& operand = places_[e.operands[k]];
      own.level = std::max(own.level, operand.level);
      own.phase = std::max(own.phase, operand.phase);
    }
    if (e.operation == Operation::kLoad) {
      own.level = program_.operands[e.index].layout == KernelLayout::kBroadcast ? kRowLevel : kElementLevel;
    } else if (e.operation == Operation::kRowSize) {
      own.level = kRowLevel;
    } else if (is_reduction(e.operation)) {
      own.level = kRowLevel;
      ++own.phase;
    }
    last_phase_ = std::max(last_phase_, own.phase);
  }

  void pointers(const char* indent, const std::vector<std::string>& counters) {
    const uint32_t dims = program_.outer_rank + 1;
    for (uint32_t k = 0; k < program_.operands.size(); ++k) {
      const KernelOperand& operand = program_.operands[k];
      std::string offset;
      for (uint32_t d = 0; d < counters.size(); ++d) {
        offset += fmt::format(" + {} * strides[{}]", counters[d], k * dims + d);
      }
      line("{0}{3}{1}* const p{2} = ({3}{1}*)data[{2}]{4};", indent, stored_type(operand.dtype), k,
           operand.written ? "" : "const ", offset);
      if (operand.layout == KernelLayout::kStrided)
        line("{}const i64 t{} = strides[{}];", indent, k, k * dims + dims - 1);
    }
  }

  std::string element(uint32_t operand) const {
    switch (program_.operands[operand].layout) {
      case KernelLayout::kContiguous:
        return fmt::format("p{}[j]", operand);
      case KernelLayout::kBroadcast:
        return fmt::format("p{}[0]", operand);
      default:
        return fmt::format("p{0}[j * t{0}]", operand);
    }
  }

  std::string load(uint32_t operand) const {
    const ScalarType dtype = program_.operands[operand].dtype;
    if (dtype == ScalarType::BFloat16) return fmt::format("bf16_load({})", element(operand));
    if (dtype == ScalarType::Half) return fmt::format("(float){}", element(operand));
    if (dtype == ScalarType::Bool) return fmt::format("({} != 0)", element(operand));
    return element(operand);
  }

  std::string binary(const KernelExpression& e, const char* sign) const {
    const char* type = cpp_type(e.type);
    return fmt::format("({})(e{} {} e{})", type, e.operands[0], sign, e.operands[1]);
  }

  std::string text_of(const KernelExpression& e) const {
    const std::string a = fmt::format("e{}", e.operands[0]);
    const std::string b = fmt::format("e{}", e.operands[1]);
    const char* type = cpp_type(e.type);
    switch (e.operation) {
      case Operation::kLoad:
        return load(e.index);
      case Operation::kScalar:
        return e.type == ScalarType::Double ? fmt::format("bits_d(scalars[{}])", e.index)
                                            : fmt::format("scalars[{}]", e.index);
      case Operation::kConstant:
        return fmt::format("({}){}", type, literal(e.number));
      case Operation::kConvert:
        return e.type == ScalarType::Bool ? fmt::format("({} != 0)", a) : fmt::format("({}){}", type, a);
      case Operation::kRound:
        return fmt::format("{}({})", e.rounding == ScalarType::Half ? "f16_round" : "bf16_round", a);
      case Operation::kNegate:
        return fmt::format("({})-{}", type, a);
      case Operation::kAbsolute:
        return fmt::format("absolute({})", a);
      case Operation::kSquareRoot:
        return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_sqrtf" : "__builtin_sqrt", a);
      case Operation::kFloor:
        return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_floorf" : "__builtin_floor", a);
      case Operation::kCeil:
        return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_ceilf" : "__builtin_ceil", a);
      case Operation::kTruncate:
        return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_truncf" : "__builtin_trunc", a);
      case Operation::kRoundToEven:
        return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_rintf" : "__builtin_rint", a);
      case Operation::kNot:
        return e.type == ScalarType::Bool ? fmt::format("!{}", a) : fmt::format("({})~{}", type, a);
      case Operation::kExponential:
        return fmt::format("exp_({})", a);
      case Operation::kExponentialMinusOne:
        return fmt::format("expm1_({})", a);
      case Operation::kLogarithm:
        return fmt::format("log_({})", a);
      case Operation::kTangentHyperbolic:
        return fmt::format("tanh_({})", a);
      case Operation::kErrorFunction:
        return fmt::format("erf_({})", a);
      case Operation::kAdd:
        return binary(e, "+");
      case Operation::kSubtract:
        return binary(e, "-");
      case Operation::kMultiply:
        return binary(e, "*");
      case Operation::kDivide:
        return binary(e, "/");
      case Operation::kMaximum:
        return fmt::format("maximum<{}>({}, {})", type, a, b);
      case Operation::kMinimum:
        return fmt::format("minimum<{}>({}, {})", type, a, b);
      case Operation::kAnd:
        return binary(e, "&");
      case Operation::kOr:
        return binary(e, "|");
      case Operation::kExclusiveOr:
        return binary(e, "^");
      case Operation::kEqual:
        return binary(e, "==");
      case Operation::kNotEqual:
        return binary(e, "!=");
      case Operation::kLess:
        return binary(e, "<");
      case Operation::kLessEqual:
        return binary(e, "<=");
      case Operation::kMultiplyAdd:
        return fmt::format("{}({}, {}, e{})", e.type == ScalarType::Float ? "__builtin_fmaf" : "__builtin_fma", a, b,
                           e.operands[2]);
      case Operation::kSelect:
        return fmt::format("({} ? {} : e{})", a, b, e.operands[2]);
      case Operation::kRowSize:
        return "(double)N";
      case Operation::kRowSum:
      case Operation::kRowMaximum:
        break;
    }
    TORCH_INTERNAL_ASSERT(false, "a reduction is no expression of its own");
  }

  void write_expression(uint32_t i, const char* indent) {
    const KernelExpression& e = program_.expressions[i];
    line("{}const {} e{} = {};", indent, cpp_type(e.type), i, text_of(e));
  }

  void write_level(uint8_t level, uint32_t phase, const char* indent) {
    for (uint32_t i = 0; i < places_.size(); ++i) {
      if (places_[i].level != level || places_[i].phase != phase) continue;
      if (!is_reduction(program_.expressions[i].operation)) write_expression(i, indent);
    }
  }

  // What elements of the loop after `phase` reductions must be computed for `wanted`.
  std::vector<bool> needed(std::vector<bool> wanted) const {
    for (auto i = static_cast<uint32_t>(places_.size()); i-- > 0;) {
      if (!wanted[i] || is_reduction(program_.expressions[i].operation)) continue;
      for (uint32_t k = 0; k < arity(program_.expressions[i].operation); ++k) {
        wanted[program_.expressions[i].operands[k]] = true;
      }
    }
    return wanted;
  }

  void write_elements(const std::vector<bool>& wanted, const char* indent) {
    for (uint32_t i = 0; i < places_.size(); ++i) {
      if (wanted[i] && places_[i].level == kElementLevel) write_expression(i, indent);
    }
  }

  void reduce(uint32_t phase) {
    std::vector<bool> wanted(places_.size());
    std::vector<uint32_t> own;
    for (uint32_t i = 0; i < places_.size(); ++i) {
      const KernelExpression& e = program_.expressions[i];
      if (!is_reduction(e.operation) || places_[i].phase != phase + 1) continue;
      own.push_back(i);
      wanted[e.operands[0]] = true;
    }
    std::string clauses;
    for (const uint32_t i : own) {
      const KernelExpression& e = program_.expressions[i];
      if (e.operation == Operation::kRowSum) {
        line("    {} a{} = 0;", e.type == ScalarType::Float ? "double" : cpp_type(e.type), i);
        clauses += fmt::format(" reduction(+:b{})", i);
      } else {
        // Floating-point numbers by integers in their order, a NaN above all: maxima that vectorise and keep NaNs.
        const bool wide = e.type == ScalarType::Double;
        line("    {} a{} = {};", wide ? "i64" : "i32", i, wide ? "(-0x7fffffffffffffffLL - 1)" : "(-0x7fffffff - 1)");
        clauses += fmt::format(" reduction(max:a{})", i);
      }
    }
    // Short sums in the type itself, their sums in double: no worse than eager's cascade.
    line("    for (i64 first = 0; first < N; first += 512) {{");
    line("      const i64 past = first + 512 < N ? first + 512 : N;");
    for (const uint32_t i : own) {
      const KernelExpression& e = program_.expressions[i];
      if (e.operation == Operation::kRowSum) line("      {} b{} = 0;", cpp_type(e.type), i);
    }
    line("_Pragma(\"omp simd{}\")", clauses);
    line("      for (i64 j = first; j < past; ++j) {{");
    write_elements(needed(wanted), "        ");
    for (const uint32_t i : own) {
      const KernelExpression& e = program_.expressions[i];
      const uint32_t operand = e.operands[0];
      if (e.operation == Operation::kRowSum) {
        line("        b{} += e{};", i, operand);
      } else {
        line("        const auto o{0} = order_of(e{1}); a{0} = o{0} > a{0} ? o{0} : a{0};", i, operand);
      }
    }
    line("      }}");
    for (const uint32_t i : own) {
      if (program_.expressions[i].operation == Operation::kRowSum) line("      a{0} += b{0};", i);
    }
    line("    }}");
    for (const uint32_t i : own) {
      const KernelExpression& e = program_.expressions[i];
      const bool sum = e.operation == Operation::kRowSum;
      line("    const {0} e{1} = {2}(a{1});", cpp_type(e.type), i, sum ? cpp_type(e.type) : "of_order");
    }
  }

  bool of_row(const KernelStore& store) const {
    return program_.operands[store.operand].layout == KernelLayout::kBroadcast;
  }

  void write_store(const KernelStore& store, const char* indent, bool row_level) {
    const ScalarType dtype = program_.operands[store.operand].dtype;
    std::string value = fmt::format("e{}", store.expression);
    if (dtype == ScalarType::BFloat16) {
      value = fmt::format("bf16_bits({})", value);
    } else {
      value = fmt::format("({}){}", stored_type(dtype), value);
    }
    line("{}{} = {};", indent, row_level ? fmt::format("p{}[0]", store.operand) : element(store.operand), value);
  }

  void loop(const char* from, const char* to, uint32_t phase, const char* indent, bool all) {
    std::vector<bool> wanted(places_.size());
    bool any = false;
    for (const KernelStore& store : program_.stores) {
      if (!all && of_row(store)) continue;
      wanted[store.expression] = true;
      any = true;
    }
    if (!any) return;
    const std::string inner = std::string(indent) + "  ";
    line("_Pragma(\"omp simd\")");
    line("{}for (i64 j = {}; j < {}; ++j) {{", indent, from, to);
    write_elements(needed(wanted), inner.c_str());
    for (const KernelStore& store : program_.stores) {
      if (all || !of_row(store)) write_store(store, inner.c_str(), false);
    }
    line("{}}}", indent);
  }

  const KernelProgram& program_;
  std::vector<Place> places_;
  uint32_t last_phase_ = 0;
  std::string out_;
};

}  // namespace

std::string program_source(const KernelProgram& program) { return ProgramWriter(program).run(); }

}  // namespace shadowgraph
