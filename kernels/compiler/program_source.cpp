#include "kernels/compiler/program_source.h"

#include <algorithm>

#include "kernels/compiler/program_writer.h"
#include "kernels/compiler/vector_math.h"

namespace shadowgraph {

using Operation = KernelOperation;
using c10::ScalarType;

std::string ProgramWriter::run() {
  line(
      "{}extern \"C\" __attribute__((visibility(\"default\"))) void {}(void* const* data, const i64* sizes, "
      "const i64* strides, const i64* scalars, i64 begin, i64 end) {{",
      vector_math_source(), kKernelSymbol);
  const uint32_t row = program_.outer_rank + program_.reduced_rank;
  line("  const i64 N = sizes[{}];", row);
  std::string count = program_.columns ? "" : "N";
  for (uint32_t d = program_.outer_rank; d < row; ++d)
    count += fmt::format("{}sizes[{}]", count.empty() ? "" : " * ", d);
  line("  const double count = (double)({});", count.empty() ? "1" : count);
  if (program_.has_checks()) line("  i64 bad = 0;");
  write_level(ProgramLevels::kKernel, 0, "  ");
  if (program_.columns) {
    rows([this] { column_blocks(); });
  } else if (program_.runs_by_elements()) {
    pointers("  ", "");
    write_level(ProgramLevels::kRow, 0, "  ");
    element_loop("begin", "end", 0);
  } else {
    for (const uint32_t i : levels_.kept())
      line("  {0}* const k{1} = ({0}*)__builtin_malloc(N * sizeof({0}));", cpp_type(type_of(i)), i);
    rows([this] { one_row(); });
    for (const uint32_t i : levels_.kept()) line("  __builtin_free(k{});", i);
  }
  if (program_.has_checks()) line("  if (bad) *(i64*)data[{}] = 1;", program_.operands.size());
  line("}}");
  return std::move(out_);
}

// ---- Pointers and elements

void ProgramWriter::pointers(const char* indent, const std::string& column) {
  const uint32_t dims = program_.outer_rank + program_.reduced_rank + 1;
  for (uint32_t k = 0; k < program_.operands.size(); ++k) {
    const KernelOperand& operand = program_.operands[k];
    if (operand.layout == KernelLayout::kStrided)
      line("{}const i64 t{} = strides[{}];", indent, k, k * dims + dims - 1);
    if (program_.reduced_rank > 0) line("{}const i64 s{} = strides[{}];", indent, k, k * dims + dims - 2);
    std::string offset;
    for (uint32_t d = 0; d < program_.outer_rank; ++d) offset += fmt::format(" + i{} * strides[{}]", d, k * dims + d);
    if (!column.empty() && operand.layout == KernelLayout::kContiguous) offset += " + " + column;
    if (!column.empty() && operand.layout == KernelLayout::kStrided) offset += fmt::format(" + {} * t{}", column, k);
    line("{0}{3}{1}* const p{2} = ({3}{1}*)data[{2}]{4};", indent, stored_type(operand.dtype), k,
         operand.written ? "" : "const ", offset);
  }
}

void ProgramWriter::open_nest(uint32_t inner) {
  for (uint32_t d = 0; d + inner < program_.reduced_rank; ++d) {
    line("for (i64 c{0} = 0; c{0} < sizes[{1}]; ++c{0}) {{", d, program_.outer_rank + d);
  }
  if (inner == 0) nest_pointers("");
}

void ProgramWriter::close_nest(uint32_t inner) {
  line("{}", std::string(program_.reduced_rank - inner, '}'));
  access_ = 'p';
}

void ProgramWriter::nest_pointers(const std::string& innermost) {
  if (program_.reduced_rank == 0) return;
  const uint32_t dims = program_.outer_rank + program_.reduced_rank + 1;
  for (uint32_t k = 0; k < program_.operands.size(); ++k) {
    std::string offset;
    for (uint32_t d = 0; d < program_.reduced_rank; ++d) {
      const bool last = d + 1 == program_.reduced_rank && !innermost.empty();
      offset += fmt::format(" + {} * strides[{}]", last ? innermost : fmt::format("c{}", d),
                            k * dims + program_.outer_rank + d);
    }
    line("auto* const x{0} = p{0}{1};", k, offset);
  }
  access_ = 'x';
}

std::string ProgramWriter::element(uint32_t operand) const {
  const std::string ahead = ahead_ == 0 ? "" : fmt::format("{} * s{} + ", ahead_, operand);
  switch (program_.operands[operand].layout) {
    case KernelLayout::kContiguous:
      return fmt::format("{}{}[{}j]", access_, operand, ahead);
    case KernelLayout::kBroadcast:
      return fmt::format("{}{}[{}0]", access_, operand, ahead);
    default:
      return fmt::format("{0}{1}[{2}j * t{1}]", access_, operand, ahead);
  }
}

void ProgramWriter::simd(const std::vector<bool>& wanted, const std::string& clauses) {
  for (uint32_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i] || program_.expressions[i].operation != Operation::kInRange) continue;
    if (levels_.level(i) == ProgramLevels::kElement || levels_.is_column(i)) return;  // it writes to what all share
  }
  line("_Pragma(\"omp simd{}\")", clauses);
}

void ProgramWriter::write_expression(uint32_t i, const char* indent) {
  const KernelExpression& e = program_.expressions[i];
  const bool is_read = e.operation == Operation::kLoad || e.operation == Operation::kGather;
  const std::string text = expression_text(program_, e, is_read ? element(e.index) : "");
  line("{}const {} e{} = {};", indent, cpp_type(e.type), i, text);
}

void ProgramWriter::write_level(uint8_t level, uint32_t phase, const char* indent) {
  for (uint32_t i = 0; i < program_.expressions.size(); ++i) {
    if (levels_.level(i) != level || levels_.phase(i) != phase) continue;
    if (!is_reduction(program_.expressions[i].operation)) write_expression(i, indent);
  }
}

void ProgramWriter::write_elements(const std::vector<bool>& wanted, uint32_t phase) {
  for (uint32_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    if (levels_.is_column(i)) {
      line("const {} e{} = m{}[j];", cpp_type(type_of(i)), i, i);
    } else if (levels_.level(i) == ProgramLevels::kElement && levels_.is_loaded(i, phase)) {
      line("const {} e{} = k{}[j];", cpp_type(type_of(i)), i, i);
    } else if (levels_.level(i) == ProgramLevels::kElement) {
      write_expression(i, "");
      if (levels_.is_kept_by(i, phase)) line("k{0}[j] = e{0};", i);
    }
  }
  for (const KernelStore& store : levels_.element_stores(phase)) write_store(store);
}

void ProgramWriter::write_store(const KernelStore& store) {
  line("{} = {};", element(store.operand), stored_text(program_, store));
}

void ProgramWriter::element_loop(const char* from, const char* to, uint32_t phase) {
  if (levels_.element_stores(phase).empty()) return;
  const std::vector<bool> wanted = levels_.needed_by_loop(phase);
  open_nest(0);
  simd(wanted);
  line("for (i64 j = {}; j < {}; ++j) {{", from, to);
  write_elements(wanted, phase);
  line("}}");
  close_nest(0);
}

// ---- Rows

template <class Body>
void ProgramWriter::rows(Body body) {
  const uint32_t rank = program_.outer_rank;
  if (program_.columns && rank == 0) return body();
  for (uint32_t d = rank; d-- > 0;) {
    if (d + 1 == rank) line("  i64 rest = begin;");
    line("  i64 i{0} = {1}; {2}", d, d == 0 ? "rest" : fmt::format("rest % sizes[{}]", d),
         d == 0 ? "" : fmt::format("rest /= sizes[{}];", d));
  }
  line("  for (i64 row = begin; row < end; ++row) {{");
  body();
  std::string carry;
  for (uint32_t d = rank; d-- > 0;) {
    line("    {}++i{};{}", carry, d, d == 0 ? "" : fmt::format(" if (i{0} == sizes[{0}]) {{ i{0} = 0;", d));
  }
  if (rank > 1) line("    {}", std::string(rank - 1, '}'));
  line("  }}");
}

void ProgramWriter::one_row() {
  pointers("    ", "");
  for (uint32_t phase = 0; phase <= levels_.last_phase(); ++phase) {
    write_level(ProgramLevels::kRow, phase, "    ");
    if (phase < levels_.last_phase()) reduce(phase);
  }
  for (const KernelStore& store : levels_.row_stores()) write_store(store);
  element_loop("0", "N", levels_.last_phase());
}

// Orders floating-point numbers as integers, a NaN above all: such maxima vectorise and keep NaNs.
const char* ProgramWriter::order_type(uint32_t i) const { return type_of(i) == ScalarType::Double ? "i64" : "i32"; }

const char* ProgramWriter::lowest(uint32_t i) const {
  return type_of(i) == ScalarType::Double ? "(-0x7fffffffffffffffLL - 1)" : "(-0x7fffffff - 1)";
}

const char* ProgramWriter::short_type(uint32_t i) const { return is_sum(i) ? cpp_type(type_of(i)) : order_type(i); }

const char* ProgramWriter::long_type(uint32_t i) const {
  return is_sum(i) && type_of(i) == ScalarType::Float ? "double" : short_type(i);
}

// Takes one more value into an accumulator.
void ProgramWriter::accumulate(uint32_t i, const std::string& into, const std::string& value) {
  if (is_sum(i)) {
    line("{} += {};", into, value);
  } else {
    line("{{ const auto o = {1}; {0} = o > {0} ? o : {0}; }}", into, value);
  }
}

std::string ProgramWriter::value_for(uint32_t i) const {
  const uint32_t operand = program_.expressions[i].operands[0];
  return is_sum(i) ? fmt::format("e{}", operand) : fmt::format("order_of(e{})", operand);
}

std::string ProgramWriter::result_of(uint32_t i, const std::string& accumulator) const {
  return is_sum(i) ? fmt::format("({}){}", cpp_type(type_of(i)), accumulator)
                   : fmt::format("of_order({})", accumulator);
}

// Adds short sums in the type itself and their sums in double, which is no worse than eager's cascade. Four sums beside
// one another take longer (45 us for 30, rows of 256): adding them up at a row's end is what costs.
void ProgramWriter::reduce(uint32_t phase) {
  const std::vector<uint32_t> own = levels_.reductions(phase);
  const std::vector<bool> wanted = levels_.needed_by_loop(phase);
  std::string clauses;
  for (const uint32_t i : own) {
    clauses += fmt::format(" reduction({}:b{})", is_sum(i) ? "+" : "max", i);
    line("{} a{} = {};", long_type(i), i, neutral(i));
  }
  open_nest(0);
  line("for (i64 first = 0; first < N; first += 512) {{");
  line("const i64 past = first + 512 < N ? first + 512 : N;");
  for (const uint32_t i : own) line("{} b{} = {};", short_type(i), i, neutral(i));
  simd(wanted, clauses);
  line("for (i64 j = first; j < past; ++j) {{");
  write_elements(wanted, phase);
  for (const uint32_t i : own) accumulate(i, fmt::format("b{}", i), value_for(i));
  line("}}");
  for (const uint32_t i : own) accumulate(i, fmt::format("a{}", i), fmt::format("b{}", i));
  line("}}");
  close_nest(0);
  for (const uint32_t i : own) line("const {} e{} = {};", cpp_type(type_of(i)), i, result_of(i, fmt::format("a{}", i)));
}

std::string program_source(const KernelProgram& program) { return ProgramWriter(program).run(); }

}  // namespace shadowgraph
