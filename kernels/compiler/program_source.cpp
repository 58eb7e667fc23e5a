#include "kernels/compiler/program_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/compiler/expression_source.h"
#include "kernels/compiler/vector_math.h"

namespace shadowgraph {
namespace {

using Operation = KernelOperation;
using c10::ScalarType;

// Rows that a reduction of columns takes at a time, so that sums are loaded and stored less often.
constexpr uint32_t kWays = 4;

class ProgramWriter {
 public:
  explicit ProgramWriter(const KernelProgram& program)
      : program_(program), kept_(program.expressions.size()), places_(program.expressions.size()) {
    for (uint32_t i = 0; i < places_.size(); ++i) place(i);
    if (!program_.columns && program_.reduced_rank == 0) choose_kept();
  }

  std::string run() {
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
    write_level(kKernelLevel, 0, "  ");
    if (program_.columns) {
      rows([this] { column_blocks(); });
    } else if (program_.runs_by_elements()) {
      pointers("  ", "");
      write_level(kRowLevel, 0, "  ");
      element_loop("begin", "end", 0, true);
    } else {
      for (const uint32_t i : kept()) {
        const char* type = cpp_type(program_.expressions[i].type);
        line("  {0}* const k{1} = ({0}*)__builtin_malloc(N * sizeof({0}));", type, i);
      }
      rows([this] { one_row(); });
      for (const uint32_t i : kept()) line("  __builtin_free(k{});", i);
    }
    if (program_.has_checks()) line("  if (bad) *(i64*)data[{}] = 1;", program_.operands.size());
    line("}}");
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

  // ---- What is computed where

  void place(uint32_t i) {
    const KernelExpression& e = program_.expressions[i];
    Place& own = places_[i];
    for (uint32_t k = 0; k < arity(e.operation); ++k) {
      const Place& operand = places_[e.operands[k]];
      own.level = std::max(own.level, operand.level);
      own.phase = std::max(own.phase, operand.phase);
    }
    if (e.operation == Operation::kColumn) own.level = kElementLevel;
    if (e.operation == Operation::kLoad || e.operation == Operation::kGather) {
      const bool of_row = program_.operands[e.index].layout == KernelLayout::kBroadcast;
      // Along other reduced dimensions what the row broadcasts changes.
      own.level = std::max(own.level, of_row && program_.reduced_rank == 0 ? kRowLevel : kElementLevel);
    } else if (is_reduction(e.operation)) {
      own.level = kRowLevel;
      ++own.phase;
    }
    last_phase_ = std::max(last_phase_, own.phase);
  }

  // With columns, a value of the row is one for each of its elements.
  bool is_column(uint32_t i) const { return program_.columns && places_[i].level == kRowLevel; }

  // What elements must be computed for `wanted`.
  std::vector<bool> needed(std::vector<bool> wanted, uint32_t phase) const {
    for (auto i = static_cast<uint32_t>(places_.size()); i-- > 0;) {
      const KernelExpression& e = program_.expressions[i];
      if (!wanted[i] || is_reduction(e.operation) || is_column(i) || is_loaded(i, phase)) continue;
      for (uint32_t k = 0; k < arity(e.operation); ++k) wanted[e.operands[k]] = true;
    }
    return wanted;
  }

  std::vector<bool> needed_by_loop(uint32_t phase) const {
    std::vector<bool> wanted(places_.size());
    if (phase == last_phase_) {
      for (const KernelStore& store : program_.stores) {
        if (!of_row(store) || !program_.has_reductions()) wanted[store.expression] = true;
      }
    } else {
      for (const uint32_t i : reductions(phase)) wanted[program_.expressions[i].operands[0]] = true;
    }
    return needed(std::move(wanted), phase);
  }

  std::vector<uint32_t> reductions(uint32_t phase) const {
    std::vector<uint32_t> own;
    for (uint32_t i = 0; i < places_.size(); ++i) {
      if (is_reduction(program_.expressions[i].operation) && places_[i].phase == phase + 1) own.push_back(i);
    }
    return own;
  }

  bool is_costly_loop(const std::vector<bool>& wanted) const {
    for (uint32_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] && places_[i].level == kElementLevel && is_costly(program_.expressions[i].operation)) return true;
    }
    return false;
  }

  // Of what costs and is wanted by the loops of several reductions, the last: the exponentials of a softmax.
  void choose_kept() {
    const auto loops_of = [this](uint32_t i) {
      std::vector<uint32_t> loops;
      for (uint32_t phase = 0; phase <= last_phase_; ++phase) {
        if (needed_by_loop(phase)[i]) loops.push_back(phase);
      }
      return loops;
    };
    for (auto i = static_cast<uint32_t>(places_.size()); last_phase_ > 0 && i-- > 0;) {
      if (places_[i].level != kElementLevel || !is_costly(program_.expressions[i].operation)) continue;
      const auto loops = loops_of(i);
      if (loops.size() > 1) kept_[i] = loops[0] + 1;
    }
  }
  bool is_loaded(uint32_t i, uint32_t phase) const { return kept_[i] != 0 && kept_[i] <= phase; }
  std::vector<uint32_t> kept() const {
    std::vector<uint32_t> out;
    for (uint32_t i = 0; i < kept_.size(); ++i) {
      if (kept_[i] != 0) out.push_back(i);
    }
    return out;
  }

  // ---- Pointers and elements

  void pointers(const char* indent, const std::string& column) {
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

  // Loops over reduced dimensions but the last `inner`, with pointers x0 ... there.
  void open_nest(uint32_t inner) {
    for (uint32_t d = 0; d + inner < program_.reduced_rank; ++d) {
      line("for (i64 c{0} = 0; c{0} < sizes[{1}]; ++c{0}) {{", d, program_.outer_rank + d);
    }
    if (inner == 0) nest_pointers("");
  }
  void close_nest(uint32_t inner) {
    line("{}", std::string(program_.reduced_rank - inner, '}'));
    access_ = 'p';
  }
  void nest_pointers(const std::string& innermost) {
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

  std::string element(uint32_t operand) const {
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

  static bool is_read(Operation operation) { return operation == Operation::kLoad || operation == Operation::kGather; }

  // A loop over elements; one that checks indices is no vector's.
  void simd(const std::string& clauses = "") {
    if (!program_.has_checks()) line("_Pragma(\"omp simd{}\")", clauses);
  }

  void write_expression(uint32_t i, const char* indent) {
    const KernelExpression& e = program_.expressions[i];
    const std::string text = expression_text(program_, e, is_read(e.operation) ? element(e.index) : "");
    line("{}const {} e{} = {};", indent, cpp_type(e.type), i, text);
  }

  void write_level(uint8_t level, uint32_t phase, const char* indent) {
    for (uint32_t i = 0; i < places_.size(); ++i) {
      if (places_[i].level != level || places_[i].phase != phase) continue;
      if (!is_reduction(program_.expressions[i].operation)) write_expression(i, indent);
    }
  }

  void write_elements(const std::vector<bool>& wanted, uint32_t phase) {
    for (uint32_t i = 0; i < places_.size(); ++i) {
      if (!wanted[i]) continue;
      if (is_column(i)) {
        line("const {} e{} = m{}[j];", cpp_type(program_.expressions[i].type), i, i);
      } else if (places_[i].level == kElementLevel && is_loaded(i, phase)) {
        line("const {} e{} = k{}[j];", cpp_type(program_.expressions[i].type), i, i);
      } else if (places_[i].level == kElementLevel) {
        write_expression(i, "");
        if (kept_[i] == phase + 1) line("k{0}[j] = e{0};", i);
      }
    }
  }

  bool of_row(const KernelStore& store) const {
    return places_[store.expression].level != kElementLevel && is_single(store);
  }
  // One element for what is reduced.
  bool is_single(const KernelStore& store) const {
    return program_.columns ? is_column(store.expression)
                            : program_.operands[store.operand].layout == KernelLayout::kBroadcast;
  }

  void write_store(const KernelStore& store, bool row) {
    line("{} = {};", row ? fmt::format("p{}[0]", store.operand) : element(store.operand), stored_text(program_, store));
  }

  void element_loop(const char* from, const char* to, uint32_t phase, bool all) {
    if (!all && std::ranges::all_of(program_.stores, [&](const KernelStore& s) { return of_row(s); })) return;
    open_nest(0);
    simd();
    line("for (i64 j = {}; j < {}; ++j) {{", from, to);
    write_elements(needed_by_loop(phase), phase);
    for (const KernelStore& store : program_.stores) {
      if (all || !of_row(store)) write_store(store, false);
    }
    line("}}");
    close_nest(0);
  }

  // ---- Rows

  template <class Body>
  void rows(Body body) {
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

  void one_row() {
    pointers("    ", "");
    for (uint32_t phase = 0; phase <= last_phase_; ++phase) {
      write_level(kRowLevel, phase, "    ");
      if (phase < last_phase_) reduce(phase);
    }
    for (const KernelStore& store : program_.stores) {
      if (of_row(store)) write_store(store, true);
    }
    element_loop("0", "N", last_phase_, false);
  }

  bool is_sum(uint32_t i) const { return program_.expressions[i].operation == Operation::kRowSum; }
  ScalarType type_of(uint32_t i) const { return program_.expressions[i].type; }

  // Floating-point numbers by integers in their order, a NaN above all: maxima that vectorise and keep NaNs.
  const char* order_type(uint32_t i) const { return type_of(i) == ScalarType::Double ? "i64" : "i32"; }
  const char* lowest(uint32_t i) const {
    return type_of(i) == ScalarType::Double ? "(-0x7fffffffffffffffLL - 1)" : "(-0x7fffffff - 1)";
  }
  const char* short_type(uint32_t i) const { return is_sum(i) ? cpp_type(type_of(i)) : order_type(i); }
  const char* long_type(uint32_t i) const {
    return is_sum(i) && type_of(i) == ScalarType::Float ? "double" : short_type(i);
  }
  const char* neutral(uint32_t i) const { return is_sum(i) ? "0" : lowest(i); }
  // One more value into an accumulator.
  void accumulate(uint32_t i, const std::string& into, const std::string& value) {
    if (is_sum(i)) {
      line("{} += {};", into, value);
    } else {
      line("{{ const auto o = {1}; {0} = o > {0} ? o : {0}; }}", into, value);
    }
  }
  std::string value_for(uint32_t i) const {
    const uint32_t operand = program_.expressions[i].operands[0];
    return is_sum(i) ? fmt::format("e{}", operand) : fmt::format("order_of(e{})", operand);
  }
  std::string result_of(uint32_t i, const std::string& accumulator) const {
    return is_sum(i) ? fmt::format("({}){}", cpp_type(type_of(i)), accumulator)
                     : fmt::format("of_order({})", accumulator);
  }

  void reduce(uint32_t phase) {
    const std::vector<uint32_t> own = reductions(phase);
    std::string clauses;
    for (const uint32_t i : own) {
      clauses += fmt::format(" reduction({}:b{})", is_sum(i) ? "+" : "max", i);
      line("{} a{} = {};", long_type(i), i, neutral(i));
    }
    open_nest(0);
    // Short sums in the type itself, their sums in double: no worse than eager's cascade.
    line("for (i64 first = 0; first < N; first += 512) {{");
    line("const i64 past = first + 512 < N ? first + 512 : N;");
    for (const uint32_t i : own) line("{} b{} = {};", short_type(i), i, neutral(i));
    simd(clauses);
    line("for (i64 j = first; j < past; ++j) {{");
    write_elements(needed_by_loop(phase), phase);
    for (const uint32_t i : own) accumulate(i, fmt::format("b{}", i), value_for(i));
    line("}}");
    for (const uint32_t i : own) accumulate(i, fmt::format("a{}", i), fmt::format("b{}", i));
    line("}}");
    close_nest(0);
    for (const uint32_t i : own)
      line("const {} e{} = {};", cpp_type(type_of(i)), i, result_of(i, fmt::format("a{}", i)));
  }

  // ---- Columns: reductions of what lies apart, element by element of the row, in blocks that stay in the cache.

  void column_blocks() {
    const bool by_elements = program_.runs_by_elements();
    line("for (i64 block = {}; block < {}; block += 512) {{", by_elements ? "begin" : "0", by_elements ? "end" : "N");
    line("const i64 to = {}, n = block + 512 < to ? 512 : to - block;", by_elements ? "end" : "N");
    pointers("", "block");
    for (uint32_t phase = 0; phase < last_phase_; ++phase) {
      reduce_columns(phase);
      derive_columns(phase + 1);
    }
    line("for (i64 j = 0; j < n; ++j) {{");
    for (const KernelStore& store : program_.stores) {
      if (!of_row(store)) continue;
      line("{{ const {} e{} = m{}[j];", cpp_type(type_of(store.expression)), store.expression, store.expression);
      write_store(store, false);
      line("}}");
    }
    line("}}");
    element_loop("0", "n", last_phase_, false);
    line("}}");
  }

  void reduce_columns(uint32_t phase) {
    const std::vector<uint32_t> own = reductions(phase);
    const std::vector<bool> wanted = needed_by_loop(phase);
    const uint32_t ways = is_costly_loop(wanted) ? 1 : kWays;
    const auto each = [&](const auto& body) {
      simd();
      line("for (i64 j = 0; j < n; ++j) {{");
      for (const uint32_t i : own) body(i);
      line("}}");
    };
    for (const uint32_t i : own)
      line("{} a{}[512]; {} b{}[512]; {} m{}[512];", long_type(i), i, short_type(i), i, cpp_type(type_of(i)), i);
    each([&](uint32_t i) { line("a{}[j] = {};", i, neutral(i)); });
    open_nest(1);
    line("for (i64 first = 0, R = sizes[{}]; first < R; first += 256) {{",
         program_.outer_rank + program_.reduced_rank - 1);
    line("const i64 past = first + 256 < R ? first + 256 : R;\ni64 r = first;");
    each([&](uint32_t i) { line("b{}[j] = {};", i, neutral(i)); });
    const auto loop = [&](uint32_t of) {
      line("for (; r + {0} <= past; r += {0}) {{", of);
      nest_pointers("r");
      simd();
      line("for (i64 j = 0; j < n; ++j) {{");
      for (const uint32_t i : own) line("{} v{} = b{}[j];", short_type(i), i, i);
      for (ahead_ = 0; ahead_ < of; ++ahead_) {
        line("{{");
        write_elements(wanted, phase);
        for (const uint32_t i : own) accumulate(i, fmt::format("v{}", i), value_for(i));
        line("}}");
      }
      ahead_ = 0;
      for (const uint32_t i : own) line("b{0}[j] = v{0};", i);
      line("}}\n}}");
    };
    if (ways > 1) loop(ways);
    loop(1);
    each([&](uint32_t i) { accumulate(i, fmt::format("a{}[j]", i), fmt::format("b{}[j]", i)); });
    line("}}");
    close_nest(1);
    each([&](uint32_t i) { line("m{}[j] = {};", i, result_of(i, fmt::format("a{}[j]", i))); });
  }

  // What follows from reductions alone.
  void derive_columns(uint32_t phase) {
    for (uint32_t i = 0; i < places_.size(); ++i) {
      const KernelExpression& e = program_.expressions[i];
      if (!is_column(i) || places_[i].phase != phase || is_reduction(e.operation)) continue;
      line("{} m{}[512];", cpp_type(e.type), i);
      simd();
      line("for (i64 j = 0; j < n; ++j) {{");
      for (uint32_t k = 0; k < arity(e.operation); ++k) {
        const uint32_t o = e.operands[k];
        const bool twice = std::find(e.operands, e.operands + k, o) != e.operands + k;
        if (is_column(o) && !twice) line("const {} e{} = m{}[j];", cpp_type(type_of(o)), o, o);
      }
      write_expression(i, "");
      line("m{0}[j] = e{0};\n}}", i);
    }
  }

  const KernelProgram& program_;
  std::vector<uint32_t> kept_;  // 1 + the loop that stores it, 0: not stored
  std::vector<Place> places_;
  uint32_t last_phase_ = 0;
  char access_ = 'p';
  uint32_t ahead_ = 0;  // rows, where a loop takes several
  std::string out_;
};

}  // namespace

std::string program_source(const KernelProgram& program) { return ProgramWriter(program).run(); }

}  // namespace shadowgraph
