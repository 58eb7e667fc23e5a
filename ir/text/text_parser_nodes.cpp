// Reads the lines of nodes: results, types and attributes.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ir/operators/schema_changes.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"
#include "ir/text/text_parser.h"
#include "ir/text/words.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

// intern_phase compares with all phases there are.
constexpr uint32_t kMaxPhases = 1024;

}  // namespace

// People may leave the number out; then the line's place decides, as it does anyhow.
void TextParser::node_line() {
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

// Names are checked as they come: the k-th name of the text is value k. So values need no table of names.
void TextParser::take_result_names(int depth) {
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
void TextParser::take_results(NodeId node) {
  cursor_.expect(':');
  results_.clear();
  size_t shape = 0;
  while (shape < shapes_.size()) {
    if (shape != 0) cursor_.expect(',');
    results_.push_back(take_result(node, shape, 0));
  }
  graph_.set_results(node, results_);
}

Argument TextParser::take_result(NodeId node, size_t& shape, int depth) {
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

// Value::rank has 16 bits.
void TextParser::take_sizes(char open, char close, std::vector<int64_t>& sizes) {
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

// Reads a type: f32[2,3]{1,2} @s4+6 cuda:0 grad. All but dtype and sizes may be left out, for contiguous, no storage,
// offset 0, the storage's device, strided.
ValueId TextParser::take_type(NodeId node) {
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
    } else if (const auto device = parse_device(attribute); device && attribute != "mkldnn") {  // a layout and a device
      spec.device = *device;
    } else if (const auto layout = parse_layout(attribute)) {
      spec.layout = *layout;
    } else {
      cursor_.fail_at(word_place, "nothing that a type has", "@storage, a device, a layout or grad");
    }
  }
  return graph_.new_tensor(node, spec);
}

// Attributes may come in any order; the printer writes them in one.
void TextParser::take_attributes(NodeId node) {
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
void TextParser::take_phase(NodeId node) {
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
void TextParser::take_saved(NodeId node) {
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
      const auto formal = std::find_if(formals.begin(), formals.end(), [&](const Formal& f) { return f.name == name; });
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
      uint32_t flat = 0;
      graph_.for_each_output(node, [&](ValueId v) {
        if (flat++ == tensor.index) tensor.value = v;
      });
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
void TextParser::take_writes(NodeId node) {
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
void TextParser::take_frees(NodeId node) {
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

void TextParser::take_notes(NodeId node) {
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

}  // namespace shadowgraph
