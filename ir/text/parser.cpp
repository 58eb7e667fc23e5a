// Reads graph text. docs/graph.md#the-text-form has the grammar; a function here is a rule there.
//
// There is one pass over the lines, by recursive descent where brackets nest. The graph is built while it is read, and
// ids are positions: the k-th node line is node k. So what parse gives prints back byte for byte. A line may speak of
// later lines: values of composites' arguments, deaths and births, forward links. That waits in lists of (number, place)
// until finish(), so that its error, too, names line and column.
//
// A text of N bytes takes time and memory linear in N, whatever it says: files may come from anywhere. So lists have a
// bounded depth, phases a bounded number, and ids must come in order, which spares tables of names.
//
// Only the form is checked here, and what the graph could not hold. Whether it makes sense is the verifier's question.
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

// libtorch's schema parser recurses on nested types and expands `int[N] x=0` to N ints, so it must not see just
// anything.
constexpr size_t kMaxSchemaBytes = size_t{1} << 16;
constexpr int kMaxSchemaNesting = 32;
constexpr int kMaxSchemaListSize = 1024;
// intern_phase compares with all phases there are.
constexpr uint32_t kMaxPhases = 1024;

// Lets names be looked up as views of the text, without a string for each node line.
struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};

class TextParser {
 public:
  TextParser(std::string_view text, std::string_view name) : cursor_(text, name) {
    // Built-ins need no line: every reader has them.
    for (uint32_t i = 0; i < kBuiltinCount; ++i) name_target(TargetId(i), graph_.target(TargetId(i)).name());
  }
  // A line says what it is by its first word or letter. Lines may come in any order, as long as what they cite is
  // declared above.
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
        node_line();  // without results or number, sg::output(...), as people write it
      }
      cursor_.expect_end();
    }
    finish();
    return std::move(graph_);
  }

 private:
  using Place = Cursor::Place;

  // The version stands first, so that a text of a later format is refused as such and not as nonsense. Schemas in the text
  // say what operators take; those of another libtorch are looked for in this one (ir/operators/schema_changes.h).
  void header() {
    if (!cursor_.next_line() || !cursor_.eat_word("shadowgraph")) {
      cursor_.fail("this is no shadowgraph text", "a first line such as 'shadowgraph 1 libtorch 2.13.0'");
    }
    cursor_.peek();
    const Place place = cursor_.place();
    const int64_t version = cursor_.take_int();
    if (version > kTextFormatVersion) {
      cursor_.fail_at(
          place, fmt::format("format version {} is newer than what this library reads; update shadowgraph", version),
          fmt::format("at most {}", kTextFormatVersion));
    }
    if (version < 1) cursor_.fail_at(place, "no format version", "1");
    cursor_.expect_word("libtorch");
    const std::string_view libtorch = cursor_.take_rest();
    if (libtorch.empty()) cursor_.fail("no libtorch version", "a version such as 2.13.0");
    of_another_libtorch_ = libtorch != libtorch_version();
  }

  // Metadata checks its own values; its error gets the place in the text.
  void meta_line() {
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
      cursor_.fail_at(value, error.what(), "what Metadata says (shadowgraph/graph/graph.h)");
    }
  }

  // A schema goes to libtorch's own parser, which was not written for text that means harm: bounds first.
  void target_line(TargetKind kind) {
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
        const auto size = parse_number<int64_t>(text.substr(i + 1, end - i - 1));
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

  // Storages, regions and constants are numbered by their lines. A number out of order is an error, since it would come
  // back as another one.
  void storage_line() {
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
    const auto kind = find_named<StorageKind>(cursor_.take_identifier());
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

  void region_line() {
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
    const auto kind = find_named<RegionKind>(cursor_.take_identifier());
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

  void constant_line() {
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

  void guard_line() {
    cursor_.peek();
    const Place place = cursor_.place();
    const auto kind = find_named<Guard::Kind>(cursor_.take_identifier());
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

  // People may leave the number out; then the line's place decides, as it does anyhow.
  void node_line() {
    const Place place = cursor_.place();
    const uint32_t number = graph_.node_capacity();
    if (cursor_.at_id('n')) {
      if (cursor_.take_id('n', "a node") != number) {
        cursor_.fail_at(place, "a node out of order", fmt::format("n{}", number));
      }
      cursor_.expect(':');
    }
    shapes_.clear();
    if (const char c = cursor_.peek(); c == '%' || c == '[' || cursor_.eat_word("None")) {
      if (c == 'N') shapes_.push_back({Shape::kNone});
      if (c != 'N' || cursor_.eat(',')) take_result_names(0);
      cursor_.expect('=');
    }
    const TargetId target = take_target();
    // Arguments are read before results exist: a node cannot use its own result.
    const NodeId node = graph_.append(target, arguments_.take_arguments(target, false));
    if (!shapes_.empty()) take_results(node);
    if (cursor_.eat('|')) take_attributes(node);
  }

  // Each takes one kind of reference, and fails at its place if it names nothing that is there.
  void name_target(TargetId id, std::string name) {
    std::string unique = name;
    // Two schemas of one name (a function declared again otherwise) are f and f#2, in the order of their lines.
    for (int copy = 2; !target_names_.emplace(unique, id).second; ++copy) unique = fmt::format("{}#{}", name, copy);
  }

  TargetId take_target() {
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

  // "%4"; with `forward`, also "%?" (no longer alive) and values that come later, which are checked at the end.
  ValueId take_value(bool forward) {
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
  StorageId take_storage() {
    cursor_.peek();
    const Place place = cursor_.place();
    const uint32_t number = cursor_.take_id('s', "a storage");
    if (number >= graph_.storage_count()) {
      cursor_.fail_at(place, fmt::format("there is no s{}", number), "a storage that a line above declares");
    }
    return StorageId(number);
  }

  // A node may be cited before its line (deaths, births), so the check waits for finish().
  NodeId take_node() {
    cursor_.peek();
    const Place place = cursor_.place();
    const uint32_t number = cursor_.take_id('n', "a node");
    forward_nodes_.push_back({number, place});
    return NodeId(number);
  }

  // The left side of a line is read before its target, the types after it. So names are kept as a shape that the types
  // must follow. They are checked as they come: the k-th name of the text is value k.
  void take_result_names(int depth) {
    do {
      const char c = cursor_.peek();
      const Place place = cursor_.place();
      if (c == '%') {
        if (cursor_.take_id('%', "a result") != named_values_) {
          cursor_.fail_at(place, "a result out of order", fmt::format("%{}", named_values_));
        }
        ++named_values_;
        shapes_.push_back({Shape::kValue});
      } else if (c == '[') {
        if (depth >= kMaxListDepth) cursor_.fail("results that nest too deep", "fewer lists in lists");
        cursor_.expect('[');
        shapes_.push_back({Shape::kOpen});
        if (cursor_.peek() != ']') take_result_names(depth + 1);
        cursor_.expect(']');
        shapes_.push_back({Shape::kClose});
      } else if (cursor_.eat_word("None")) {
        shapes_.push_back({Shape::kNone});
      } else {
        cursor_.fail("no result", "%0, None or [...]");
      }
    } while (cursor_.eat(','));
  }

  // Types follow in the order of the names, nested alike.
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
        // stack_ holds the elements of all lists that are open, so that nesting allocates nothing.
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

  // Reads a type: f32[2,3]{1,2} @s4+6 cuda:0 grad. All but dtype and sizes may be left out, for contiguous, no storage,
  // offset 0, the storage's device, strided.
  ValueId take_type(NodeId node) {
    cursor_.peek();
    const Place place = cursor_.place();
    const std::string_view word = cursor_.take_identifier();
    if (cursor_.peek() != '[') {
      if (word == "int") return graph_.new_scalar(node, ValueKind::kInt);
      if (word == "float") return graph_.new_scalar(node, ValueKind::kFloat);
      if (word == "bool") return graph_.new_scalar(node, ValueKind::kBool);
    }
    TensorMeta spec;
    const auto dtype = parse_dtype(word);
    if (!dtype) cursor_.fail_at(place, "no type", "one such as f32[2,3], int, float or bool");
    spec.dtype = *dtype;
    take_sizes('[', ']', sizes_);
    if (cursor_.peek() == '{') {
      take_sizes('{', '}', strides_);
      if (sizes_.size() != strides_.size()) cursor_.fail("not as many strides as sizes", "one stride a dimension");
    } else {
      contiguous_strides(sizes_, strides_);
    }
    spec.sizes = sizes_;
    spec.strides = strides_;
    if (cursor_.eat('@')) {
      if (!cursor_.eat_word("none")) {
        spec.storage = take_storage();
        spec.device = graph_.storage(spec.storage).device();
        // The first value in a storage says where it was born, unless its own line does.
        if (!born_[spec.storage.index].stated) born_[spec.storage.index] = {true, node};
      }
      if (cursor_.eat('+')) {
        spec.offset = cursor_.take_int();
      }
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
        cursor_.fail_at(word_place, "nothing that a type has", "@storage, a device, a layout or grad");
      }
    }
    return graph_.new_tensor(node, spec);
  }

  // Value::rank has 16 bits.
  void take_sizes(char open, char close, std::vector<int64_t>& sizes) {
    sizes.clear();
    cursor_.expect(open);
    const Place place = cursor_.place();
    if (!cursor_.eat(close)) {
      do {
        sizes.push_back(cursor_.take_int());
      } while (cursor_.eat(','));
      cursor_.expect(close);
    }
    if (sizes.size() > UINT16_MAX) cursor_.fail_at(place, "too many dimensions", "at most 65535");
  }

  // Attributes may come in any order; the printer writes them in one.
  void take_attributes(NodeId node) {
    // Regions are declared above, so the count is fixed while nodes are read.
    const uint32_t regions = graph_.region_count();
    while (!cursor_.at_end()) {
      const Place place = cursor_.place();
      if (cursor_.at_id('r')) {
        const uint32_t region = cursor_.take_id('r', "a region");
        if (region >= regions) {
          cursor_.fail_at(place, fmt::format("there is no r{}", region), "a region that a line above declares");
        }
        mutable_node(graph_, node).region = RegionId(region);
      } else if (cursor_.peek() == '"') {
        mutable_node(graph_, node).source = graph_.intern(cursor_.take_quoted());
      } else if (cursor_.eat_word("grad_mode")) {
        mutable_node(graph_, node).flags.grad_mode = true;
      } else if (cursor_.eat_word("inference_mode")) {
        mutable_node(graph_, node).flags.inference_mode = true;
      } else if (cursor_.eat_word("autocast_cpu")) {
        mutable_node(graph_, node).flags.autocast_cpu = true;
      } else if (cursor_.eat_word("autocast_cuda")) {
        mutable_node(graph_, node).flags.autocast_cuda = true;
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

  // Built-in phases are words; a user's, which may be called anything, are quoted: phase "warm up".
  void take_phase(NodeId node) {
    for (uint32_t i = 0; i <= Graph::kInit.index; ++i) {
      if (cursor_.eat_word(graph_.phase_name(PhaseId(i)))) {
        mutable_node(graph_, node).phase = PhaseId(i);
        return;
      }
    }
    const Place place = cursor_.place();
    if (!cursor_.eat_word("phase")) {
      cursor_.fail("nothing that a node has",
                   "a region, a phase, 'of', a mode, 'saved', 'writes', 'free', 'note' or a quoted source line");
    }
    mutable_node(graph_, node).phase = graph_.intern_phase(cursor_.take_quoted());
    // Each new phase costs a comparison with all before it, so the text must not have many.
    if (graph_.phase_count() > kMaxPhases) {
      cursor_.fail_at(place, "too many phases", fmt::format("at most {}", kMaxPhases));
    }
  }

  // Saved tensors name an argument, a result or a value of the operator's own.
  void take_saved(NodeId node) {
    const auto& formals = graph_.target(node).signature().arguments;
    const auto arguments = graph_.arguments(node);
    std::vector<SavedTensor> saved;
    cursor_.expect('(');
    do {
      cursor_.peek();
      const Place place = cursor_.place();
      SavedTensor tensor;
      const std::string_view word = cursor_.take_identifier();
      if ((word == "argument" || word == "result") && cursor_.eat('[')) {
        const int64_t index = cursor_.take_int();
        if (index < 0 || index > UINT16_MAX) cursor_.fail_at(place, "an index out of range", "0 to 65535");
        cursor_.expect(']');
        tensor.role = word == "result" ? SavedRole::kResult : SavedRole::kArgument;
        tensor.index = static_cast<uint16_t>(index);
      } else if (word != "internal") {
        const std::string_view name = argument_in_this_libtorch(graph_.target(node), word);
        const auto formal =
            std::find_if(formals.begin(), formals.end(), [&](const Formal& f) { return f.name == name; });
        if (formal == formals.end()) {
          cursor_.fail_at(place, "no saved tensor", "an argument's name, argument[0], result[0] or internal=%0");
        }
        // The name stands for the position: people read names.
        tensor.role = SavedRole::kArgument;
        tensor.index = static_cast<uint16_t>(formal - formals.begin());
      }
      // An argument or result says which value it is, unless that is a list or the tensor saved is another one.
      if (cursor_.eat('=')) {
        tensor.value = take_value(true);
      } else if (tensor.role == SavedRole::kArgument && tensor.index < arguments.size() &&
                 arguments[tensor.index].kind == ArgumentKind::kValue) {
        tensor.value = arguments[tensor.index].ref.value;
      } else if (tensor.role == SavedRole::kResult) {
        for_each_value_of_role(graph_, node, tensor, [&](ValueId v) { tensor.value = v; });
        if (!tensor.value.valid()) cursor_.fail_at(place, "no result of this index", "one of the results");
      } else {
        cursor_.fail_at(place, "a saved tensor that is not a single tensor argument", "its value too: name=%0");
      }
      saved.push_back(tensor);
    } while (cursor_.eat(','));
    cursor_.expect(')');
    graph_.set_saved(node, saved);
  }

  // Reads writes. They follow from schemas and order; the text repeats them for its readers, and check_writes() holds
  // them against that.
  void take_writes(NodeId node) {
    cursor_.expect('(');
    do {
      cursor_.peek();
      const Place place = cursor_.place();
      const StorageId storage = take_storage();
      cursor_.expect('@');
      const int64_t version = cursor_.take_int();
      if (version < 1 || version > UINT32_MAX) cursor_.fail_at(place, "no version that a write makes", "1 or more");
      writes_.push_back({node, storage, static_cast<uint32_t>(version), place});
    } while (cursor_.eat(','));
    cursor_.expect(')');
  }

  // Each storage dies once; a second death would be a contradiction that no edit could make.
  void take_frees(NodeId node) {
    std::vector<StorageId> freed;
    cursor_.expect('(');
    do {
      cursor_.peek();
      const Place place = cursor_.place();
      const StorageId storage = take_storage();
      if (graph_.storage(storage).freed_after.valid()) {
        cursor_.fail_at(place, "a storage that was freed before", "each storage freed once");
      }
      mutable_storage(graph_, storage).freed_after = node;
      freed.push_back(storage);
    } while (cursor_.eat(','));
    cursor_.expect(')');
    graph_.set_frees(node, freed);
  }

  void take_notes(NodeId node) {
    cursor_.expect('(');
    cursor_.peek();
    const Place place = cursor_.place();
    std::vector<std::pair<std::string, std::string>> notes;
    do {
      std::string key = cursor_.take_quoted();
      cursor_.expect('=');
      notes.emplace_back(std::move(key), cursor_.take_quoted());
      if (notes.back().second.empty()) cursor_.fail_at(place, "an empty note", "no note, or one that says something");
    } while (cursor_.eat(','));
    cursor_.expect(')');
    // Last key first: a note goes before those it meets, without a walk along them.
    std::sort(notes.begin(), notes.end(), std::greater<>());
    for (size_t i = 0; i < notes.size(); ++i) {
      if (i != 0 && notes[i].first == notes[i - 1].first) {
        cursor_.fail_at(place, "two notes of one key", "each key once");
      }
      graph_.set_note(node, notes[i].first, notes[i].second);
    }
  }

  // Checks what refers to later lines: values that are saved or guarded, forward nodes, births. In the order of
  // citation, so that the first wrong one is reported.
  void finish() {
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
  void check_writes() {
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

  Cursor cursor_;
  Graph graph_;
  bool of_another_libtorch_ = false;
  ArgumentReader arguments_{cursor_, graph_, [this](bool forward) { return take_value(forward); }};
  std::unordered_map<std::string, TargetId, NameHash, std::equal_to<>> target_names_;

  // Scratch, kept to spare allocations.
  std::vector<Argument> stack_;  // elements of the lists of results being read, innermost last
  std::vector<int64_t> sizes_, strides_;
  // A line names its results before their types, %1, [%2, %3] = ... : f32[2], [f32[3], f32[4]]. The names' brackets are
  // kept until the types are read and must nest alike.
  struct Shape {
    enum Kind : uint8_t { kNone, kValue, kOpen, kClose } kind;
  };
  std::vector<Shape> shapes_;  // of the names left of '='
  std::vector<Argument> results_;
  uint32_t named_values_ = 0;  // values whose name was read; graph_.value_capacity() have their type too

  // What can only be checked when all is read.
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
