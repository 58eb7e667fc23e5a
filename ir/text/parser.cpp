// Parser of graph text. grammar.md has the grammar; each function implements one of its rules.
//
// The graph is built while reading, and ids are positions: the k-th node line is node k. References to later lines are
// collected as (number, position) and resolved in finish(), so that their errors also have line and column.
//
// Time and memory are linear in the size of the text, even for malicious files. So the depth of lists and the number of
// phases are bounded, and ids must be in order. Only checks the form; the verifier checks the rest.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/operators/schema_changes.h"
#include "ir/records.h"
#include "ir/text/cursor.h"
#include "ir/text/tensor_bytes.h"
#include "ir/text/words.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"
#include "support/text.h"

namespace shadowgraph {

namespace {

// Limits for libtorch's schema parser, which recurses on nested types and expands `int[N] x=0` to N ints.
constexpr size_t kMaxSchemaBytes = size_t{1} << 16;
constexpr int kMaxSchemaNesting = 32;
constexpr int kMaxSchemaListSize = 1024;
// intern_phase compares with all existing phases.
constexpr uint32_t kMaxPhases = 1024;

// Allows looking up names as views of the text, without a string for each node line.
struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};

class TextParser {
 public:
  TextParser(std::string_view text, std::string_view name) : cursor_(text, name) {
    // Built-ins are declared implicitly.
    for (uint32_t i = 0; i < kBuiltinCount; ++i) name_target(TargetId(i), graph_.target(TargetId(i)).name());
  }
  // Lines may come in any order, as long as what they refer to is declared above.
  Graph run() {
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
        node_line();  // without results or number, sg::output(...), as in hand-written text
      }
      cursor_.expect_end();
    }
    finish();
    return std::move(graph_);
  }

 private:
  using Place = Cursor::Place;

  // The version comes first, so that text in a later format is reported as such. Operators whose schema in the text
  // differs from this libtorch's are converted (ir/operators/schema_changes.h).
  void header() {
    if (!cursor_.next_line() || !cursor_.eat_word("shadowgraph")) {
      cursor_.fail("not shadowgraph text", "a first line such as 'shadowgraph 1 libtorch 2.13.0'");
    }
    const Place place = cursor_.next_place();
    const int64_t version = cursor_.take_int();
    if (version > kTextFormatVersion) {
      cursor_.fail_at(place,
                      fmt::format("format version {} is newer than this library supports; update shadowgraph", version),
                      fmt::format("at most {}", kTextFormatVersion));
    }
    if (version < 1) cursor_.fail_at(place, "not a format version", "1");
    cursor_.expect_word("libtorch");
    const std::string_view libtorch = cursor_.take_rest();
    if (libtorch.empty()) cursor_.fail("a missing libtorch version", "a version such as 2.13.0");
    of_another_libtorch_ = libtorch != libtorch_version();
  }

  // Metadata validates its values; the position in the text is added to its error.
  void meta_line() {
    const Place place = cursor_.next_place();
    std::string key = cursor_.take_quoted();
    cursor_.expect('=');
    if (graph_.metadata.has(key)) cursor_.fail_at(place, "a second meta line for this key", "each key once");
    const Place value = cursor_.next_place();
    try {
      graph_.metadata.set(key, cursor_.take_quoted());
    } catch (const ParseError&) {
      throw;
    } catch (const Error& error) {
      cursor_.fail_at(value, error.what(), "a value allowed by Metadata (shadowgraph/graph/graph.h)");
    }
  }

  // libtorch's schema parser is not hardened against malicious text, so limits are checked first.
  void target_line(TargetKind kind) {
    const Place place = cursor_.next_place();
    const std::string_view text = cursor_.take_rest();
    if (text.size() > kMaxSchemaBytes) cursor_.fail_at(place, "a schema that is too long", "at most 64 KiB");
    int nesting = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      nesting += (text[i] == '(' || text[i] == '[') - (text[i] == ')' || text[i] == ']');
      if (nesting > kMaxSchemaNesting) cursor_.fail_at(place, "a schema nested too deeply", "at most 32 brackets");
      // `int[1000000000] x=0` would become a list of that many ints.
      if (text[i] == '[' && i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9') {
        const size_t end = std::min(text.find_first_not_of("0123456789", i + 1), text.size());
        const auto size = parse_number<int64_t>(text.substr(i + 1, end - i - 1));
        if (!size || *size > kMaxSchemaListSize) {
          cursor_.fail_at(place, "a schema with a fixed-size list that is too large", "at most 1024 elements");
        }
      }
    }
    std::optional<Target> target;
    try {
      target.emplace(kind, std::string(text));
    } catch (const ParseError&) {
      cursor_.fail_at(place, "not an operator schema that libtorch can read",
                      "a schema such as aten::mm(Tensor self, Tensor mat2) -> Tensor");
    }
    std::string name = target->name();
    std::optional<Target> here = of_another_libtorch_ ? in_this_libtorch(*target) : std::nullopt;
    // A repeated schema would not shift any id, but the graph would print differently.
    const uint32_t before = graph_.target_count();
    const TargetId id = graph_.intern_target(here ? *std::move(here) : *std::move(target));
    if (graph_.target_count() == before && graph_.target(id).name() == name) {
      cursor_.fail_at(place, "a repeated schema", "each schema once");
    }
    name_target(id, std::move(name));
  }

  // Reads the id of what a line defines. Other numbers than the next one would not round-trip.
  void take_next_id(char letter, std::string_view what, uint32_t next) {
    const Place place = cursor_.place();
    if (cursor_.take_id(letter, what) == next) return;
    cursor_.fail_at(place, fmt::format("{} out of order", what), fmt::format("{}{}", letter, next));
  }

  void storage_line() {
    take_next_id('s', "a storage", graph_.storage_count());
    cursor_.expect('=');
    Storage storage;
    storage.bytes = cursor_.take_int();
    const Place device_place = cursor_.next_place();
    const auto device = parse_device(cursor_.take_name());
    if (!device) cursor_.fail_at(device_place, "not a device", "a device such as cpu or cuda:0");
    storage.device_type = device->type();
    storage.device_index = device->index();
    const Place kind_place = cursor_.next_place();
    const auto kind = find_named<StorageKind>(cursor_.take_identifier());
    if (!kind) {
      cursor_.fail_at(kind_place, "not a storage kind",
                      "parameter, buffer, input, constant, activation, gradient, optimizer_state or temporary");
    }
    storage.kind = *kind;
    // Most storages are allocated by the first node with a result in them: omitted in text, added by take_type.
    Born born;
    if (cursor_.eat_word("born")) {
      born.stated = true;
      if (!cursor_.eat_word("before")) born.node = take_node();
    }
    graph_.add_storage(storage);
    born_.push_back(born);
  }

  void region_line() {
    const Place place = cursor_.place();
    const uint32_t number = cursor_.take_id('r', "a region");
    // Every graph has r0, the root; a line for it, if any, is the first and names it.
    if (number != graph_.region_count() && (number != 0 || graph_.region_count() != 1)) {
      cursor_.fail_at(place, "a region out of order", fmt::format("r{}", graph_.region_count()));
    }
    cursor_.expect('=');
    Region region;
    const Place kind_place = cursor_.next_place();
    const auto kind = find_named<RegionKind>(cursor_.take_identifier());
    if (!kind || (*kind == RegionKind::kRoot) != (number == 0)) {
      cursor_.fail_at(kind_place, "not a region kind", number == 0 ? "root" : "module, composite, checkpoint or scope");
    }
    region.kind = *kind;
    std::optional<std::string> name;
    std::string class_name;
    if (cursor_.peek() == '"') name = cursor_.take_quoted();
    if (cursor_.peek() == '"') class_name = cursor_.take_quoted();
    if (cursor_.eat_word("call")) {
      const int64_t call = cursor_.take_int();
      if (call < 0 || call > UINT32_MAX) cursor_.fail("a call index out of range", "0 to 4294967295");
      region.call = static_cast<uint32_t>(call);
    }
    std::span<const Argument> arguments;
    // `in r3 inferred` may follow the operator or replace it: any other word is a target.
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
    // So that every walk to the root ends.
    if (region.parent.valid() && region.parent.index >= number) {
      cursor_.fail_at(place, "a parent that is not an earlier region", "an earlier region");
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

  void constant_line() {
    take_next_id('c', "a constant", graph_.constant_count());
    cursor_.expect('=');
    if (cursor_.eat_word("unreadable")) {
      graph_.add_constant(at::Tensor());  // a meta, sparse or similar tensor; its node has its type
      return;
    }
    TensorBytes tensor;
    const Place type_place = cursor_.next_place();
    const auto dtype = parse_dtype(cursor_.take_identifier());
    if (!dtype) cursor_.fail_at(type_place, "not a dtype", "a dtype such as f32");
    tensor.dtype = *dtype;
    take_sizes('[', ']', tensor.sizes);
    if (cursor_.peek() == '{') {
      take_sizes('{', '}', tensor.strides);
    } else {
      contiguous_strides(tensor.sizes, tensor.strides);
    }
    const Place bytes_place = cursor_.next_place();
    auto bytes = parse_base64(cursor_.take_quoted());
    if (!bytes) cursor_.fail_at(bytes_place, "not base64 text", "the tensor's bytes in base64");
    tensor.bytes = std::move(*bytes);
    auto made = tensor_of(tensor);
    if (!made)
      cursor_.fail_at(bytes_place, "a number of bytes that does not match the type",
                      "the bytes for its sizes and strides");
    graph_.add_constant(std::move(*made));
  }

  void guard_line() {
    const Place place = cursor_.next_place();
    const auto kind = find_named<Guard::Kind>(cursor_.take_identifier());
    if (!kind) cursor_.fail_at(place, "not a kind of dependency", "rank, size, sizes or host_value");
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

  // The number may be omitted, since the line's position determines it.
  void node_line() {
    if (cursor_.at_id('n')) {
      take_next_id('n', "a node", graph_.node_capacity());
      cursor_.expect(':');
    }
    shapes_.clear();
    if (const char c = cursor_.peek(); c == '%' || c == '[' || cursor_.eat_word("None")) {
      if (c == 'N') shapes_.push_back({Shape::kNone});
      if (c != 'N' || cursor_.eat(',')) take_result_names(0);
      cursor_.expect('=');
    }
    const TargetId target = take_target();
    // Arguments are read before results are created: a node cannot use its own result.
    const NodeId node = graph_.append(target, arguments_.take_arguments(target, false));
    if (!shapes_.empty()) take_results(node);
    if (cursor_.eat('|')) take_attributes(node);
  }

  void name_target(TargetId id, std::string name) {
    std::string unique = name;
    // Two schemas with one name (a function that was redeclared) are f and f#2, in the order of their lines.
    for (int copy = 2; !target_names_.emplace(unique, id).second; ++copy) unique = fmt::format("{}#{}", name, copy);
  }

  TargetId take_target() {
    const Place place = cursor_.next_place();
    const std::string_view name = cursor_.take_name();
    if (name.empty()) cursor_.fail_at(place, "a missing operator name", "a name such as aten::mm");
    const auto found = cursor_.eat('#') ? target_names_.find(fmt::format("{}#{}", name, cursor_.take_int()))
                                        : target_names_.find(name);
    if (found == target_names_.end()) {
      std::string what = "unknown operator ";
      append_quoted(what, name);
      cursor_.fail_at(place, what, "a name with overload that an earlier 'operator' or 'function' line declares");
    }
    return found->second;
  }

  // "%4"; with `forward`, also "%?" (erased) and later values, which are checked at the end.
  ValueId take_value(bool forward) {
    const Place place = cursor_.next_place();
    // Erased: composites' arguments and guards may outlive the values they refer to.
    if (forward && cursor_.eat_word("%?")) return {};
    const uint32_t number = cursor_.take_id('%', "a value");
    if (number >= graph_.value_capacity()) {
      if (!forward) {
        cursor_.fail_at(place, fmt::format("%{} is not defined on an earlier line", number), "a value defined earlier");
      }
      forward_values_.push_back({number, place});
    }
    return ValueId(number);
  }

  // Storages are declared before all nodes, so an unknown number is an error at once.
  StorageId take_storage() {
    const Place place = cursor_.next_place();
    const uint32_t number = cursor_.take_id('s', "a storage");
    if (number >= graph_.storage_count()) {
      cursor_.fail_at(place, fmt::format("s{} is not declared", number), "a storage declared on an earlier line");
    }
    return StorageId(number);
  }

  // A node may be referred to before its line (frees, allocations), so finish() checks it.
  NodeId take_node() {
    const Place place = cursor_.next_place();
    const uint32_t number = cursor_.take_id('n', "a node");
    forward_nodes_.push_back({number, place});
    return NodeId(number);
  }

  // The left side of a line is read before its target, and the types after it. So names are stored as a shape that the
  // types must match. The names themselves are checked here: the k-th name of the text must be value k.
  void take_result_names(int depth) {
    do {
      const char c = cursor_.peek();
      if (c == '%') {
        take_next_id('%', "a result", named_values_++);
        shapes_.push_back({Shape::kValue});
      } else if (c == '[') {
        if (depth >= kMaxListDepth) cursor_.fail("results nested too deeply", "fewer levels");
        cursor_.expect('[');
        shapes_.push_back({Shape::kOpen});
        if (cursor_.peek() != ']') take_result_names(depth + 1);
        cursor_.expect(']');
        shapes_.push_back({Shape::kClose});
      } else if (cursor_.eat_word("None")) {
        shapes_.push_back({Shape::kNone});
      } else {
        cursor_.fail("not a result", "%0, None or [...]");
      }
    } while (cursor_.eat(','));
  }

  void take_results(NodeId node) {
    cursor_.expect(':');
    results_.clear();
    size_t shape = 0;
    while (shape < shapes_.size()) {
      if (shape != 0) cursor_.expect(',');
      results_.push_back(take_result(node, shape, 0));
    }
    graph_.set_results(node, results_);
  }

  Argument take_result(NodeId node, size_t& shape, int depth) {
    switch (shapes_[shape++].kind) {
      case Shape::kValue:
        return Argument::of_value(take_type(node));
      case Shape::kOpen: {
        cursor_.expect('[');
        const size_t base = stack_.size();
        // stack_ holds the elements of all open lists, so that nesting does not allocate.
        for (bool first = true; shapes_[shape].kind != Shape::kClose; first = false) {
          if (!first) cursor_.expect(',');
          const Argument element = take_result(node, shape, depth + 1);
          stack_.push_back(element);
        }
        ++shape;
        cursor_.expect(']');
        const Argument list = graph_.make_list(std::span<const Argument>(stack_).subspan(base));
        stack_.resize(base);
        return list;
      }
      default:
        cursor_.expect_word("None");
        return {};
    }
  }

  // Reads a type: f32[2,3]{1,2} @s4+6 cuda:0 grad. Everything but dtype and sizes is optional; the defaults are
  // contiguous, no storage, offset 0, the storage's device, strided.
  ValueId take_type(NodeId node) {
    const Place place = cursor_.next_place();
    const std::string_view word = cursor_.take_identifier();
    if (cursor_.peek() != '[') {
      if (word == "int") return graph_.new_scalar(node, ValueKind::kInt);
      if (word == "float") return graph_.new_scalar(node, ValueKind::kFloat);
      if (word == "bool") return graph_.new_scalar(node, ValueKind::kBool);
    }
    TensorMeta spec;
    const auto dtype = parse_dtype(word);
    if (!dtype) cursor_.fail_at(place, "not a type", "a type such as f32[2,3], int, float or bool");
    spec.dtype = *dtype;
    take_sizes('[', ']', sizes_);
    if (cursor_.peek() == '{') {
      take_sizes('{', '}', strides_);
      if (sizes_.size() != strides_.size())
        cursor_.fail("a different number of strides and sizes", "one stride per dimension");
    } else {
      contiguous_strides(sizes_, strides_);
    }
    spec.sizes = sizes_;
    spec.strides = strides_;
    if (cursor_.eat('@')) {
      if (!cursor_.eat_word("none")) {
        spec.storage = take_storage();
        spec.device = graph_.storage(spec.storage).device();
        // The first value in a storage implies its allocation, unless its own line states it.
        if (!born_[spec.storage.index].stated) born_[spec.storage.index] = {true, node};
      }
      if (cursor_.eat('+')) spec.offset = cursor_.take_int();
    }
    for (char c = cursor_.peek(); c >= 'a' && c <= 'z'; c = cursor_.peek()) {
      const Place word_place = cursor_.place();
      const std::string_view attribute = cursor_.take_name();
      if (attribute == "grad") {
        spec.requires_grad = true;
      } else if (const auto device = parse_device(attribute);
                 device && attribute != "mkldnn") {  // a layout and a device
        spec.device = *device;
      } else if (const auto layout = parse_layout(attribute)) {
        spec.layout = *layout;
      } else {
        cursor_.fail_at(word_place, "an unknown type attribute", "@storage, a device, a layout or grad");
      }
    }
    return graph_.new_tensor(node, spec);
  }

  // Value::rank is 16 bits wide.
  void take_sizes(char open, char close, std::vector<int64_t>& sizes) {
    sizes.clear();
    cursor_.expect(open);
    const Place place = cursor_.place();
    if (!cursor_.eat(close)) cursor_.take_elements(close, [&] { sizes.push_back(cursor_.take_int()); });
    if (sizes.size() > UINT16_MAX) cursor_.fail_at(place, "too many dimensions", "at most 65535");
  }

  // Attributes may come in any order; the printer uses a fixed one.
  void take_attributes(NodeId node) {
    // Regions are declared before nodes, so their number is fixed here.
    const uint32_t regions = graph_.region_count();
    while (!cursor_.at_end()) {
      const Place place = cursor_.place();
      if (cursor_.at_id('r')) {
        const uint32_t region = cursor_.take_id('r', "a region");
        if (region >= regions) {
          cursor_.fail_at(place, fmt::format("r{} is not declared", region), "a region declared on an earlier line");
        }
        mutable_node(graph_, node).region = RegionId(region);
      } else if (cursor_.peek() == '"') {
        mutable_node(graph_, node).source = graph_.intern(cursor_.take_quoted());
      } else if (const auto* mode =
                     std::ranges::find_if(kModeWords, [&](const ModeWord& m) { return cursor_.eat_word(m.word); });
                 mode != std::end(kModeWords)) {
        mutable_node(graph_, node).flags.*(mode->flag) = true;
      } else if (cursor_.eat_word("of")) {
        mutable_node(graph_, node).forward = take_node();
      } else if (cursor_.eat_word("saved")) {
        take_saved(node);
      } else if (cursor_.eat_word("writes")) {
        take_writes(node);
      } else if (cursor_.eat_word("free")) {
        take_frees(node);
      } else if (cursor_.eat_word("note")) {
        take_notes(node);
      } else {
        take_phase(node);
      }
    }
  }

  // Built-in phases are words; custom ones, which may have any name, are quoted: phase "warm up".
  void take_phase(NodeId node) {
    for (uint32_t i = 0; i <= Graph::kInit.index; ++i) {
      if (cursor_.eat_word(graph_.phase_name(PhaseId(i)))) {
        mutable_node(graph_, node).phase = PhaseId(i);
        return;
      }
    }
    const Place place = cursor_.place();
    if (!cursor_.eat_word("phase")) {
      cursor_.fail("an unknown node attribute",
                   "a region, a phase, 'of', a mode, 'saved', 'writes', 'free', 'note' or a quoted source line");
    }
    mutable_node(graph_, node).phase = graph_.intern_phase(cursor_.take_quoted());
    if (graph_.phase_count() > kMaxPhases) {
      cursor_.fail_at(place, "too many phases", fmt::format("at most {}", kMaxPhases));
    }
  }

  // Saved tensors refer to an argument, a result or an internal value of the operator.
  void take_saved(NodeId node) {
    const Target& target = graph_.target(node);
    const auto arguments = graph_.arguments(node);
    std::vector<SavedTensor> saved;
    cursor_.expect('(');
    cursor_.take_elements(')', [&] {
      const Place place = cursor_.next_place();
      SavedTensor tensor;
      const std::string_view word = cursor_.take_identifier();
      if ((word == "argument" || word == "result") && cursor_.eat('[')) {
        const int64_t index = cursor_.take_int();
        if (index < 0 || index > UINT16_MAX) cursor_.fail_at(place, "an index out of range", "0 to 65535");
        cursor_.expect(']');
        tensor.role = word == "result" ? SavedRole::kResult : SavedRole::kArgument;
        tensor.index = static_cast<uint16_t>(index);
      } else if (word != "internal") {
        const auto position = target.signature().position_of(argument_in_this_libtorch(target, word));
        if (!position) {
          cursor_.fail_at(place, "not a saved tensor", "an argument's name, argument[0], result[0] or internal=%0");
        }
        tensor.role = SavedRole::kArgument;
        tensor.index = static_cast<uint16_t>(*position);
      }
      // An argument or result implies its value, unless it is a list or the saved tensor is a different one.
      if (cursor_.eat('=')) {
        tensor.value = take_value(true);
      } else if (tensor.role == SavedRole::kArgument && tensor.index < arguments.size() &&
                 arguments[tensor.index].kind == ArgumentKind::kValue) {
        tensor.value = arguments[tensor.index].ref.value;
      } else if (tensor.role == SavedRole::kResult) {
        for_each_value_of_role(graph_, node, tensor, [&](ValueId v) { tensor.value = v; });
        if (!tensor.value.valid()) cursor_.fail_at(place, "an unknown result", "the index of a result");
      } else {
        cursor_.fail_at(place, "a saved argument that is not a single tensor", "its value as well: name=%0");
      }
      saved.push_back(tensor);
    });
    graph_.set_saved(node, saved);
  }

  // Reads writes. They follow from schemas and order; the text repeats them for its readers, and check_writes() checks
  // them.
  void take_writes(NodeId node) {
    cursor_.expect('(');
    cursor_.take_elements(')', [&] {
      const Place place = cursor_.next_place();
      const StorageId storage = take_storage();
      cursor_.expect('@');
      const int64_t version = cursor_.take_int();
      if (version < 1 || version > UINT32_MAX)
        cursor_.fail_at(place, "not a version that a write creates", "1 or more");
      writes_.push_back({node, storage, static_cast<uint32_t>(version), place});
    });
  }

  // Each storage is freed once; a second free would be a contradiction that no edit can create.
  void take_frees(NodeId node) {
    std::vector<StorageId> freed;
    cursor_.expect('(');
    cursor_.take_elements(')', [&] {
      const Place place = cursor_.next_place();
      const StorageId storage = take_storage();
      if (graph_.storage(storage).freed_after.valid()) {
        cursor_.fail_at(place, "a storage that was freed before", "each storage to be freed once");
      }
      mutable_storage(graph_, storage).freed_after = node;
      freed.push_back(storage);
    });
    graph_.set_frees(node, freed);
  }

  void take_notes(NodeId node) {
    cursor_.expect('(');
    const Place place = cursor_.next_place();
    std::vector<std::pair<std::string, std::string>> notes;
    cursor_.take_elements(')', [&] {
      std::string key = cursor_.take_quoted();
      cursor_.expect('=');
      notes.emplace_back(std::move(key), cursor_.take_quoted());
      if (notes.back().second.empty()) cursor_.fail_at(place, "an empty note", "a non-empty note");
    });
    // In descending order of keys: each note is inserted at the front, without walking the list.
    std::sort(notes.begin(), notes.end(), std::greater<>());
    for (size_t i = 0; i < notes.size(); ++i) {
      if (i != 0 && notes[i].first == notes[i - 1].first) {
        cursor_.fail_at(place, "two notes with the same key", "each key once");
      }
      graph_.set_note(node, notes[i].first, notes[i].second);
    }
  }

  // Resolves references to later lines: saved or guarded values, forward nodes, allocating nodes. In textual order, so
  // that the first error is reported.
  void finish() {
    for (const Forward& forward : forward_values_) {
      if (forward.index >= graph_.value_capacity()) {
        cursor_.fail_at(forward.place, fmt::format("%{} is not defined", forward.index), "a value of this text");
      }
    }
    for (const Forward& forward : forward_nodes_) {
      if (forward.index >= graph_.node_capacity()) {
        cursor_.fail_at(forward.place, fmt::format("n{} is not defined", forward.index), "a node of this text");
      }
    }
    // Allocations are set last, since a storage's line may refer to a later node.
    for (uint32_t i = 0; i < born_.size(); ++i) mutable_storage(graph_, StorageId(i)).born = born_[i].node;
    check_writes();
  }

  // Compares the stated writes with the derived ones. Both lists are in program order, so one walk suffices. Generators
  // are not storages of the text.
  void check_writes() {
    // Without stated writes there is nothing to compare, and computing effects costs a walk.
    if (writes_.empty()) return;
    const Effects effects = Effects::of(graph_);
    for (size_t i = 0; i < writes_.size();) {
      const NodeId node = writes_[i].node;
      for (const StorageWrite& write : effects.writes(node)) {
        if (effects.is_generator(write.storage)) continue;
        const bool here = i < writes_.size() && writes_[i].node == node;
        if (!here || writes_[i].storage != write.storage || writes_[i].version != write.after) {
          cursor_.fail_at(writes_[here ? i : i - 1].place, "writes that differ from this operator's",
                          fmt::format("s{}@{}", write.storage.index, write.after));
        }
        ++i;
      }
      if (i < writes_.size() && writes_[i].node == node) {
        cursor_.fail_at(writes_[i].place, "a write that this operator does not perform",
                        "the writes declared in its schema");
      }
    }
  }

  Cursor cursor_;
  Graph graph_;
  bool of_another_libtorch_ = false;
  ArgumentReader arguments_{cursor_, graph_, [this](bool forward) { return take_value(forward); }};
  std::unordered_map<std::string, TargetId, NameHash, std::equal_to<>> target_names_;

  // Scratch, reused to avoid allocations.
  std::vector<Argument> stack_;  // elements of the lists of results being read, innermost last
  std::vector<int64_t> sizes_, strides_;
  // A line has the names of its results before their types, %1, [%2, %3] = ... : f32[2], [f32[3], f32[4]]. The names'
  // brackets are stored until the types are read and must match.
  struct Shape {
    enum Kind : uint8_t { kNone, kValue, kOpen, kClose } kind;
  };
  std::vector<Shape> shapes_;  // of the names left of '='
  std::vector<Argument> results_;
  uint32_t named_values_ = 0;  // values whose name was read; graph_.value_capacity() of them also have a type

  // References that can only be checked at the end.
  struct Forward {
    uint32_t index;
    Place place;
  };
  std::vector<Forward> forward_values_, forward_nodes_;
  struct Born {
    bool stated = false;
    NodeId node;
  };
  std::vector<Born> born_;  // by storage
  struct Written {
    NodeId node;
    StorageId storage;
    uint32_t version;
    Place place;
  };
  std::vector<Written> writes_;
};

}  // namespace

Graph parse(std::string_view text, std::string_view name) { return TextParser(text, name).run(); }

Graph read_graph_file(const std::string& path) { return parse(read_file(path), path); }

}  // namespace shadowgraph
