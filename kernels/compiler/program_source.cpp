// Writes a program as a C++ function.
#include "kernels/compiler/program_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

using Operation = KernelOperation;
using c10::ScalarType;

namespace {

// A loop processes this many rows at a time, so that sums are loaded and stored less often.
constexpr uint32_t kWays = 4;

// A program with reductions has several loops over the same elements, one per phase. Reductions of phase 0 read
// elements, those of phase 1 depend on results of phase 0, and so on. The last loop computes the remaining stores.
class ProgramLevels {
 public:
  static constexpr uint8_t kKernel = 0;   // constant in the kernel
  static constexpr uint8_t kRow = 1;      // one per reduction: a row, or with `columns` each element of the row
  static constexpr uint8_t kElement = 2;  // one per element

  explicit ProgramLevels(const KernelProgram& program)
      : program_(program),
        has_reductions_(program.has_reductions()),
        places_(program.expressions.size()),
        is_read_(program.operands.size()),
        kept_(program.expressions.size()) {
    for (uint32_t i = 0; i < places_.size(); ++i) place(i);
    if (!program_.columns && program_.reduced_rank == 0) choose_kept();
  }

  uint8_t level(uint32_t expression) const { return places_[expression].level; }
  // Returns the number of reductions that an expression depends on in sequence.
  uint32_t phase(uint32_t expression) const { return places_[expression].phase; }
  uint32_t last_phase() const { return last_phase_; }
  // With columns, a value of the row is an array.
  bool is_column(uint32_t i) const { return program_.columns && places_[i].level == kRow; }

  // Returns the reductions computed by the loop of a phase.
  std::vector<uint32_t> reductions(uint32_t phase) const {
    std::vector<uint32_t> own;
    for (uint32_t i = 0; i < places_.size(); ++i) {
      if (is_reduction(program_.expressions[i].operation) && places_[i].phase == phase + 1) own.push_back(i);
    }
    return own;
  }

  std::vector<KernelStore> element_stores(uint32_t phase) const {
    std::vector<KernelStore> own;
    for (const KernelStore& store : program_.stores) {
      if (!is_of_row(store) && loop_of(store) == phase) own.push_back(store);
    }
    return own;
  }

  std::vector<KernelStore> row_stores() const {
    std::vector<KernelStore> own;
    for (const KernelStore& store : program_.stores) {
      if (!is_of_row(store)) continue;
      TORCH_INTERNAL_ASSERT(places_[store.expression].level != kElement, "a store per row of a value per element");
      own.push_back(store);
    }
    return own;
  }

  // Returns for each expression whether the loop needs it, computed or loaded.
  std::vector<bool> needed_by_loop(uint32_t phase) const {
    std::vector<bool> wanted(places_.size());
    for (const KernelStore& store : element_stores(phase)) wanted[store.expression] = true;
    for (const uint32_t i : reductions(phase)) wanted[program_.expressions[i].operands[0]] = true;
    return with_operands(std::move(wanted), phase);
  }

  bool is_costly_loop(const std::vector<bool>& wanted) const {
    for (uint32_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] && places_[i].level == kElement && is_costly(program_.expressions[i].operation)) return true;
    }
    return false;
  }

  // Returns the expressions whose values a loop stores in a row buffer for later loops.
  std::vector<uint32_t> kept() const {
    std::vector<uint32_t> out;
    for (uint32_t i = 0; i < kept_.size(); ++i) {
      if (kept_[i] != 0) out.push_back(i);
    }
    return out;
  }

  bool is_kept_by(uint32_t i, uint32_t phase) const { return kept_[i] == phase + 1; }
  bool is_loaded(uint32_t i, uint32_t phase) const { return kept_[i] != 0 && kept_[i] <= phase; }

 private:
  struct Place {
    uint8_t level = kKernel;
    uint32_t phase = 0;
  };

  void place(uint32_t i) {
    const KernelExpression& e = program_.expressions[i];
    Place& own = places_[i];
    for (uint32_t k = 0; k < arity(e.operation); ++k) {
      const Place& operand = places_[e.operands[k]];
      own.level = std::max(own.level, operand.level);
      own.phase = std::max(own.phase, operand.phase);
    }
    if (e.operation == Operation::kColumn) own.level = kElement;
    if (e.operation == Operation::kLoad || e.operation == Operation::kGather) {
      own.level = std::max(own.level, level_of_load(e.index));
      is_read_[e.index] = true;
    } else if (is_reduction(e.operation)) {
      own.level = kRow;
      ++own.phase;
    }
    last_phase_ = std::max(last_phase_, own.phase);
  }

  uint8_t level_of_load(uint32_t operand) const {
    const KernelOperand& from = program_.operands[operand];
    return (has_reductions_ ? from.of_row : from.layout == KernelLayout::kBroadcast) ? kRow : kElement;
  }

  // Values that no loop reads from memory are stored as soon as they are known, which avoids recomputing them.
  uint32_t loop_of(const KernelStore& store) const {
    return is_read_[store.operand] ? last_phase_ : places_[store.expression].phase;
  }

  bool is_of_row(const KernelStore& store) const { return has_reductions_ && program_.operands[store.operand].of_row; }

  std::vector<bool> with_operands(std::vector<bool> wanted, uint32_t phase) const {
    for (auto i = static_cast<uint32_t>(places_.size()); i-- > 0;) {
      const KernelExpression& e = program_.expressions[i];
      if (!wanted[i] || is_reduction(e.operation) || is_column(i) || is_loaded(i, phase)) continue;
      for (uint32_t k = 0; k < arity(e.operation); ++k) wanted[e.operands[k]] = true;
    }
    return wanted;
  }

  // Returns the operations per element of each expression; expensive ones count as several.
  std::vector<uint32_t> costs() const {
    constexpr uint32_t kCostly = 8;
    constexpr uint32_t kMost = 1000;  // a shared expression counts for each user
    std::vector<uint32_t> costs(places_.size());
    for (uint32_t i = 0; i < places_.size(); ++i) {
      const KernelExpression& e = program_.expressions[i];
      if (places_[i].level != kElement) continue;
      costs[i] = is_costly(e.operation) ? kCostly : 1;
      for (uint32_t k = 0; k < arity(e.operation); ++k) costs[i] += costs[e.operands[k]];
      costs[i] = std::min(costs[i], kMost);
    }
    return costs;
  }

  // Selects the values that are stored for later loops, such as the exponentials of a softmax: expressions that several
  // phases use and that cost more to compute than to store. Of nested ones, only the outermost is stored.
  void choose_kept() {
    constexpr uint32_t kWorthKeeping = 6;
    const std::vector<uint32_t> cost = costs();
    const auto loops_of = [this](uint32_t i) {
      std::vector<uint32_t> loops;
      for (uint32_t phase = 0; phase <= last_phase_; ++phase) {
        if (needed_by_loop(phase)[i]) loops.push_back(phase);
      }
      return loops;
    };
    for (auto i = static_cast<uint32_t>(places_.size()); last_phase_ > 0 && i-- > 0;) {
      if (places_[i].level != kElement || cost[i] < kWorthKeeping) continue;
      const auto loops = loops_of(i);
      if (loops.size() > 1) kept_[i] = loops[0] + 1;
    }
  }

  const KernelProgram& program_;
  const bool has_reductions_;
  std::vector<Place> places_;
  std::vector<bool> is_read_;   // operands
  std::vector<uint32_t> kept_;  // 1 + the loop that stores it; 0: none
  uint32_t last_phase_ = 0;
};

class ProgramWriter {
 public:
  explicit ProgramWriter(const KernelProgram& program) : program_(program), levels_(program) {}

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

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

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

  // Opens the loops over all reduced dimensions except the last `inner`, with pointers x0 ... there.
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

  // Writes the pragma of a loop over elements that computes `wanted`.
  void simd(const std::vector<bool>& wanted, const std::string& clauses = "") {
    for (uint32_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i] || program_.expressions[i].operation != Operation::kInRange) continue;
      if (levels_.level(i) == ProgramLevels::kElement || levels_.is_column(i)) return;  // it writes to shared memory
    }
    line("_Pragma(\"omp simd{}\")", clauses);
  }

  void write_expression(uint32_t i, const char* indent) {
    const KernelExpression& e = program_.expressions[i];
    const bool is_read = e.operation == Operation::kLoad || e.operation == Operation::kGather;
    const std::string text = expression_text(program_, e, is_read ? element(e.index) : "");
    line("{}const {} e{} = {};", indent, cpp_type(e.type), i, text);
  }

  void write_level(uint8_t level, uint32_t phase, const char* indent) {
    for (uint32_t i = 0; i < program_.expressions.size(); ++i) {
      if (levels_.level(i) != level || levels_.phase(i) != phase) continue;
      if (!is_reduction(program_.expressions[i].operation)) write_expression(i, indent);
    }
  }

  void write_elements(const std::vector<bool>& wanted, uint32_t phase) {
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

  void write_store(const KernelStore& store) { line("{} = {};", element(store.operand), stored_text(program_, store)); }

  void element_loop(const char* from, const char* to, uint32_t phase) {
    if (levels_.element_stores(phase).empty()) return;
    const std::vector<bool> wanted = levels_.needed_by_loop(phase);
    open_nest(0);
    simd(wanted);
    line("for (i64 j = {}; j < {}; ++j) {{", from, to);
    write_elements(wanted, phase);
    line("}}");
    close_nest(0);
  }

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
    for (uint32_t phase = 0; phase <= levels_.last_phase(); ++phase) {
      write_level(ProgramLevels::kRow, phase, "    ");
      if (phase < levels_.last_phase()) reduce(phase);
    }
    for (const KernelStore& store : levels_.row_stores()) write_store(store);
    element_loop("0", "N", levels_.last_phase());
  }

  // Accumulates short sums in the dtype itself, and their total in double, which is as accurate as eager's cascade
  // summation. Four parallel sums are slower (45 us instead of 30, rows of 256), since adding them at the end of a row
  // dominates.
  void reduce(uint32_t phase) {
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
    for (const uint32_t i : own)
      line("const {} e{} = {};", cpp_type(type_of(i)), i, result_of(i, fmt::format("a{}", i)));
  }

  bool is_sum(uint32_t i) const { return program_.expressions[i].operation == KernelOperation::kRowSum; }
  c10::ScalarType type_of(uint32_t i) const { return program_.expressions[i].type; }

  // Compares floating-point numbers as integers, with NaN above all: such maxima vectorize and propagate NaNs.
  const char* order_type(uint32_t i) const { return type_of(i) == ScalarType::Double ? "i64" : "i32"; }

  const char* lowest(uint32_t i) const {
    return type_of(i) == ScalarType::Double ? "(-0x7fffffffffffffffLL - 1)" : "(-0x7fffffff - 1)";
  }

  const char* short_type(uint32_t i) const { return is_sum(i) ? cpp_type(type_of(i)) : order_type(i); }

  const char* long_type(uint32_t i) const {
    return is_sum(i) && type_of(i) == ScalarType::Float ? "double" : short_type(i);
  }

  const char* neutral(uint32_t i) const { return is_sum(i) ? "0" : lowest(i); }

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

  void column_blocks() {
    const bool by_elements = program_.runs_by_elements();
    line("for (i64 block = {}; block < {}; block += 512) {{", by_elements ? "begin" : "0", by_elements ? "end" : "N");
    line("const i64 to = {}, n = block + 512 < to ? 512 : to - block;", by_elements ? "end" : "N");
    pointers("", "block");
    derive_columns(0);
    for (uint32_t phase = 0; phase < levels_.last_phase(); ++phase) {
      reduce_columns(phase);
      derive_columns(phase + 1);
    }
    each_column([this] {
      for (const KernelStore& store : levels_.row_stores()) {
        const uint32_t i = store.expression;
        line("{{");
        if (levels_.is_column(i)) line("const {} e{} = m{}[j];", cpp_type(type_of(i)), i, i);
        write_store(store);
        line("}}");
      }
    });
    element_loop("0", "n", levels_.last_phase());
    line("}}");
  }

  template <class Body>
  void each_column(Body body) {
    line("_Pragma(\"omp simd\")\nfor (i64 j = 0; j < n; ++j) {{");
    body();
    line("}}");
  }

  void reduce_columns(uint32_t phase) {
    const std::vector<uint32_t> own = levels_.reductions(phase);
    const std::vector<bool> wanted = levels_.needed_by_loop(phase);
    const uint32_t ways = levels_.is_costly_loop(wanted) ? 1 : kWays;
    const auto each = [&](const auto& body) {
      each_column([&] {
        for (const uint32_t i : own) body(i);
      });
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
      simd(wanted);
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

  // Computes the expressions that only depend on reductions and on row operands.
  void derive_columns(uint32_t phase) {
    for (uint32_t i = 0; i < program_.expressions.size(); ++i) {
      const KernelExpression& e = program_.expressions[i];
      if (!levels_.is_column(i) || levels_.phase(i) != phase || is_reduction(e.operation)) continue;
      line("{} m{}[512];", cpp_type(e.type), i);
      std::vector<bool> own(program_.expressions.size());
      own[i] = true;
      simd(own);
      line("for (i64 j = 0; j < n; ++j) {{");
      for (uint32_t k = 0; k < arity(e.operation); ++k) {
        const uint32_t o = e.operands[k];
        const bool twice = std::find(e.operands, e.operands + k, o) != e.operands + k;
        if (levels_.is_column(o) && !twice) line("const {} e{} = m{}[j];", cpp_type(type_of(o)), o, o);
      }
      write_expression(i, "");
      line("m{0}[j] = e{0};\n}}", i);
    }
  }

  const KernelProgram& program_;
  const ProgramLevels levels_;
  char access_ = 'p';
  uint32_t ahead_ = 0;  // rows processed at a time
  std::string out_;
};

}  // namespace

std::string program_source(const KernelProgram& program) { return ProgramWriter(program).run(); }

}  // namespace shadowgraph
