// Propagates shapes: runs every node again on the new fake tensors of its operands. The graph is only changed at the
// end, so a failed run leaves it unchanged. Meanwhile results and storages are compared with the record.
//
// Baked-in sizes. A graph does not record where a number in an argument came from, so baked-in sizes are guessed by
// value and argument name. The guesses are only used for messages and reports.
//
// Candidates are arguments whose name denotes a size (size, end, split_size, ...), numbers that equal a changed size of
// a placeholder, and products of adjacent sizes with a changed one, as from flattening:
//
//     x: [8, 64] -> [16, 64]     view(size=[8, 4, 16])    8 is size 0 of x
//                                view(size=[512])         512 is sizes 0 to 1 of x
#include <c10/util/flat_hash_map.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <deque>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/calls/calls_on_fakes.h"
#include "ir/analysis/identity.h"
#include "ir/edit/bulk_edits.h"
#include "ir/records.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/pass.h"
#include "shadowgraph/passes/shapes.h"

namespace shadowgraph {
namespace {

// Sorted. Excludes windows, strides and paddings, which do not change with the batch size.
constexpr std::array<std::string_view, 24> kSizeNames = {
    "HxW",         "N",           "batch_sizes", "end",         "input_size", "input_sizes",
    "length",      "m",           "max_k",       "max_q",       "n",          "normalized_shape",
    "num_weights", "output_size", "repeats",     "self_size",   "self_sizes", "shape",
    "size",        "sizes",       "split_size",  "split_sizes", "start",      "sym_size",
};
static_assert(std::ranges::is_sorted(kSizeNames));

constexpr size_t kMaxNodesAbove = 4096;  // a message needs only the nearest, so do not search a whole model

std::string to_text(const Graph& graph, const BakedSize& baked, const Numbering& numbering) {
  return c10::str("n", numbering.of(baked.node), " ", graph.target(baked.node).name(), ": ", baked.argument, " = ",
                  baked.number, " is ", baked.dimension, " as recorded, now ", baked.now);
}

std::span<const int64_t> as_span(c10::IntArrayRef ints) { return {ints.data(), ints.size()}; }

}  // namespace

InputGeometry InputGeometry::of(const at::Tensor& tensor) {
  InputGeometry geometry;
  geometry.dtype = tensor.scalar_type();
  geometry.sizes = tensor.sizes().vec();
  geometry.strides = tensor.strides().vec();
  geometry.offset = tensor.storage_offset();
  if (!tensor.is_meta()) geometry.device = tensor.device();
  return geometry;
}

InputGeometry InputGeometry::of_text(std::string_view text) {
  TensorSpec spec = parse_tensor_spec(text);
  InputGeometry geometry;
  geometry.dtype = spec.dtype;
  geometry.sizes = std::move(spec.sizes);
  return geometry;
}

std::map<std::string, InputGeometry> ShapePropagationOptions::inputs_of(const std::string& text) {
  std::map<std::string, InputGeometry> inputs;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" ;", at), text.size());
    const std::string item = text.substr(at, end - at);
    at = end + 1;
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    if (equals == std::string::npos) {
      throw Error("shape-prop: '" + item + "' is not an input; use name=f32[8,3,64,64], separated by ';'");
    }
    inputs.insert_or_assign(item.substr(0, equals), InputGeometry::of_text(item.substr(equals + 1)));
  }
  return inputs;
}

std::string ShapePropagationOptions::text_of(const std::map<std::string, InputGeometry>& inputs) {
  std::vector<std::string> items;
  for (const auto& [name, geometry] : inputs) {
    items.push_back(fmt::format("{}={}[{}]", name, dtype_word(geometry.dtype), fmt::join(geometry.sizes, ",")));
  }
  return fmt::format("{}", fmt::join(items, ";"));
}

class BakedSizes {
 public:
  explicit BakedSizes(const Graph& graph) : graph_(graph) {}

  // Products of adjacent sizes count, too: view(size=[1024, 768]) of [8, 128, 768] bakes in 8 * 128.
  void add_input(const std::string& name, std::span<const int64_t> recorded, std::span<const int64_t> now) {
    if (recorded.size() != now.size()) return;  // the correspondence of sizes is unknown
    for (size_t first = 0; first < recorded.size(); ++first) {
      int64_t before = 1;
      int64_t after = 1;
      bool changed = false;
      for (size_t last = first; last < recorded.size(); ++last) {
        if (__builtin_mul_overflow(before, recorded[last], &before)) break;
        if (__builtin_mul_overflow(after, now[last], &after)) break;
        changed |= recorded[last] != now[last];
        if (!changed || before <= 1) continue;  // 0 and 1 are too ambiguous
        const std::string dimension =
            first == last ? "size " + std::to_string(first) + " of '" + name + "'"
                          : "sizes " + std::to_string(first) + " to " + std::to_string(last) + " of '" + name + "'";
        changed_.try_emplace(before, Changed{dimension, after});
      }
    }
  }

  bool empty() const { return changed_.empty(); }

  // Appends the baked-in sizes in the arguments of one node.
  void find(NodeId node, std::vector<BakedSize>& found) const {
    if (changed_.empty() || graph_.target(node).kind() == TargetKind::kBuiltin) return;
    const auto arguments = graph_.arguments(node);
    const auto& formals = graph_.target(node).signature().arguments;
    for (size_t i = 0; i < arguments.size() && i < formals.size(); ++i) {
      const Argument& argument = arguments[i];
      if (argument.kind != ArgumentKind::kInt && argument.kind != ArgumentKind::kIntList) continue;
      const std::string& name = formals[i].name;
      if (!std::binary_search(kSizeNames.begin(), kSizeNames.end(), name)) continue;
      if (argument.kind == ArgumentKind::kInt) {
        check_number(node, name, argument.i, found);
        continue;
      }
      const auto ints = graph_.ints(argument);
      for (size_t j = 0; j < ints.size(); ++j) check_number(node, name + "[" + std::to_string(j) + "]", ints[j], found);
    }
  }

  // Looks in `node`, otherwise in its nearest producers.
  std::vector<BakedSize> find_at_or_above(NodeId node) const {
    std::vector<BakedSize> found;
    if (changed_.empty()) return found;
    std::unordered_set<NodeId> seen;
    // Breadth first, so that the sizes closest to the failure are found first.
    std::deque<NodeId> waiting{node};
    for (size_t looked = 0; !waiting.empty() && found.empty() && looked < kMaxNodesAbove; ++looked) {
      const NodeId next = waiting.front();
      waiting.pop_front();
      find(next, found);
      graph_.for_each_input(next, [&](ValueId value) {
        const NodeId producer = graph_.value(value).producer;
        if (producer.valid() && seen.insert(producer).second) waiting.push_back(producer);
      });
    }
    return found;
  }

 private:
  struct Changed {
    std::string dimension;
    int64_t now = 0;
  };

  void check_number(NodeId node, const std::string& argument, int64_t number, std::vector<BakedSize>& found) const {
    const auto changed = changed_.find(number);
    if (changed == changed_.end()) return;
    found.push_back({node, argument, number, changed->second.dimension, changed->second.now});
  }

  const Graph& graph_;
  std::unordered_map<int64_t, Changed> changed_;  // by the recorded number
};

class ShapeRun {
 public:
  ShapeRun(const Graph& graph, const ShapePropagationOptions& options)
      : graph_(graph),
        options_(options),
        calls_(graph, {.profile = options.profile}),
        baked_(graph),
        storage_of_(graph.storage_count()),
        written_(graph.storage_count()) {
    out_.bytes_.resize(graph.storage_count());
    for (uint32_t i = 0; i < graph.storage_count(); ++i) out_.bytes_[i] = graph.storage(StorageId(i)).bytes;
    out_.tensors_.reserve(graph.value_capacity());
    for (const auto& [name, geometry] : options.inputs) unbound_.push_back(name);
    calls_.add_sizes(graph, options.data_sizes);
    calls_.add_host_reads(graph);
  }

  ShapePropagation run() {
    const BelowAutograd below;
    for (const NodeId node : graph_.nodes()) {
      if (graph_.target(node).kind() == TargetKind::kBuiltin) {
        built_in(node);
      } else {
        call(node);
      }
      if (!unbound_.empty() && !graph_.is_placeholder(node)) refuse_names();
      baked_.find(node, out_.baked_);
    }
    if (!unbound_.empty()) refuse_names();
    find_paths();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse_names() const {
    std::string names;
    for (const NodeId node : graph_.nodes()) {
      if (graph_.is_placeholder(node) && graph_.node(node).target == target_of(Builtin::kInput)) {
        names += (names.empty() ? "" : ", ") + graph_.text(graph_.arguments(node)[0].string);
      }
    }
    throw Error("shape-prop: the graph has no placeholder named '" + unbound_.front() + "'; its inputs are: " + names);
  }

  // The message lists baked-in sizes above the node, which are nearly always the cause.
  [[noreturn]] void fail(NodeId node, const std::string& what) const {
    const Numbering numbering = Numbering::of(graph_);
    const std::vector<BakedSize> found = baked_.find_at_or_above(node);
    std::string message = "shape-prop: n" + std::to_string(numbering.of(node)) + " " + graph_.target(node).name() +
                          " fails with the new inputs: " + what + "\n  " + to_text(graph_, node, numbering);
    for (const BakedSize& baked : found) message += "\n  baked in: " + to_text(graph_, baked, numbering);
    if (!found.empty()) {
      message +=
          "\nA size that the program computed on the host is a constant in the graph. Capture at the new sizes, or fit "
          "sizes to several captures (docs/graph.md).";
    }
    throw UnsupportedError(message, node);
  }

  std::string placeholder_name(NodeId node) {
    const Argument& argument = graph_.arguments(node)[0];
    if (argument.kind == ArgumentKind::kString) return graph_.text(argument.string);
    return "constant" + std::to_string(constants_++);
  }

  void built_in(NodeId node) {
    if (graph_.is_placeholder(node)) {
      placeholder(node);
      calls_.fill_assumed_mask(graph_, only_result(node), out_.tensors_[only_result(node)]);
    } else if (graph_.node(node).target == target_of(Builtin::kAlias)) {
      alias(node);
    } else if (graph_.node(node).target == target_of(Builtin::kGradient)) {
      const ValueId parameter = graph_.arguments(node)[0].ref.value;
      const ValueId gradient = graph_.arguments(node)[1].ref.value;
      // The shape rules accept this, but the optimizer would not.
      if (out_.tensors_[parameter].sizes() != out_.tensors_[gradient].sizes()) {
        fail(node, c10::str("the gradient has sizes ", out_.tensors_[gradient].sizes(), ", its parameter ",
                            out_.tensors_[parameter].sizes()));
      }
    }
  }

  ValueId only_result(NodeId node) const { return graph_.results(node)[0].ref.value; }

  void placeholder(NodeId node) {
    const ValueId id = only_result(node);
    const Value& value = graph_.value(id);
    const std::string name = placeholder_name(node);
    const auto bound = options_.inputs.find(name);
    if (bound == options_.inputs.end()) {
      keep_recorded(id);
      return;
    }
    std::erase(unbound_, name);
    const InputGeometry& input = bound->second;
    // "cuda" and "cuda:0" are the same device, but compare unequal.
    const c10::Device device = indexed(input.device.value_or(value.device()));
    std::vector<int64_t> strides(input.sizes.size(), 1);
    for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(input.sizes[i], 1);
    if (input.strides) strides = *input.strides;
    if (strides.size() != input.sizes.size()) {
      throw Error("shape-prop: input '" + name + "' has a different number of sizes and strides");
    }
    const bool as_recorded = input.dtype == value.dtype && input.offset == value.offset &&
                             // An unchanged input keeps its storage, which preserves aliases among inputs.
                             std::ranges::equal(graph_.sizes(id), input.sizes) &&
                             std::ranges::equal(graph_.strides(id), strides);
    if (as_recorded && device == value.device()) {
      keep_recorded(id);
      return;
    }
    // The storage must include all elements reached by the strides.
    int64_t elements = 1;  // size of the storage in elements
    for (size_t i = 0; i < strides.size(); ++i) elements += (input.sizes[i] - 1) * strides[i];
    for (const int64_t size : input.sizes) {
      if (size < 0) throw Error("shape-prop: input '" + name + "' has a negative size");
      if (size == 0) elements = 0;
    }
    const int64_t bytes =
        (elements == 0 ? 0 : input.offset + elements) * static_cast<int64_t>(elementSize(input.dtype));
    out_.bytes_[value.storage.index] = bytes;
    const at::Tensor fake = fake_on(fake_storage(bytes), input.dtype, input.sizes, strides, input.offset, device);
    bind(value.storage, fake.storage().unsafeGetStorageImpl());
    set(id, fake, value.storage);
    baked_.add_input(name, graph_.sizes(id), input.sizes);
  }

  // Uses the recorded geometry and storage, which an earlier placeholder may have created.
  void keep_recorded(ValueId id) {
    const Value& value = graph_.value(id);
    const c10::StorageImpl* known = storage_of_[value.storage.index];
    const c10::Storage storage =
        known == nullptr ? fake_storage(out_.bytes_[value.storage.index]) : storage_holder(value.storage);
    const at::Tensor fake =
        fake_on(storage, value.dtype, graph_.sizes(id), graph_.strides(id), value.offset, value.device());
    if (known == nullptr) bind(value.storage, storage.unsafeGetStorageImpl());
    set(id, fake, value.storage);
  }
  c10::Storage storage_holder(StorageId id) const { return out_.tensors_[first_on_[id]].storage(); }

  // sg::alias has no shape rule: its geometry is that of another value at the same place of the storage.
  void alias(NodeId node) {
    const ValueId id = only_result(node);
    const ValueId source = graph_.arguments(node)[0].ref.value;
    // The new geometry is that of the source or of another value at the same place.
    for (const ValueId other : {source, model_of_alias(id)}) {
      if (!other.valid() || !same_place(graph_, id, other)) continue;
      const at::Tensor& fake = out_.tensors_[other];
      set(id,
          fake_on(fake.storage(), fake.scalar_type(), as_span(fake.sizes()), as_span(fake.strides()),
                  fake.storage_offset(), fake.device()),
          out_.storages_[other]);
      return;
    }
    const at::Tensor& fake = out_.tensors_[source];
    // If no value gives the new geometry, the recorded one is only valid if the source is unchanged.
    if (!std::ranges::equal(graph_.sizes(source), fake.sizes()) ||
        !std::ranges::equal(graph_.strides(source), fake.strides())) {
      fail(node, "this alias has no operator that gives its new geometry, and the aliased tensor has changed");
    }
    const Value& value = graph_.value(id);
    set(id, fake_on(fake.storage(), value.dtype, graph_.sizes(id), graph_.strides(id), value.offset, value.device()),
        out_.storages_[source]);
  }

  // Returns an earlier value with the same recorded geometry. Aliases are rare, so the index is built on first use.
  ValueId model_of_alias(ValueId alias) {
    if (!indexed_) {
      indexed_ = true;
      for (uint32_t i = 0; i < graph_.value_capacity(); ++i) {
        if (graph_.value(ValueId(i)).kind == ValueKind::kTensor)
          by_geometry_[geometry_hash(ValueId(i))].push_back(ValueId(i));
      }
    }
    for (const ValueId other : by_geometry_[geometry_hash(alias)]) {
      // Only values that this run has reached have a new geometry.
      if (other != alias && out_.tensors_[other].defined() && same_place(graph_, alias, other)) return other;
    }
    return {};
  }
  size_t geometry_hash(ValueId id) const {
    size_t hash = graph_.value(id).storage.index;
    for (const int64_t size : graph_.sizes(id)) hash = hash * 1000003 + static_cast<size_t>(size);
    for (const int64_t stride : graph_.strides(id)) hash = hash * 1000003 + static_cast<size_t>(stride);
    return hash * 1000003 + static_cast<size_t>(graph_.value(id).offset);
  }

  void call(NodeId node) {
    stack_.clear();
    const auto tensor_of = [this](ValueId value) -> const at::Tensor& { return out_.tensors_[value]; };
    calls_.push_arguments(node, tensor_of, stack_);
    if (!has_tensor_results(node)) {
      // Host reads (item) are already constants in the graph, and writes do not change shapes.
      if (graph_.target(node).signature().returns.empty()) run(node);
      return;
    }
    run(node);
    const auto results = graph_.results(node);
    if (!results.empty() && results.size() != stack_.size()) {
      fail(node, c10::str("it returns ", stack_.size(), " results, but the graph has ", results.size()));
    }
    for (size_t i = 0; i < results.size(); ++i) place(node, results[i], stack_[i]);
  }

  bool has_tensor_results(NodeId node) const {
    bool any = false;
    graph_.for_each_output(node, [&](ValueId value) { any |= graph_.value(value).kind == ValueKind::kTensor; });
    return any;
  }

  void run(NodeId node) {
    std::optional<c10::Device> device;
    graph_.for_each_output(node, [&](ValueId value) {
      if (graph_.value(value).kind == ValueKind::kTensor) device = graph_.value(value).device();
    });
    try {
      calls_.call(node, device, stack_);
    } catch (const c10::Error& error) {
      fail(node, error.what_without_backtrace());
    } catch (const Error& error) {
      fail(node, error.what());
    }
  }

  void place(NodeId node, const Argument& result, const c10::IValue& actual) {
    if (result.kind == ArgumentKind::kNone) return;
    if (result.kind == ArgumentKind::kList) {
      const auto elements = graph_.list(result);
      const auto tensors = actual.toListRef();
      if (elements.size() != tensors.size()) {
        fail(node, c10::str("it returns a list of ", tensors.size(), ", but the graph has ", elements.size()));
      }
      for (size_t i = 0; i < elements.size(); ++i) place(node, elements[i], tensors[i]);
      return;
    }
    const ValueId id = result.ref.value;
    if (graph_.value(id).kind != ValueKind::kTensor) return;
    if (!actual.isTensor() || !actual.toTensor().defined()) fail(node, "it returns None, but the graph has a tensor");
    const at::Tensor& tensor = actual.toTensor();
    if (!is_fake(tensor)) fail(node, "it returns a real tensor");
    const StorageId storage = storage_for(id, tensor.storage().unsafeGetStorageImpl());
    set(id, tensor, storage);
    int64_t& bytes = out_.bytes_[storage.index];
    const int64_t now = allocated_bytes(tensor);
    bytes = std::exchange(written_[storage.index], true) ? std::max(bytes, now) : now;
  }

  void bind(StorageId id, c10::StorageImpl* impl) {
    if (id.index >= storage_of_.size()) {
      storage_of_.resize(id.index + 1);
      written_.resize(id.index + 1);
    }
    storage_of_[id.index] = impl;
    written_[id.index] = true;
    id_of_[impl] = id;
  }

  // The recorded storage while aliasing is unchanged. All tensors are alive: addresses identify storages.
  StorageId storage_for(ValueId id, c10::StorageImpl* impl) {
    const StorageId recorded = graph_.value(id).storage;
    if (storage_of_[recorded.index] == impl) return recorded;
    const auto known = id_of_.find(impl);
    // An alias that is now a copy (reshape of a tensor that became non-contiguous) needs a new storage.
    if (known != id_of_.end()) return known->second;
    StorageId storage = recorded;
    if (storage_of_[recorded.index] != nullptr) {  // an alias became a copy
      storage = StorageId(static_cast<uint32_t>(out_.bytes_.size()));
      out_.bytes_.push_back(0);
      out_.models_.push_back(recorded);
    }
    bind(storage, impl);
    written_[storage.index] = false;
    return storage;
  }

  void set(ValueId id, const at::Tensor& tensor, StorageId storage) {
    out_.tensors_[id] = tensor;
    out_.storages_[id] = storage;
    if (!first_on_[storage].valid()) first_on_[storage] = id;
  }

  // Guards whose sizes changed mean that a new capture might take another path. They are reported, not enforced.
  void find_paths() {
    for (const Guard& guard : graph_.guards) {
      if (!guard.value.valid() || !out_.tensors_[guard.value].defined()) continue;
      const auto before = graph_.sizes(guard.value);
      const auto now = out_.tensors_[guard.value].sizes();
      const auto wrapped = static_cast<size_t>(std::max<int64_t>(guard.dimension, 0));
      std::string read;
      if (guard.kind == Guard::Kind::kSize && wrapped < before.size() && wrapped < now.size() &&
          before[wrapped] != now[wrapped]) {
        read = c10::str("size ", wrapped, " = ", guard.observed, ", now ", now[wrapped]);
      } else if (guard.kind == Guard::Kind::kSizes && !std::ranges::equal(before, now)) {
        read = c10::str("sizes ", guard.observed, ", now ", now);
      } else if (guard.kind == Guard::Kind::kRank && before.size() != now.size()) {
        read = c10::str("rank ", guard.observed, ", now ", now.size());
      }
      if (!read.empty()) out_.paths_.push_back("the program read " + read);
    }
  }

  const Graph& graph_;
  const ShapePropagationOptions& options_;
  FakeCallRunner calls_;
  BakedSizes baked_;
  torch::jit::Stack stack_;
  ShapePropagation out_;
  std::vector<std::string> unbound_;
  std::vector<c10::StorageImpl*> storage_of_;  // by StorageId
  std::vector<char> written_;                  // by StorageId: its bytes are from this run
  ska::flat_hash_map<c10::StorageImpl*, StorageId> id_of_;
  IdMap<StorageId, ValueId> first_on_;
  std::unordered_map<size_t, std::vector<ValueId>> by_geometry_;
  bool indexed_ = false;
  uint32_t constants_ = 0;
};

ShapePropagation ShapePropagation::of(const Graph& graph, const ShapePropagationOptions& options) {
  return ShapeRun(graph, options).run();
}

ShapePropResult shape_prop(Graph& graph, const ShapePropagationOptions& options) {
  const ShapePropagation shapes = ShapePropagation::of(graph, options);
  ShapePropResult result{.baked = shapes.baked(), .paths = shapes.paths()};
  const Numbering numbering = Numbering::of(graph);
  for (const BakedSize& baked : shapes.baked()) result.report += "baked in: " + to_text(graph, baked, numbering) + "\n";
  if (!shapes.baked().empty() && options.baked == ShapePropagationOptions::Baked::kError) {
    throw UnsupportedError("shape-prop: recorded sizes are baked into the graph:\n" + result.report,
                           shapes.baked().front().node);
  }
  for (const std::string& path : shapes.paths()) result.report += path + ": a capture may take another path\n";
  result.changed = shapes.apply(graph);
  return result;
}

PassResult ShapePropResult::summary() const {
  return {.changed = changed,
          .counters = {{"baked_sizes", static_cast<int64_t>(baked.size())},
                       {"changed_paths", static_cast<int64_t>(paths.size())}},
          .report = report};
}

namespace {

bool matches(const Graph& graph, ValueId id, const at::Tensor& tensor, StorageId storage) {
  const Value& value = graph.value(id);
  return value.storage == storage && value.dtype == tensor.scalar_type() && value.offset == tensor.storage_offset() &&
         value.device() == tensor.device() && std::ranges::equal(graph.sizes(id), tensor.sizes()) &&
         std::ranges::equal(graph.strides(id), tensor.strides());
}

// Recomputes where storages are allocated and freed from first and last uses, after aliasing has changed. A storage
// that was freed is now freed after its last use; one that was never freed stays alive.
void renew_lifetimes(Graph& graph) {
  const uint32_t count = graph.storage_count();
  std::vector<NodeId> born(count);
  for (const NodeId node : graph.nodes()) {
    const auto touch = [&](ValueId value) {
      const StorageId storage = graph.value(value).storage;
      if (storage.valid() && !born[storage.index].valid()) born[storage.index] = node;
    };
    graph.for_each_input(node, touch);
    graph.for_each_output(node, touch);
  }
  const std::vector<NodeId> last = last_uses(graph);
  IdMap<NodeId, uint32_t> position;
  uint32_t next = 0;
  for (const NodeId node : graph.nodes()) position[node] = next++;
  std::vector<NodeId> free_points(count);
  for (uint32_t i = 0; i < count; ++i) {
    Storage& storage = mutable_storage(graph, StorageId(i));
    if (!born[i].valid()) {
      storage.freed_after = NodeId();
      continue;
    }
    storage.born = born[i];
    if (!storage.freed_after.valid()) continue;
    // New uses may come after the old free point if a view became a copy or the reverse.
    const bool too_early = position[storage.freed_after] < position[last[i]];
    const bool unallocated = position[storage.freed_after] < position[born[i]];
    free_points[i] = too_early || unallocated ? last[i] : storage.freed_after;
  }
  set_free_points(graph, free_points);
}

}  // namespace

bool ShapePropagation::apply(Graph& graph) const {
  bool changed = false;
  bool moved = !models_.empty();
  // Aliases that became copies need new storages.
  for (const StorageId model : models_) graph.add_storage(graph.storage(model));
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const ValueId id(i);
    const at::Tensor& tensor = tensors_[id];
    if (!tensor.defined() || matches(graph, id, tensor, storages_[id])) continue;
    const Value& value = graph.value(id);
    changed = true;
    moved |= value.storage != storages_[id];
    graph.set_geometry(id, {.dtype = tensor.scalar_type(),
                            .sizes = std::span(tensor.sizes().data(), tensor.sizes().size()),
                            .strides = std::span(tensor.strides().data(), tensor.strides().size()),
                            .storage = storages_[id],
                            .offset = tensor.storage_offset(),
                            .device = tensor.device(),
                            .layout = value.layout,
                            .requires_grad = value.requires_grad});
    Storage& storage = mutable_storage(graph, storages_[id]);
    storage.device_type = tensor.device().type();
    storage.device_index = tensor.device().index();
  }
  for (uint32_t i = 0; i < bytes_.size(); ++i) {
    int64_t& bytes = mutable_storage(graph, StorageId(i)).bytes;
    changed |= bytes != bytes_[i];
    bytes = bytes_[i];
  }
  if (moved) renew_lifetimes(graph);
  return changed;
}

}  // namespace shadowgraph
