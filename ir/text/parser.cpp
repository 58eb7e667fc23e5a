// Reads graph text (docs/graph.md has the format by example, printer.cpp writes it).
//
// There is one pass over the lines, by recursive descent where brackets nest, with a bound on their depth: the text may
// be anybody's. The graph is built while it is read, and ids are positions: the k-th node line is node k. So what parse
// gives prints back byte for byte. A line may speak of later lines: values of composites' arguments, deaths and births,
// forward links. That waits in lists of (number, place) until finish(), so that its error, too, names line and column.
//
// Only the form is checked here, and what the graph could not hold. Whether it makes sense is the verifier's question.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "ir/operators/schema_changes.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"
#include "ir/text/text_parser.h"
#include "ir/text/words.h"
#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

// libtorch's schema parser recurses on nested types and expands `int[N] x=0` to N ints, so it must not see just
// anything.
constexpr size_t kMaxSchemaBytes = size_t{1} << 16;
constexpr int kMaxSchemaNesting = 32;
constexpr int kMaxSchemaListSize = 1024;

}  // namespace

// A line says what it is by its first word or letter. Lines may come in any order, as long as what they cite is
// declared above.
Graph TextParser::run() {
  header();
  while (cursor_.next_line()) {
    if (cursor_.at_id('n') || cursor_.peek() == '%') {
      node_line();
    } else if (cursor_.eat_word("meta")) {
      meta_line();
    } else if (cursor_.eat_word("operator")) {
      target_line(TargetKind::kOperator);
    } else if (cursor_.eat_word("function")) {
      target_line(TargetKind::kFunction);
    } else if (cursor_.eat_word("depends")) {
      guard_line();
    } else if (cursor_.at_id('s')) {
      storage_line();
    } else if (cursor_.at_id('r')) {
      region_line();
    } else if (cursor_.at_id('c')) {
      constant_line();
    } else {
      node_line();  // without results or number, sg::output(...), as people write it
    }
    cursor_.expect_end();
  }
  finish();
  return std::move(graph_);
}

// ---- The head -------------------------------------------------------------------------------------------------------

// The version stands first, so that a text of a later format is refused as such and not as nonsense. Schemas in the text
// say what operators take; those of another libtorch are looked for in this one (ir/operators/schema_changes.h).
void TextParser::header() {
  if (!cursor_.next_line() || !cursor_.eat_word("shadowgraph")) {
    cursor_.fail("this is no shadowgraph text", "a first line such as 'shadowgraph 1 libtorch 2.13.0'");
  }
  cursor_.peek();
  const Place place = cursor_.place();
  const int64_t version = cursor_.take_int();
  if (version > kTextFormatVersion) {
    cursor_.fail_at(place,
                    fmt::format("format version {} is newer than what this library reads; update shadowgraph", version),
                    fmt::format("at most {}", kTextFormatVersion));
  }
  if (version < 1) cursor_.fail_at(place, "no format version", "1");
  cursor_.expect_word("libtorch");
  const std::string_view libtorch = cursor_.take_rest();
  if (libtorch.empty()) cursor_.fail("no libtorch version", "a version such as 2.13.0");
  of_another_libtorch_ = libtorch != libtorch_version();
}

// Metadata checks its own values; its error gets the place in the text.
void TextParser::meta_line() {
  cursor_.peek();
  const Place place = cursor_.place();
  std::string key = cursor_.take_quoted();
  cursor_.expect('=');
  if (graph_.metadata.has(key)) cursor_.fail_at(place, "a second meta line for this key", "each key once");
  cursor_.peek();
  const Place value = cursor_.place();
  try {
    graph_.metadata.set(key, cursor_.take_quoted());
  } catch (const ParseError&) {
    throw;
  } catch (const Error& error) {
    cursor_.fail_at(value, error.what(), "what Metadata says (shadowgraph/graph/metadata.h)");
  }
}

// A schema goes to libtorch's own parser, which was not written for text that means harm: bounds first.
void TextParser::target_line(TargetKind kind) {
  cursor_.peek();
  const Place place = cursor_.place();
  // Everything is bounded before libtorch's parser sees it.
  const std::string_view text = cursor_.take_rest();
  if (text.size() > kMaxSchemaBytes) cursor_.fail_at(place, "a schema that is too long", "at most 64 KiB");
  int nesting = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    nesting += (text[i] == '(' || text[i] == '[') - (text[i] == ')' || text[i] == ']');
    if (nesting > kMaxSchemaNesting) cursor_.fail_at(place, "a schema that nests too deep", "at most 32 brackets");
    // `int[1000000000] x=0` would become a list of as many ints.
    if (text[i] == '[' && i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9') {
      const size_t end = std::min(text.find_first_not_of("0123456789", i + 1), text.size());
      const auto size = parse_int(text.substr(i + 1, end - i - 1));
      if (!size || *size > kMaxSchemaListSize) {
        cursor_.fail_at(place, "a schema with too large a fixed-size list", "at most 1024 elements");
      }
    }
  }
  std::optional<Target> target;
  try {
    target.emplace(kind, std::string(text));
  } catch (const ParseError&) {
    cursor_.fail_at(place, "not an operator schema that libtorch can read",
                    "one such as aten::mm(Tensor self, Tensor mat2) -> Tensor");
  }
  std::string name = target->name();
  std::optional<Target> here = of_another_libtorch_ ? in_this_libtorch(*target) : std::nullopt;
  // Interning says whether the schema was there before: a second line for it would shift no id, but prints differently.
  const uint32_t before = graph_.target_count();
  const TargetId id = graph_.intern_target(here ? *std::move(here) : *std::move(target));
  if (graph_.target_count() == before && graph_.target(id).name() == name) {
    cursor_.fail_at(place, "a schema that was there before", "each schema once");
  }
  name_target(id, std::move(name));
}

// Names of targets are what node lines cite, so they must be unique.
void TextParser::name_target(TargetId id, std::string name) {
  std::string unique = name;
  // Two schemas of one name (a function declared again otherwise) are f and f#2, in the order of their lines.
  for (int copy = 2; !target_names_.emplace(unique, id).second; ++copy) unique = fmt::format("{}#{}", name, copy);
}

TargetId TextParser::take_target() {
  cursor_.peek();
  const Place place = cursor_.place();
  const std::string_view name = cursor_.take_name();
  if (name.empty()) cursor_.fail_at(place, "no operator name", "one such as aten::mm");
  auto found = target_names_.end();
  if (cursor_.eat('#')) {
    found = target_names_.find(fmt::format("{}#{}", name, cursor_.take_int()));
  } else {
    found = target_names_.find(name);
  }
  if (found == target_names_.end()) {
    std::string what = "unknown operator ";
    append_quoted(what, name);
    cursor_.fail_at(place, what, "one that an 'operator' or 'function' line above declares, with its overload name");
  }
  return found->second;
}

// Storages, regions and constants are numbered by their lines. A number out of order is an error, since it would come
// back as another one.
void TextParser::storage_line() {
  const Place place = cursor_.place();
  if (cursor_.take_id('s', "a storage") != graph_.storage_count()) {
    cursor_.fail_at(place, "a storage out of order", fmt::format("s{}", graph_.storage_count()));
  }
  cursor_.expect('=');
  Storage storage;
  storage.bytes = cursor_.take_int();
  cursor_.peek();
  const Place device_place = cursor_.place();
  const auto device = parse_device(cursor_.take_name());
  if (!device) cursor_.fail_at(device_place, "no device", "one such as cpu or cuda:0");
  storage.device_type = device->type();
  storage.device_index = device->index();
  cursor_.peek();
  const Place kind_place = cursor_.place();
  const auto kind = parse_storage_kind(cursor_.take_identifier());
  if (!kind) {
    cursor_.fail_at(kind_place, "no storage kind",
                    "parameter, buffer, input, constant, activation, gradient, optimizer_state or temporary");
  }
  storage.kind = *kind;
  // Most storages are born at the first node whose result has them. The text leaves that out, and take_type fills it
  // in.
  Born born;
  if (cursor_.eat_word("born")) {
    born.stated = true;
    if (!cursor_.eat_word("before")) born.node = take_node();
  }
  graph_.add_storage(storage);
  born_.push_back(born);
}

void TextParser::region_line() {
  const Place place = cursor_.place();
  const uint32_t number = cursor_.take_id('r', "a region");
  // r0, the root, is in every graph; a line for it, if any, is the first and gives it a name.
  if (number != graph_.region_count() && (number != 0 || graph_.region_count() != 1)) {
    cursor_.fail_at(place, "a region out of order", fmt::format("r{}", graph_.region_count()));
  }
  cursor_.expect('=');
  Region region;
  cursor_.peek();
  const Place kind_place = cursor_.place();
  const auto kind = parse_region_kind(cursor_.take_identifier());
  if (!kind || (*kind == RegionKind::kRoot) != (number == 0)) {
    cursor_.fail_at(kind_place, "no region kind", number == 0 ? "root" : "module, composite, checkpoint or scope");
  }
  region.kind = *kind;
  std::optional<std::string> name;
  std::string class_name;
  if (cursor_.peek() == '"') name = cursor_.take_quoted();
  if (cursor_.peek() == '"') class_name = cursor_.take_quoted();
  if (cursor_.eat_word("call")) {
    const int64_t call = cursor_.take_int();
    if (call < 0 || call > UINT32_MAX) cursor_.fail("a call index out of range", "one from 0 to 4294967295");
    region.call = static_cast<uint32_t>(call);
  }
  std::span<const Argument> arguments;
  // `in r3 inferred` may stand behind the operator or, if there is none, at once: a word that is none of these is a
  // target.
  const auto at_tail = [&] {
    if (cursor_.eat_word("in")) region.parent = RegionId(cursor_.take_id('r', "the parent region"));
    region.inferred = cursor_.eat_word("inferred");
    return region.parent.valid() || region.inferred || cursor_.at_end();
  };
  if (!at_tail()) {
    region.target = take_target();
    if (cursor_.peek() == '(') arguments = arguments_.take_arguments(region.target, true);
    at_tail();
  }
  // So that no walk to the root goes in circles.
  if (region.parent.valid() && region.parent.index >= number) {
    cursor_.fail_at(place, "a parent that is not an earlier region", "the tree from the root on");
  }
  region.name = graph_.intern(name ? *name : region.target.valid() ? graph_.target(region.target).name() : "");
  region.class_name = graph_.intern(class_name);
  if (number == 0) {
    mutable_region(graph_, Graph::kRootRegion) = region;
  } else {
    graph_.add_region(region);
  }
  if (!arguments.empty()) graph_.set_region_arguments(RegionId(number), arguments);
}

void TextParser::constant_line() {
  const Place place = cursor_.place();
  if (cursor_.take_id('c', "a constant") != graph_.constant_count()) {
    cursor_.fail_at(place, "a constant out of order", fmt::format("c{}", graph_.constant_count()));
  }
  cursor_.expect('=');
  if (cursor_.eat_word("unreadable")) {
    graph_.add_constant(at::Tensor());  // meta, sparse or the like when it was printed; its node has its type
    return;
  }
  TensorBytes tensor;
  cursor_.peek();
  const Place type_place = cursor_.place();
  const auto dtype = parse_dtype(cursor_.take_identifier());
  if (!dtype) cursor_.fail_at(type_place, "no dtype", "one such as f32");
  tensor.dtype = *dtype;
  take_sizes('[', ']', tensor.sizes);
  if (cursor_.peek() == '{') {
    take_sizes('{', '}', tensor.strides);
  } else {
    contiguous_strides(tensor.sizes, tensor.strides);
  }
  cursor_.peek();
  const Place bytes_place = cursor_.place();
  auto bytes = parse_base64(cursor_.take_quoted());
  if (!bytes) cursor_.fail_at(bytes_place, "no base64 text", "the tensor's bytes in base64");
  tensor.bytes = std::move(*bytes);
  auto made = tensor_of(tensor);
  if (!made) cursor_.fail_at(bytes_place, "as many bytes as do not fit the type", "those of its sizes and strides");
  graph_.add_constant(std::move(*made));
}

void TextParser::guard_line() {
  cursor_.peek();
  const Place place = cursor_.place();
  const auto kind = parse_guard_kind(cursor_.take_identifier());
  if (!kind) cursor_.fail_at(place, "no kind of dependency", "rank, size, sizes or host_value");
  Guard guard;
  guard.kind = *kind;
  cursor_.expect('(');
  guard.value = take_value(true);
  if (cursor_.eat(',')) guard.dimension = cursor_.take_int();
  cursor_.expect(')');
  cursor_.expect('=');
  guard.observed = cursor_.take_quoted();
  graph_.guards.push_back(std::move(guard));
}

// ---- References -----------------------------------------------------------------------------------------------------

ValueId TextParser::take_value(bool forward) {
  cursor_.peek();
  const Place place = cursor_.place();
  // Erased since: composites' arguments and guards may outlive the values they name.
  if (forward && cursor_.eat_word("%?")) return {};
  const uint32_t number = cursor_.take_id('%', "a value");
  if (number >= graph_.value_capacity()) {
    if (!forward) {
      cursor_.fail_at(place, fmt::format("%{} is not made by a line above", number), "a value defined earlier");
    }
    forward_values_.push_back({number, place});
  }
  return ValueId(number);
}

// Storages are declared above all nodes, so a number that is too large is known to be wrong at once.
StorageId TextParser::take_storage() {
  cursor_.peek();
  const Place place = cursor_.place();
  const uint32_t number = cursor_.take_id('s', "a storage");
  if (number >= graph_.storage_count()) {
    cursor_.fail_at(place, fmt::format("there is no s{}", number), "a storage that a line above declares");
  }
  return StorageId(number);
}

// A node may be cited before its line (deaths, births), so the check waits for finish().
NodeId TextParser::take_node() {
  cursor_.peek();
  const Place place = cursor_.place();
  const uint32_t number = cursor_.take_id('n', "a node");
  forward_nodes_.push_back({number, place});
  return NodeId(number);
}

// ---- The end --------------------------------------------------------------------------------------------------------

// What was cited before its line is checked now, in the order of citation, so that the first wrong one is reported.
void TextParser::finish() {
  for (const Forward& forward : forward_values_) {
    if (forward.index >= graph_.value_capacity()) {
      cursor_.fail_at(forward.place, fmt::format("no line makes %{}", forward.index), "a value of this text");
    }
  }
  for (const Forward& forward : forward_nodes_) {
    if (forward.index >= graph_.node_capacity()) {
      cursor_.fail_at(forward.place, fmt::format("there is no n{}", forward.index), "a node of this text");
    }
  }
  // Births are set last: a storage's line may cite a node that comes later.
  for (uint32_t i = 0; i < born_.size(); ++i) mutable_storage(graph_, StorageId(i)).born = born_[i].node;
  check_writes();
}

// Compares the stated writes with the real ones. Both lists are in program order, so one walk along both will do.
// Random numbers are no storages of the text.
void TextParser::check_writes() {
  // Without a statement there is nothing to hold against anything, and effects cost a walk.
  if (writes_.empty()) return;
  const Effects effects = Effects::of(graph_);
  for (size_t i = 0; i < writes_.size();) {
    const NodeId node = writes_[i].node;
    for (const StorageWrite& write : effects.writes(node)) {
      if (effects.is_generator(write.storage)) continue;
      const bool here = i < writes_.size() && writes_[i].node == node;
      if (!here || writes_[i].storage != write.storage || writes_[i].version != write.after) {
        cursor_.fail_at(writes_[here ? i : i - 1].place, "not the writes that this operator makes",
                        fmt::format("s{}@{}", write.storage.index, write.after));
      }
      ++i;
    }
    if (i < writes_.size() && writes_[i].node == node) {
      cursor_.fail_at(writes_[i].place, "a write that this operator does not make", "what its schema says it writes");
    }
  }
}

Graph parse(std::string_view text, std::string_view name) { return TextParser(text, name).run(); }

Graph read_graph_file(const std::string& path) { return parse(read_file(path), path); }

}  // namespace shadowgraph
