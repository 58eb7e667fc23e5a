// Fits one graph to captures at several sizes. Each capture is walked in one order (graph_walk.h) into structure and
// numbers. Structures must be equal. A number that differs becomes a polynomial, and equal rows of samples share one.
// So a graph of ten thousand nodes has a few hundred to fit and to evaluate.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "passes/shapes/graph_walk.h"
#include "shadowgraph/passes/polynomial.h"
#include "shadowgraph/passes/symbolic_graph.h"
#include "shadowgraph/text.h"
#include "support/same_bits.h"

namespace shadowgraph {
namespace {

constexpr size_t kMostMisfits = 8;  // that a message names

// ---- Sinks
//
// One walk (graph_walk.h) serves several purposes; a sink says what becomes of the tokens (structure) and numbers that
// it meets. All sinks see the same order, so an index means the same number in each (symbolic.cpp has one more).

struct Numbers {
  std::vector<int64_t> integers;
  std::vector<double> reals;
  std::vector<std::string> texts;
};

// The first capture: all of it, and where its values' numbers are.
struct BaseSink {
  Numbers numbers;
  std::vector<uint64_t> tokens;
  std::vector<std::pair<size_t, NodeId>> nodes;  // first token of each
  IdMap<ValueId, uint32_t>& values;
  IdMap<StorageId, uint32_t>& storages;

  void node(NodeId id) { nodes.emplace_back(tokens.size(), id); }
  void token(uint64_t token) { tokens.push_back(token); }
  void value(ValueId id) { values[id] = static_cast<uint32_t>(numbers.integers.size()); }
  void storage(StorageId id) { storages[id] = static_cast<uint32_t>(numbers.integers.size()); }
  void integer(const char*, uint32_t, const int64_t& value) { numbers.integers.push_back(value); }
  void real(const char*, uint32_t, const double& value) { numbers.reals.push_back(value); }
  void text(const std::string& text) { numbers.texts.push_back(text); }
};

// Another capture: its numbers, as long as its structure is that of the first.
struct AlignedSink {
  const std::vector<uint64_t>& expected;
  Numbers numbers;
  size_t next = 0;
  NodeId current;
  bool differs = false;
  size_t where = 0;   // the first token that differs
  NodeId where_node;  // and the node it belongs to

  void node(NodeId id) { current = id; }
  void token(uint64_t token) {
    // The walk cannot be stopped, so only the first difference is kept.
    if (!differs && (next >= expected.size() || expected[next] != token)) {
      differs = true;
      where = next;
      where_node = current;
    }
    ++next;
  }
  void value(ValueId) {}
  void storage(StorageId) {}
  void integer(const char*, uint32_t, const int64_t& value) { numbers.integers.push_back(value); }
  void real(const char*, uint32_t, const double& value) { numbers.reals.push_back(value); }
  void text(const std::string& text) { numbers.texts.push_back(text); }
};

// What some numbers are, in words.
// Filled in by another walk when a message needs it, since names cost text for each number.
struct NamingSink {
  const Graph& graph;
  const Numbering& numbering;
  std::map<uint32_t, std::string> integers;  // asked for: filled in
  std::map<uint32_t, std::string> reals;
  NodeId current;
  uint32_t integer_index = 0;
  uint32_t real_index = 0;

  std::string name(const char* what, uint32_t which) const {
    std::string text = std::string(what) + " " + std::to_string(which);
    if (current.valid()) text += " at " + to_text(graph, current, numbering);
    return text;
  }
  void node(NodeId id) { current = id; }
  void token(uint64_t) {}
  void value(ValueId) {}
  void storage(StorageId) {}
  void integer(const char* what, uint32_t which, const int64_t&) {
    const auto asked = integers.find(integer_index++);
    if (asked != integers.end()) asked->second = name(what, which);
  }
  void real(const char* what, uint32_t which, const double&) {
    const auto asked = reals.find(real_index++);
    if (asked != reals.end()) asked->second = name(what, which);
  }
  void text(const std::string&) {}
};

// ---- Words

// "batch 2, seq 64", for messages.
std::string words(const NamedSizes& sizes) {
  std::string text;
  for (const auto& [name, size] : sizes) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(size);
  return text;
}

[[noreturn]] void throw_difference(const SizedGraph& base, const BaseSink& walked, const SizedGraph& other,
                                   const AlignedSink& sink) {
  // Tokens are numbered; the node is the last that began before the one that differs.
  const auto after = std::upper_bound(walked.nodes.begin(), walked.nodes.end(), sink.where,
                                      [](size_t token, const auto& entry) { return token < entry.first; });
  const NodeId node = after == walked.nodes.begin() ? NodeId() : std::prev(after)->second;
  const auto line = [](const Graph& graph, NodeId at) {
    return at.valid() ? to_text(graph, at) : std::string("(after the last node: regions, storages or dependencies)");
  };
  throw SymbolicError("the captures at " + words(base.sizes) + " and at " + words(other.sizes) +
                      " are different programs: a kernel or a branch was chosen by the size. They differ first at\n  " +
                      words(base.sizes) + ": " + line(base.graph, node) + "\n  " + words(other.sizes) + ": " +
                      line(other.graph, sink.where_node) + "\nCapture at sizes on one side of the change.");
}

// Splits "[2, 30]" into pieces "[", ", ", "]" and numbers 2, 30. Numbers too long for an int64 stay text, and so do
// those with leading zeros, which would not come back.
void split_numbers(const std::string& text, std::vector<std::string>& pieces, std::vector<int64_t>& numbers) {
  pieces.assign(1, "");
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find_first_not_of("0123456789", i), text.size());
    const bool leading_zero = text[i] == '0' && end - i > 1;
    // 18 digits always fit into an int64.
    if (end == i || end - i > 18 || leading_zero) {
      const size_t stop = std::max(end, i + 1);
      pieces.back().append(text, i, stop - i);
      i = stop;
      continue;
    }
    numbers.push_back(std::stoll(text.substr(i, end - i)));
    pieces.emplace_back();
    i = end;
  }
}

// Returns the integers of which these are the values, or the inverses. A mean over n elements has 1/n among its
// arguments. The inverse must come back to the bit, or it is another number.
std::optional<std::vector<int64_t>> as_integers(std::span<const double> reals, bool inverse) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  std::vector<int64_t> integers;
  for (const double real : reals) {
    const double value = inverse ? std::round(1.0 / real) : real;
    // Beyond 2^53 a double skips integers, so the size behind it is not known.
    if (!(std::abs(value) < kExact) || value != std::trunc(value)) return std::nullopt;
    if (inverse && 1.0 / value != real) return std::nullopt;
    integers.push_back(static_cast<int64_t>(value));
  }
  return integers;
}

struct RowHash {
  size_t operator()(const std::vector<int64_t>& row) const {
    size_t hash = row.size();
    for (const int64_t value : row) hash = hash * 0x9E3779B97F4A7C15ULL + static_cast<size_t>(value);
    return hash ^ hash >> 29;
  }
};

// Rows of samples to polynomials, each row once.
class RowFit {
 public:
  RowFit(const PolynomialFit& fit, std::vector<Polynomial>& polynomials) : fit_(fit), polynomials_(polynomials) {}

  // Most numbers of a graph are a few dozen rows again and again: sizes of the same layers.
  std::optional<uint32_t> of(const std::vector<int64_t>& row) {
    const auto [entry, added] = known_.try_emplace(row);
    if (added) {
      if (auto polynomial = fit_.of(row)) {
        entry->second = static_cast<uint32_t>(polynomials_.size());
        polynomials_.push_back(std::move(*polynomial));
      }
    }
    return entry->second;
  }

 private:
  const PolynomialFit& fit_;
  std::vector<Polynomial>& polynomials_;
  std::unordered_map<std::vector<int64_t>, std::optional<uint32_t>, RowHash> known_;
};

template <class T>
std::string join(std::span<const T> values) {
  std::string text;
  for (const T& value : values) {
    if (!text.empty()) text += ", ";
    if constexpr (std::is_same_v<T, double>) {
      text += c10::str(value);
    } else {
      text += std::to_string(value);
    }
  }
  return text;
}

}  // namespace

// Holds what the steps of a fit share. A misfit is a number that no polynomial fits: its index and its samples.
class SymbolicGraph::Fit {
 public:
  explicit Fit(std::vector<SizedGraph> captures) : captures_(std::move(captures)) {}

  SymbolicGraph run() {
    const std::vector<std::vector<int64_t>> points = points_of_captures();
    find_dimensions(points);
    const PolynomialFit fit = polynomials_through(points);
    take_samples();
    RowFit rows(fit, result_.polynomials_);
    fit_integers(rows);
    fit_reals(rows);
    fit_texts(rows);
    // All misfits are found before anything is said.
    if (!integer_misfits_.empty() || !real_misfits_.empty() || !text_misfits_.empty()) throw_misfits();
    result_.base_ = std::move(captures_[0].graph);
    return std::move(result_);
  }

 private:
  using Misfits = std::vector<std::pair<uint32_t, std::string>>;

  // The sizes of each capture, in the order of their names.
  std::vector<std::vector<int64_t>> points_of_captures() const {
    if (captures_.empty() || captures_[0].sizes.empty())
      throw SymbolicError("there are no captures, or none with a named size");
    const NamedSizes& names = captures_[0].sizes;
    std::vector<std::vector<int64_t>> points;
    for (const SizedGraph& capture : captures_) {
      auto& point = points.emplace_back();
      for (const auto& [name, size] : capture.sizes) {
        if (!names.contains(name)) throw SymbolicError("only some captures say what '" + name + "' is");
        point.push_back(size);
      }
      if (point.size() != names.size()) throw SymbolicError("captures name different sizes");
    }
    // One capture more than a linear function of all sizes needs, so that a fit can fail.
    if (captures_.size() < names.size() + 2) {
      throw SymbolicError("a line through two points fits anything: capture at " + std::to_string(names.size() + 2) +
                          " sizes at least");
    }
    return points;
  }

  void find_dimensions(const std::vector<std::vector<int64_t>>& points) {
    size_t variable = 0;
    for (const auto& [name, unused] : captures_[0].sizes) {
      Dimension dimension{.name = name, .smallest = points[0][variable], .step = 0, .largest = points[0][variable]};
      for (const auto& point : points) {
        dimension.smallest = std::min(dimension.smallest, point[variable]);
        dimension.largest = std::max(dimension.largest, point[variable]);
      }
      // Between captured sizes only multiples of their common distance are known.
      for (const auto& point : points) dimension.step = std::gcd(dimension.step, point[variable] - dimension.smallest);
      if (dimension.step == 0) throw SymbolicError("'" + name + "' is the same in all captures");
      result_.dimensions_.push_back(dimension);
      ++variable;
    }
  }

  static PolynomialFit polynomials_through(const std::vector<std::vector<int64_t>>& points) {
    try {
      return PolynomialFit(points);
    } catch (const Error& error) {
      throw SymbolicError(error.what());
    }
  }

  // The first capture gives the tokens that the others are held against.
  void take_samples() {
    BaseSink base{.values = result_.value_numbers_, .storages = result_.storage_numbers_};
    GraphWalk(captures_[0].graph, base).run();
    samples_.push_back(std::move(base.numbers));
    for (size_t i = 1; i < captures_.size(); ++i) {
      AlignedSink sink{.expected = base.tokens};
      GraphWalk(captures_[i].graph, sink).run();
      if (sink.differs || sink.next != base.tokens.size()) throw_difference(captures_[0], base, captures_[i], sink);
      samples_.push_back(std::move(sink.numbers));
    }
  }

  void fit_integers(RowFit& rows) {
    std::vector<int64_t> row(samples_.size());
    for (uint32_t i = 0; i < samples_[0].integers.size(); ++i) {
      for (size_t s = 0; s < samples_.size(); ++s) row[s] = samples_[s].integers[i];
      // Numbers that are the same everywhere stay as they are in the first capture.
      if (std::ranges::all_of(row, [&](int64_t value) { return value == row[0]; })) continue;
      if (const auto polynomial = rows.of(row)) {
        result_.integers_.push_back({i, *polynomial, false});
      } else {
        integer_misfits_.emplace_back(i, join<int64_t>(row));
      }
    }
  }

  // A real number is fitted as an integer first: 2.0 may be a size that was converted.
  void fit_reals(RowFit& rows) {
    std::vector<double> reals(samples_.size());
    for (uint32_t i = 0; i < samples_[0].reals.size(); ++i) {
      for (size_t s = 0; s < samples_.size(); ++s) reals[s] = samples_[s].reals[i];
      const auto is_the_same = [&](double value) { return same_bits(value, reals[0]); };
      if (std::ranges::all_of(reals, is_the_same)) continue;
      std::optional<uint32_t> polynomial;
      bool inverse = false;
      for (const bool try_inverse : {false, true}) {
        const auto integers = as_integers(reals, try_inverse);
        if (polynomial || !integers) continue;
        polynomial = rows.of(*integers);
        inverse = try_inverse;
      }
      if (polynomial) {
        result_.reals_.push_back({i, *polynomial, inverse});
      } else {
        real_misfits_.emplace_back(i, join<double>(reals));
      }
    }
  }

  // Texts are metadata and guards, which have sizes in them.
  void fit_texts(RowFit& rows) {
    for (uint32_t i = 0; i < samples_[0].texts.size(); ++i) {
      const auto is_the_same = [&](const Numbers& sample) { return sample.texts[i] == samples_[0].texts[i]; };
      if (std::ranges::all_of(samples_, is_the_same)) continue;
      if (auto text = fit_text(rows, i)) {
        result_.texts_.push_back(std::move(*text));
      } else {
        text_misfits_ += "\n  \"" + samples_[0].texts[i] + "\", elsewhere \"" + samples_.back().texts[i] +
                         "\", in the metadata or a guard";
      }
    }
  }

  // A text varies as the numbers in it do; what lies between them must be the same in all captures.
  std::optional<VaryingText> fit_text(RowFit& rows, uint32_t index) const {
    VaryingText text{.index = index};
    std::vector<std::vector<int64_t>> columns;
    for (size_t s = 0; s < samples_.size(); ++s) {
      std::vector<std::string> pieces;
      std::vector<int64_t> numbers;
      split_numbers(samples_[s].texts[index], pieces, numbers);
      if (s == 0) text.pieces = pieces;
      if (pieces != text.pieces) return std::nullopt;
      columns.resize(numbers.size());
      for (size_t c = 0; c < numbers.size(); ++c) columns[c].push_back(numbers[c]);
    }
    for (const auto& column : columns) {
      // A column that stays the same is a constant polynomial, which fits at once.
      const auto polynomial = rows.of(column);
      if (!polynomial) return std::nullopt;
      text.polynomials.push_back(*polynomial);
    }
    return text;
  }

  // Names the first few misfits. Names cost a walk and text for each number, so only those that are told are named.
  [[noreturn]] void throw_misfits() const {
    const Numbering numbering = Numbering::of(captures_[0].graph);
    NamingSink names{.graph = captures_[0].graph, .numbering = numbering};
    const auto ask = [](const Misfits& misfits, std::map<uint32_t, std::string>& asked) {
      for (size_t i = 0; i < std::min(misfits.size(), kMostMisfits); ++i) asked.emplace(misfits[i].first, "");
    };
    ask(integer_misfits_, names.integers);
    ask(real_misfits_, names.reals);
    GraphWalk(captures_[0].graph, names).run();
    std::string message = text_misfits_;
    const auto tell = [&](const Misfits& misfits, const std::map<uint32_t, std::string>& named) {
      for (const auto& [index, values] : misfits) {
        const auto name = named.find(index);
        if (name != named.end()) message += "\n  " + values + ": " + name->second;
      }
    };
    tell(integer_misfits_, names.integers);
    tell(real_misfits_, names.reals);
    std::string where;
    for (const SizedGraph& capture : captures_) where += (where.empty() ? "" : "; ") + words(capture.sizes);
    throw SymbolicError("no polynomial with fewer terms than there are captures fits " +
                        std::to_string(integer_misfits_.size() + real_misfits_.size()) +
                        " numbers of the captures at " + where + ":" + message +
                        "\nIf a size is divided or padded, capture at multiples of what it is divided by; if it grows "
                        "with a high power, capture at more sizes.");
  }

  std::vector<SizedGraph> captures_;
  SymbolicGraph result_;
  std::vector<Numbers> samples_;  // by capture
  Misfits integer_misfits_;
  Misfits real_misfits_;
  std::string text_misfits_;  // as the message says them
};

SymbolicGraph SymbolicGraph::fit(std::vector<SizedGraph> captures) { return Fit(std::move(captures)).run(); }

}  // namespace shadowgraph
