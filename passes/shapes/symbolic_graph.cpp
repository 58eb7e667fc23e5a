// Fits one symbolic graph to captures at several sizes, and instantiates it at other sizes.
//
// Each capture is walked in the same order and split into structure (tokens, which must be equal) and numbers, which
// may differ. A number that differs becomes a polynomial; numbers with equal samples share one, so a graph of ten
// thousand nodes has a few hundred to fit and evaluate. An instance stores the addresses of the varying numbers, which
// are stable since arenas never move: instantiating a size is a loop over them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string_view>

#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/symbolic.h"
#include "support/hash.h"

namespace shadowgraph {

// Callbacks of a walk; by default they do nothing. The order is the same for all sinks, so an index denotes the same
// number in each. Ids are canonical numbers; `what` and `which` are for messages: "size", 1.
struct NoSink {
  void node(NodeId) {}     // the following calls belong to this node; to none, at the end
  void token(uint64_t) {}  // structure
  void value(ValueId) {}   // whose numbers follow
  void storage(StorageId) {}
  void integer(const char*, uint32_t, const int64_t&) {}  // a size, stride, offset, byte count or integer argument
  void real(const char*, uint32_t, const double&) {}
  void text(const std::string&) {}  // metadata, then guards; may contain sizes
};

// Visits everything that shadowgraph/graph/verify.h compares.
template <class Sink>
class GraphWalk {
 public:
  GraphWalk(const Graph& graph, Sink& sink) : graph_(graph), sink_(sink), numbering_(Numbering::of(graph)) {}

  // Nodes first, so that the first difference of two programs is a node.
  void run() {
    for (const NodeId id : numbering_.nodes()) node(id);
    sink_.node(NodeId());
    for (const auto& [key, value] : graph_.metadata.lines()) {
      hash(key);
      sink_.text(value);
    }
    sink_.token(graph_.guards.size());
    for (const Guard& guard : graph_.guards) {
      sink_.token(static_cast<uint64_t>(guard.kind));
      sink_.token(numbering_.of(guard.value));
      sink_.token(static_cast<uint64_t>(guard.dimension));
      sink_.text(guard.observed);
    }
    sink_.token(graph_.region_count());
    for (uint32_t i = 0; i < graph_.region_count(); ++i) region(RegionId(i));
    sink_.token(numbering_.storages().size());
    for (const StorageId id : numbering_.storages()) storage(id);
  }

 private:
  void hash(std::string_view text) { sink_.token(std::hash<std::string_view>{}(text)); }
  // Strings and targets are hashed once, since many nodes share them.
  void hash(StringId id) {
    if (id.index >= strings_.size()) strings_.resize(graph_.string_count(), 0);
    if (id.index >= strings_.size()) return hash(std::string_view());  // never set, same as ""
    uint64_t& known = strings_[id.index];
    if (known == 0) known = std::hash<std::string_view>{}(graph_.text(id));
    sink_.token(known);
  }
  void target(TargetId id) {
    if (!id.valid()) return sink_.token(0);
    if (id.index >= targets_.size()) targets_.resize(graph_.target_count(), 0);
    uint64_t& known = targets_[id.index];
    if (known == 0) known = std::hash<std::string>{}(graph_.target(id).schema_text());
    sink_.token(known);
  }

  void storage(StorageId id) {
    const Storage& s = graph_.storage(id);
    sink_.token(static_cast<uint64_t>(s.kind) << 32 | static_cast<uint64_t>(static_cast<uint8_t>(s.device_type)) << 8 |
                static_cast<uint8_t>(s.device_index));
    sink_.token(numbering_.of(s.born));
    sink_.token(numbering_.of(s.freed_after));
    sink_.storage(id);
    sink_.integer("bytes of a storage", numbering_.of(id), s.bytes);
  }

  void region(RegionId id) {
    const Region& r = graph_.region(id);
    sink_.token(static_cast<uint64_t>(r.kind) << 1 | (r.inferred ? 1 : 0));
    sink_.token(r.parent.index);
    hash(r.name);
    hash(r.class_name);
    sink_.token(r.call);
    target(r.target);
    arguments(graph_.region_arguments(id), "argument of a region");
  }

  void node(NodeId id) {
    const Node& n = graph_.node(id);
    sink_.node(id);
    target(n.target);
    arguments(graph_.arguments(id), "argument");
    results(graph_.results(id));
    sink_.token(n.region.index);
    hash(graph_.phase_name(n.phase));
    sink_.token((n.flags.grad_mode ? 1U : 0U) | (n.flags.inference_mode ? 2U : 0U) | (n.flags.autocast_cpu ? 4U : 0U) |
                (n.flags.autocast_cuda ? 8U : 0U));
    sink_.token(n.forward.valid() ? numbering_.of(n.forward) : Numbering::kNone);
    hash(n.source);
    for (const SavedTensor& saved : graph_.saved(id)) {
      sink_.token(static_cast<uint64_t>(saved.role) << 32 | saved.index);
      sink_.token(numbering_.of(saved.value));
    }
    sink_.token(graph_.saved(id).size());
    for (const StorageId freed : graph_.frees(id)) sink_.token(numbering_.of(freed));
    sink_.token(graph_.frees(id).size());
    graph_.for_each_note(id, [&](std::string_view key, std::string_view value) {
      hash(key);
      hash(value);
    });
  }

  void arguments(std::span<const Argument> arguments, const char* what) {
    sink_.token(arguments.size());
    for (uint32_t i = 0; i < arguments.size(); ++i) argument(arguments[i], what, i);
  }

  void argument(const Argument& argument, const char* what, uint32_t which) {
    sink_.token(static_cast<uint64_t>(argument.kind));
    switch (argument.kind) {
      case ArgumentKind::kNone:
        break;
      case ArgumentKind::kValue:
        sink_.token(numbering_.of(argument.ref.value));
        break;
      case ArgumentKind::kInt:
        sink_.integer(what, which, argument.i);
        break;
      case ArgumentKind::kFloat:
        sink_.real(what, which, argument.d);
        break;
      case ArgumentKind::kBool:
        sink_.token(argument.b ? 1 : 0);
        break;
      case ArgumentKind::kComplex:
        for (const double part : graph_.complex_parts(argument)) sink_.token(std::bit_cast<uint64_t>(part));
        break;
      case ArgumentKind::kString:
      case ArgumentKind::kOpaque:
        hash(argument.string);
        break;
      case ArgumentKind::kDevice:
      case ArgumentKind::kGenerator:
        sink_.token(static_cast<uint64_t>(static_cast<uint8_t>(argument.device_type)) << 8 |
                    static_cast<uint8_t>(argument.device_index));
        break;
      case ArgumentKind::kIntList: {
        const auto ints = graph_.ints(argument);
        sink_.token(ints.size());
        for (const int64_t& element : ints) sink_.integer(what, which, element);
        break;
      }
      case ArgumentKind::kList:
        arguments(graph_.list(argument), what);
        break;
      case ArgumentKind::kConstant:
        constant(argument.constant);
        break;
    }
  }

  // Contents are hashed by their bytes; | 1 reserves 0 for "not computed".
  void constant(ConstantId id) {
    if (constants_[id] == 0) {
      std::string content = "unreadable";
      if (const auto readable = tensor_bytes(graph_.constant(id))) {
        content = c10::toString(readable->dtype);
        for (const int64_t size : readable->sizes) content += "," + std::to_string(size);
        content.append(readable->bytes.begin(), readable->bytes.end());
      }
      constants_[id] = std::hash<std::string>{}(content) | 1;
    }
    sink_.token(constants_[id]);
  }

  void results(std::span<const Argument> results) {
    sink_.token(results.size());
    for (const Argument& result : results) {
      sink_.token(static_cast<uint64_t>(result.kind));
      if (result.kind == ArgumentKind::kList) this->results(graph_.list(result));
      if (result.kind == ArgumentKind::kValue) value(result.ref.value);
    }
  }

  void value(ValueId id) {
    const Value& v = graph_.value(id);
    const auto byte = [](auto narrow) { return static_cast<uint64_t>(static_cast<uint8_t>(narrow)); };
    sink_.token(byte(v.kind) | byte(v.dtype) << 8 | byte(v.layout) << 16 | byte(v.device_type) << 24 |
                byte(v.device_index) << 32 | uint64_t{v.requires_grad} << 40 | uint64_t{v.rank} << 48);
    sink_.token(numbering_.of(v.storage));
    sink_.value(id);
    if (v.kind != ValueKind::kTensor) return;
    uint32_t which = 0;
    for (const int64_t& size : graph_.sizes(id)) sink_.integer("size", which++, size);
    which = 0;
    for (const int64_t& stride : graph_.strides(id)) sink_.integer("stride", which++, stride);
    sink_.integer("offset", 0, v.offset);
  }

  const Graph& graph_;
  Sink& sink_;
  const Numbering numbering_;
  std::vector<uint64_t> strings_;  // hashes; 0: not computed
  std::vector<uint64_t> targets_;
  IdMap<ConstantId, uint64_t> constants_;
};

namespace {

constexpr size_t kMaxMisfits = 8;  // limit for messages

struct Numbers {
  std::vector<int64_t> integers;
  std::vector<double> reals;
  std::vector<std::string> texts;
};

struct NumberSink : NoSink {
  Numbers numbers;

  void integer(const char*, uint32_t, const int64_t& value) { numbers.integers.push_back(value); }
  void real(const char*, uint32_t, const double& value) { numbers.reals.push_back(value); }
  void text(const std::string& text) { numbers.texts.push_back(text); }
};

// The first capture with its structure and the places of its numbers.
struct BaseSink : NumberSink {
  std::vector<uint64_t> tokens;
  std::vector<std::pair<size_t, NodeId>> nodes;  // and its first token
  IdMap<ValueId, uint32_t>& values;
  IdMap<StorageId, uint32_t>& storages;

  void node(NodeId id) { nodes.emplace_back(tokens.size(), id); }
  void token(uint64_t token) { tokens.push_back(token); }
  void value(ValueId id) { values[id] = static_cast<uint32_t>(numbers.integers.size()); }
  void storage(StorageId id) { storages[id] = static_cast<uint32_t>(numbers.integers.size()); }
};

// Another capture: its numbers, while its structure equals that of the first.
struct AlignedSink : NumberSink {
  const std::vector<uint64_t>& expected;
  size_t next = 0;
  NodeId current;
  bool differs = false;
  size_t where = 0;   // the first token that differs
  NodeId where_node;  // the node of that token

  void node(NodeId id) { current = id; }
  void token(uint64_t token) {
    // The walk cannot be stopped, so only record the first difference.
    if (!differs && (next >= expected.size() || expected[next] != token)) {
      differs = true;
      where = next;
      where_node = current;
    }
    ++next;
  }
};

// Describes given numbers. Filled by a separate walk when a message needs it, since descriptions cost text for each.
struct NamingSink : NoSink {
  const Graph& graph;
  const Numbering& numbering;
  std::map<uint32_t, std::string> integers;  // requested on input, described on output
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
  void integer(const char* what, uint32_t which, const int64_t&) {
    if (const auto asked = integers.find(integer_index++); asked != integers.end()) asked->second = name(what, which);
  }
  void real(const char* what, uint32_t which, const double&) {
    if (const auto asked = reals.find(real_index++); asked != reals.end()) asked->second = name(what, which);
  }
};

// "batch 2, seq 64", for messages.
std::string words(const NamedSizes& sizes) {
  std::string text;
  for (const auto& [name, size] : sizes) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(size);
  return text;
}

[[noreturn]] void throw_difference(const SizedGraph& base, const BaseSink& walked, const SizedGraph& other,
                                   const AlignedSink& sink) {
  // Tokens are numbered; the node is the last one that starts before the difference.
  const auto after = std::upper_bound(walked.nodes.begin(), walked.nodes.end(), sink.where,
                                      [](size_t token, const auto& entry) { return token < entry.first; });
  const NodeId node = after == walked.nodes.begin() ? NodeId() : std::prev(after)->second;
  const auto line = [](const Graph& graph, NodeId at) {
    return at.valid() ? to_text(graph, at) : std::string("(after the last node: regions, storages or dependencies)");
  };
  throw UnsupportedError(
      "the captures at " + words(base.sizes) + " and at " + words(other.sizes) +
      " are different programs: a kernel or branch depends on the size. The first difference is at\n  " +
      words(base.sizes) + ": " + line(base.graph, node) + "\n  " + words(other.sizes) + ": " +
      line(other.graph, sink.where_node) + "\nCapture at sizes on one side of the change.");
}

// Splits "[2, 30]" into pieces "[", ", ", "]" and numbers 2, 30. Others, and leading zeros, are text.
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

// Returns the integers that these values, or their inverses, represent. Inverses must round-trip (1/n in a mean).
std::optional<std::vector<int64_t>> as_integers(std::span<const double> reals, bool inverse) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  std::vector<int64_t> integers;
  for (const double real : reals) {
    const double value = inverse ? std::round(1.0 / real) : real;
    // Above 2^53 a double cannot represent all integers, so the original size is unknown.
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

// Maps rows of samples to polynomials; each distinct row is fitted once.
class RowFit {
 public:
  RowFit(const PolynomialFit& fit, std::vector<Polynomial>& polynomials) : fit_(fit), polynomials_(polynomials) {}

  // Most numbers of a graph repeat a few dozen rows: sizes of the same layers.
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
  for (const T& value : values) text += (text.empty() ? "" : ", ") + c10::str(value);
  return text;
}

}  // namespace

// State of a fit. A misfit is a number that no polynomial fits, with its index and samples.
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
    // Collect all misfits before reporting.
    if (!integer_misfits_.empty() || !real_misfits_.empty() || !text_misfits_.empty()) throw_misfits();
    result_.base_ = std::move(captures_[0].graph);
    return std::move(result_);
  }

 private:
  using Misfits = std::vector<std::pair<uint32_t, std::string>>;

  // The sizes of each capture, ordered by name.
  std::vector<std::vector<int64_t>> points_of_captures() const {
    if (captures_.empty() || captures_[0].sizes.empty())
      throw UnsupportedError("give at least one capture with a named size");
    const NamedSizes& names = captures_[0].sizes;
    std::vector<std::vector<int64_t>> points;
    for (const SizedGraph& capture : captures_) {
      auto& point = points.emplace_back();
      for (const auto& [name, size] : capture.sizes) {
        if (!names.contains(name)) throw UnsupportedError("only some captures have a size named '" + name + "'");
        point.push_back(size);
      }
      if (point.size() != names.size()) throw UnsupportedError("captures have different size names");
    }
    // One capture more than a linear function of all sizes needs, so that a fit can fail.
    if (captures_.size() < names.size() + 2) {
      throw UnsupportedError("too few captures to check a fit: capture at " + std::to_string(names.size() + 2) +
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
      // Between captured sizes, only multiples of their common distance are supported.
      for (const auto& point : points) dimension.step = std::gcd(dimension.step, point[variable] - dimension.smallest);
      if (dimension.step == 0) throw UnsupportedError("'" + name + "' is the same in all captures");
      result_.dimensions_.push_back(dimension);
      ++variable;
    }
  }

  static PolynomialFit polynomials_through(const std::vector<std::vector<int64_t>>& points) {
    try {
      return PolynomialFit(points);
    } catch (const Error& error) {
      throw UnsupportedError(error.what());
    }
  }

  // The first capture provides the tokens with which the others are compared.
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
      // Numbers that are the same in all captures stay constant.
      if (std::ranges::all_of(row, [&](int64_t value) { return value == row[0]; })) continue;
      if (const auto polynomial = rows.of(row)) {
        result_.integers_.push_back({i, *polynomial, false});
      } else {
        integer_misfits_.emplace_back(i, join<int64_t>(row));
      }
    }
  }

  // A real number is first fitted as an integer: 2.0 may be a converted size.
  void fit_reals(RowFit& rows) {
    std::vector<double> reals(samples_.size());
    for (uint32_t i = 0; i < samples_[0].reals.size(); ++i) {
      for (size_t s = 0; s < samples_.size(); ++s) reals[s] = samples_[s].reals[i];
      if (std::ranges::all_of(reals, [&](double value) { return same_bits(value, reals[0]); })) continue;
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

  // Texts are metadata and guards that contain sizes.
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

  // A text varies with the numbers in it; everything between them must be the same in all captures.
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
      // A constant column is a constant polynomial, which always fits.
      const auto polynomial = rows.of(column);
      if (!polynomial) return std::nullopt;
      text.polynomials.push_back(*polynomial);
    }
    return text;
  }

  // Describes the first few misfits. Only these are described, since that costs a walk and text for each number.
  [[noreturn]] void throw_misfits() const {
    const Numbering numbering = Numbering::of(captures_[0].graph);
    NamingSink names{.graph = captures_[0].graph, .numbering = numbering};
    const auto ask = [](const Misfits& misfits, std::map<uint32_t, std::string>& asked) {
      for (size_t i = 0; i < std::min(misfits.size(), kMaxMisfits); ++i) asked.emplace(misfits[i].first, "");
    };
    ask(integer_misfits_, names.integers);
    ask(real_misfits_, names.reals);
    GraphWalk(captures_[0].graph, names).run();
    std::string message = text_misfits_;
    const auto tell = [&](const Misfits& misfits, const std::map<uint32_t, std::string>& named) {
      for (const auto& [index, values] : misfits) {
        if (const auto name = named.find(index); name != named.end()) message += "\n  " + values + ": " + name->second;
      }
    };
    tell(integer_misfits_, names.integers);
    tell(real_misfits_, names.reals);
    std::string where;
    for (const SizedGraph& capture : captures_) where += (where.empty() ? "" : "; ") + words(capture.sizes);
    throw UnsupportedError("no polynomial with fewer terms than there are captures fits " +
                           std::to_string(integer_misfits_.size() + real_misfits_.size()) +
                           " numbers of the captures at " + where + ":" + message +
                           "\nIf a size is divided or padded, capture at multiples of the divisor; if it grows "
                           "with a high power, capture at more sizes.");
  }

  std::vector<SizedGraph> captures_;
  SymbolicGraph result_;
  std::vector<Numbers> samples_;  // by capture
  Misfits integer_misfits_;
  Misfits real_misfits_;
  std::string text_misfits_;  // formatted for the message
};

SymbolicGraph SymbolicGraph::fit(std::vector<SizedGraph> captures) { return Fit(std::move(captures)).run(); }

namespace {

// Collects the addresses of the requested numbers, in the order of GraphWalk.
struct AddressSink : NoSink {
  std::span<const uint32_t> wanted_integers;  // ascending
  // Indices are ascending, so one cursor is enough.
  std::span<const uint32_t> wanted_reals;
  std::vector<const int64_t*> integers;
  std::vector<const double*> reals;
  uint32_t integer_index = 0;
  uint32_t real_index = 0;

  void integer(const char*, uint32_t, const int64_t& value) {
    if (integers.size() < wanted_integers.size() && wanted_integers[integers.size()] == integer_index) {
      integers.push_back(&value);
    }
    ++integer_index;
  }
  void real(const char*, uint32_t, const double& value) {
    if (reals.size() < wanted_reals.size() && wanted_reals[reals.size()] == real_index) reals.push_back(&value);
    ++real_index;
  }
};

}  // namespace

SymbolicGraph::~SymbolicGraph() = default;
SymbolicGraph::SymbolicGraph(SymbolicGraph&&) noexcept = default;
SymbolicGraph& SymbolicGraph::operator=(SymbolicGraph&&) noexcept = default;

// Returns why a size is not supported. Smaller sizes may take other paths; those between the steps may be rounded.
std::optional<std::string> SymbolicGraph::refusal(const NamedSizes& sizes) const {
  for (const auto& [name, size] : sizes) {
    if (std::ranges::none_of(dimensions_, [&](const Dimension& d) { return d.name == name; })) {
      return "there is no size named '" + name + "'";
    }
  }
  for (const Dimension& dimension : dimensions_) {
    const auto found = sizes.find(dimension.name);
    if (found == sizes.end()) return "'" + dimension.name + "' is not given";
    const int64_t size = found->second;
    const std::string what = dimension.name + " " + std::to_string(size);
    if (size < dimension.smallest) {
      return what + " is less than the smallest captured, " + std::to_string(dimension.smallest) +
             ": small sizes, 0 and 1 above all, may take other paths";
    }
    if ((size - dimension.smallest) % dimension.step != 0) {
      return what + " is not covered by the captures: use " + std::to_string(dimension.smallest) + " and every " +
             std::to_string(dimension.step) + " from there";
    }
  }
  return std::nullopt;
}

std::vector<int64_t> SymbolicGraph::values_at(const NamedSizes& sizes) const {
  if (const auto why_not = refusal(sizes)) throw UnsupportedError(*why_not);
  std::vector<int64_t> point;
  for (const auto& [name, size] : sizes) point.push_back(size);
  std::vector<int64_t> values;
  values.reserve(polynomials_.size());
  for (const Polynomial& polynomial : polynomials_) values.push_back(polynomial.evaluate(point));
  return values;
}

Graph SymbolicGraph::instantiate(const NamedSizes& sizes) const {
  Instance instance(*this);
  instance.at(sizes);
  return std::move(instance.graph_);
}

std::optional<std::string> SymbolicGraph::difference_from(const NamedSizes& sizes, const Graph& capture) const {
  return first_difference(instantiate(sizes), capture);
}

// The graph is owned by this object and not const, so the casts are valid. Graph exposes numbers as read-only because
// most edits must maintain lists of uses and storages, which these do not affect.
SymbolicGraph::Instance::Instance(const SymbolicGraph& symbolic) : symbolic_(symbolic), graph_(clone(symbolic.base_)) {
  for (const auto& [key, text] : graph_.metadata.lines()) metadata_keys_.push_back(key);
  // Values with the same sizes in the first capture share them in memory, but may differ in others.
  for (const NodeId node : symbolic.base_.nodes()) {
    symbolic.base_.for_each_output(node, [&](ValueId value) {
      const uint32_t first = symbolic.value_numbers_[value];
      const auto varying = std::ranges::lower_bound(symbolic.integers_, first, {}, &Varying::index);
      const uint32_t end = first + 2U * symbolic.base_.value(value).rank;
      if (varying != symbolic.integers_.end() && varying->index < end) graph_.unshare_dims(value);
    });
  }
  const auto indices = [](const std::vector<Varying>& varying) {
    std::vector<uint32_t> wanted;
    for (const Varying& number : varying) wanted.push_back(number.index);
    return wanted;
  };
  const std::vector<uint32_t> integers = indices(symbolic.integers_);
  const std::vector<uint32_t> reals = indices(symbolic.reals_);
  AddressSink sink{.wanted_integers = integers, .wanted_reals = reals};
  // Addresses are stable: arenas never move their elements.
  GraphWalk(std::as_const(graph_), sink).run();
  TORCH_INTERNAL_ASSERT(sink.integers.size() == integers.size() && sink.reals.size() == reals.size(),
                        "a copy of the graph has other numbers");
  for (const int64_t* address : sink.integers) integers_.push_back(const_cast<int64_t*>(address));
  for (const double* address : sink.reals) reals_.push_back(const_cast<double*>(address));
}

const Graph& SymbolicGraph::Instance::at(const NamedSizes& sizes) {
  const std::vector<int64_t> values = symbolic_.values_at(sizes);
  for (size_t i = 0; i < integers_.size(); ++i) *integers_[i] = values[symbolic_.integers_[i].polynomial];
  for (size_t i = 0; i < reals_.size(); ++i) {
    const auto value = static_cast<double>(values[symbolic_.reals_[i].polynomial]);
    *reals_[i] = symbolic_.reals_[i].inverse ? 1.0 / value : value;
  }
  for (const VaryingText& varying : symbolic_.texts_) {
    std::string text = varying.pieces[0];
    for (size_t i = 0; i < varying.polynomials.size(); ++i) {
      text += std::to_string(values[varying.polynomials[i]]) + varying.pieces[i + 1];
    }
    if (varying.index < metadata_keys_.size()) {
      graph_.metadata.set(metadata_keys_[varying.index], std::move(text));
    } else {
      graph_.guards[varying.index - metadata_keys_.size()].observed = std::move(text);
    }
  }
  return graph_;
}

// A number that does not vary is a constant polynomial.
Polynomial SymbolicGraph::number(uint32_t index, int64_t constant) const {
  const auto varying = std::ranges::lower_bound(integers_, index, {}, &Varying::index);
  if (varying != integers_.end() && varying->index == index) return polynomials_[varying->polynomial];
  return Polynomial::constant(constant);
}

Polynomial SymbolicGraph::size(ValueId value, size_t dimension) const {
  return number(value_numbers_[value] + static_cast<uint32_t>(dimension), base_.sizes(value)[dimension]);
}
Polynomial SymbolicGraph::stride(ValueId value, size_t dimension) const {
  const uint32_t first = value_numbers_[value] + base_.value(value).rank;
  return number(first + static_cast<uint32_t>(dimension), base_.strides(value)[dimension]);
}
Polynomial SymbolicGraph::offset(ValueId value) const {
  return number(value_numbers_[value] + 2U * base_.value(value).rank, base_.value(value).offset);
}
Polynomial SymbolicGraph::bytes(StorageId storage) const {
  return number(storage_numbers_[storage], base_.storage(storage).bytes);
}

std::string SymbolicGraph::type_text(ValueId value) const {
  std::string plain = shadowgraph::type_text(base_, value);
  const size_t bracket = plain.find('[');
  if (base_.value(value).kind != ValueKind::kTensor || bracket == std::string::npos) return plain;
  std::vector<std::string> names;
  for (const Dimension& dimension : dimensions_) names.push_back(dimension.name);
  std::string text = plain.substr(0, bracket + 1);
  for (size_t i = 0; i < base_.sizes(value).size(); ++i) text += (i == 0 ? "" : ",") + size(value, i).to_text(names);
  return text + "]";
}

std::string SymbolicGraph::to_text() const {
  const Numbering numbering = Numbering::of(base_);
  std::vector<std::string> names;
  std::string text = "sizes";
  for (const Dimension& dimension : dimensions_) {
    names.push_back(dimension.name);
    text +=
        " " + dimension.name + " = " + std::to_string(dimension.smallest) + " + k*" + std::to_string(dimension.step);
  }
  text += "\n";
  for (const StorageId id : numbering.storages()) {
    const Polynomial polynomial = bytes(id);
    if (polynomial.is_constant()) continue;
    text += "s" + std::to_string(numbering.of(id)) + " = " + polynomial.to_text(names) + "\n";
  }
  for (const NodeId node : numbering.nodes()) {
    std::string results;
    base_.for_each_output(node, [&](ValueId value) {
      results += c10::str(results.empty() ? "%" : ", %", numbering.of(value), " ", type_text(value));
    });
    text += "n" + std::to_string(numbering.of(node)) + ": " + base_.target(node).name() + " -> " + results + "\n";
  }
  return text;
}

}  // namespace shadowgraph
