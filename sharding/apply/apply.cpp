// Applies a plan in one pass over the program (shadowgraph/shard/apply.h). Every value is mapped to a local tensor and
// its layout. For an operand needed in another layout, a redistributed copy is made at that point and kept for later
// uses.
//
// A copy is valid as long as nothing writes to its source. A value backed by a copy (the copy or a view of it)
// therefore records the version of the storage that was copied. Reading a later version, or writing it, is an error.
#include "shadowgraph/shard/apply.h"

#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/calls/calls_on_fakes.h"
#include "ir/operators/operator_facts.h"
#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/simulate.h"
#include "sharding/apply/local_program.h"
#include "sharding/layout/dimension_cuts.h"

namespace shadowgraph {

static std::span<const int64_t> sizes_of(c10::IntArrayRef ints) { return {ints.data(), ints.size()}; }

// Returns contiguous strides in the order of the given strides.
static std::vector<int64_t> dense_like(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  std::vector<int64_t> dense(sizes.size(), 1);
  int64_t next = 1;
  for (size_t i = order.size(); i-- > 0;) {
    dense[order[i]] = next;
    next *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return dense;
}

class Application {
 public:
  Application(const Graph& graph, const GraphLayouts& plan, int64_t rank, const ApplyOptions& options)
      : read_(clone(graph)),
        plan_(plan),
        rank_(rank),
        options_(options),
        effects_(Effects::of(read_)),
        program_(read_, made_),
        redistributor_(program_, made_, plan.mesh, rank),
        versions_(read_.storage_count()) {
    if (options.rules == nullptr) rules_.emplace();
    if (options.planner == nullptr) {
      interconnect_ = Interconnect::named("h100");
      planner_.emplace(plan.mesh, RedistributionRates{.interconnect = &interconnect_});
    }
  }

  Graph run() {
    check_mesh();
    for (const NodeId node : read_.nodes()) {
      program_.rebuild.enter_region(read_.node(node).region,
                                    [this](ValueId v) { return std::as_const(values_)[v].made; });
      program_.stand_for(node);
      if (is_end(read_.node(node).target)) {
        if (!ends_begun_) prepare_ends(node);
        end(node);
      } else if (read_.is_placeholder(node)) {
        placeholder(node);
      } else if (read_.node(node).target == target_of(Builtin::kAlias)) {
        alias(node);
      } else {
        call(node);
      }
      program_.rebuild.done(node);
      for (const StorageWrite& write : effects_.writes(node)) {
        if (write.storage.index < versions_.size()) versions_[write.storage.index] = write.after;
      }
    }
    finish();
    return std::move(made_);
  }

 private:
  struct LocalValue {
    ValueId made;
    Layout layout;
    // For a value backed by a copy: the version of its storage that was copied.
    std::optional<uint32_t> copied_at;
  };
  struct Copy {
    uint32_t version = 0;
    PhaseId phase;
    Layout layout;
    ValueId made;
  };
  // An operand in the layout that a node needs.
  struct Taken {
    ValueId made;
    std::optional<uint32_t> copied_at;
  };

  [[noreturn]] void fail(NodeId node, const std::string& what) const {
    throw UnsupportedError(fmt::format("cannot shard {}\n  {}", to_text(read_, node), what), node);
  }

  void check_mesh() const {
    if (rank_ < 0 || rank_ >= plan_.mesh.size()) {
      throw Error(fmt::format("rank {} is not in mesh {}", rank_, plan_.mesh.to_string()));
    }
    for (const ProcessGroupInfo& group : process_groups(read_)) {
      for (const MeshAxis& axis : plan_.mesh.axes) {
        if (axis.name != group.name) continue;
        throw Error(fmt::format("the graph already uses a process group named '{}'; rename that axis of mesh {}",
                                axis.name, plan_.mesh.to_string()));
      }
    }
  }

  bool is_tensor(ValueId value) const { return read_.value(value).kind == ValueKind::kTensor; }
  std::vector<ValueId> operands_of(NodeId node) const { return NodeTensors::of(read_, node).operands; }
  std::vector<ValueId> results_of(NodeId node) const { return NodeTensors::of(read_, node).results; }

  const NodeLayouts& layouts_of(NodeId node, size_t operands, size_t results) const {
    const NodeLayouts& layouts = plan_.nodes[node];
    const size_t axes = plan_.mesh.axes.size();
    const auto fits = [&](const std::vector<Layout>& given, size_t wanted) {
      return given.size() == wanted && std::ranges::all_of(given, [&](const Layout& l) { return l.size() == axes; });
    };
    if (fits(layouts.operands, operands) && fits(layouts.results, results)) return layouts;
    fail(node,
         fmt::format("the plan has {} operand layouts and {} result layouts for it; expected {} and {}, each with {} "
                     "placements",
                     layouts.operands.size(), layouts.results.size(), operands, results, axes));
  }

  static std::string text_of(std::span<const Layout> layouts) {
    std::string text;
    for (const Layout& layout : layouts) text += fmt::format("{}{}", text.empty() ? "" : "; ", to_string(layout));
    return fmt::format("[{}]", text);
  }

  std::vector<int64_t> local_sizes_of(NodeId node, ValueId value, const Layout& layout) const {
    const auto local = local_sizes(read_.sizes(value), layout, plan_.mesh);
    if (local) return *local;
    fail(node, fmt::format("a tensor of sizes [{}] cannot have layout {} on mesh {}",
                           fmt::join(read_.sizes(value), ", "), to_string(layout), plan_.mesh.to_string()));
  }

  uint32_t version_of(ValueId value) const { return versions_[read_.value(value).storage.index]; }
  bool is_written_later(StorageId storage) const { return effects_.final_version(storage) != versions_[storage.index]; }

  void placeholder(NodeId node) {
    const ValueId value = results_of(node).at(0);
    const Layout& layout = layouts_of(node, 0, 1).results[0];
    const std::vector<int64_t> local = local_sizes_of(node, value, layout);
    const Value& old = read_.value(value);
    const bool whole = std::ranges::equal(local, read_.sizes(value));
    const ValueId first = first_in_[old.storage];
    at::Tensor fake;
    if (first.valid()) {
      // This placeholder shares its memory with an earlier one.
      const LocalValue& other = values_[first];
      const at::Tensor& model = program_.tensor(other.made);
      const bool same = same_place_in_read(value, first) && layout == other.layout;
      if (!same && !(whole && other.layout.is_replicated())) {
        fail(node,
             fmt::format("it shares its memory with {}, which has layout {}; both must have layout {}",
                         to_text(read_, read_.value(first).producer), to_string(other.layout), to_string(layout)));
      }
      const auto sizes = same ? sizes_of(model.sizes()) : read_.sizes(value);
      const auto strides = same ? sizes_of(model.strides()) : read_.strides(value);
      fake =
          fake_on(model.storage(), old.dtype, sizes, strides, same ? model.storage_offset() : old.offset, old.device());
    } else if (whole) {
      fake = fake_on(fake_storage(read_.storage(old.storage).bytes), old.dtype, read_.sizes(value),
                     read_.strides(value), old.offset, old.device());
    } else {
      int64_t bytes = static_cast<int64_t>(c10::elementSize(old.dtype));
      for (const int64_t size : local) bytes *= size;
      fake = fake_on(fake_storage(bytes), old.dtype, local, dense_like(local, read_.strides(value)), 0, old.device());
    }
    Argument name = read_.arguments(node)[0];
    name = name.kind == ArgumentKind::kConstant ? local_constant(node, name, layout, whole)
                                                : program_.emitter.copied(name);
    const NodeId made = program_.append(program_.rebuild.target(read_.node(node).target), {&name, 1});
    const ValueId result = program_.new_result(made, fake, value);
    program_.rebuild.node(node, made);
    made_.set_note(made, kLayoutNote, to_string(layout));
    made_.set_note(made, kSizesNote, fmt::format("{}", fmt::join(read_.sizes(value), ",")));
    values_[value] = {result, layout, std::nullopt};
    if (!first.valid()) first_in_[old.storage] = value;
  }

  bool same_place_in_read(ValueId a, ValueId b) const {
    const Value& x = read_.value(a);
    const Value& y = read_.value(b);
    return x.storage == y.storage && x.offset == y.offset && x.dtype == y.dtype &&
           std::ranges::equal(read_.sizes(a), read_.sizes(b)) && std::ranges::equal(read_.strides(a), read_.strides(b));
  }

  Argument local_constant(NodeId node, const Argument& constant, const Layout& layout, bool whole) {
    if (whole && !layout.has_partial()) return constant;
    const at::Tensor& full = read_.constant(constant.constant);
    if (!full.defined() || full.is_meta())
      fail(node, "the contents of the constant are unknown, so it cannot be sharded");
    return Argument::of_constant(made_.add_constant(local_shard(full, layout, plan_.mesh, rank_)));
  }

  // An alias has no operator to run on the local tensor. It must be the same part of the local tensor as of the whole
  // one, or cover everything that its source covers.
  void alias(NodeId node) {
    const std::vector<ValueId> operands = operands_of(node);
    const ValueId value = results_of(node).at(0);
    const NodeLayouts& layouts = layouts_of(node, 1, 1);
    const Taken source = take(node, operands[0], layouts.operands[0], /*written=*/false, /*geometry_only=*/true);
    const at::Tensor& tensor = program_.tensor(source.made);
    at::Tensor fake;
    if (same_place_in_read(value, operands[0]) && layouts.results[0] == layouts.operands[0]) {
      fake = fake_on(tensor.storage(), tensor.scalar_type(), sizes_of(tensor.sizes()), sizes_of(tensor.strides()),
                     tensor.storage_offset(), tensor.device());
    } else if (layouts.operands[0].is_replicated() && layouts.results[0].is_replicated() && !source.copied_at &&
               std::ranges::equal(tensor.strides(), read_.strides(operands[0]))) {
      const Value& old = read_.value(value);
      fake = fake_on(tensor.storage(), old.dtype, read_.sizes(value), read_.strides(value), old.offset, old.device());
    } else {
      fail(node, fmt::format("an alias without an operator must be replicated like its source, not {} of {}",
                             to_string(layouts.results[0]), to_string(layouts.operands[0])));
    }
    const Argument argument = Argument::of_value(source.made);
    const NodeId made = program_.append(program_.rebuild.target(read_.node(node).target), {&argument, 1});
    values_[value] = {program_.new_result(made, fake, value), layouts.results[0], source.copied_at};
    program_.rebuild.node(node, made);
  }

  // Returns `value` in the given layout; creates a copy if there is none yet.
  Taken take(NodeId node, ValueId value, const Layout& wanted, bool written, bool geometry_only) {
    const LocalValue& local = std::as_const(values_)[value];
    TORCH_INTERNAL_ASSERT(local.made.valid());
    if (written && local.copied_at) {
      fail(node,
           fmt::format("it writes to {}, which is backed by a copy with layout {}; the tensor itself would not change",
                       text_of_value(value), to_string(local.layout)));
    }
    if (local.layout == wanted) {
      if (!geometry_only) check_fresh(node, value, local);
      return {local.made, local.copied_at};
    }
    if (written) {
      fail(node, fmt::format("it writes to {} with layout {}, but the plan requires {}; a copy cannot be used instead",
                             text_of_value(value), to_string(local.layout), to_string(wanted)));
    }
    check_fresh(node, value, local);
    const uint32_t version = version_of(value);
    const PhaseId phase = phase_of_layout_changes(read_, node);
    std::vector<Copy>& copies = copies_[value];
    for (const Copy& copy : copies) {
      if (copy.version == version && copy.phase == phase && copy.layout == wanted) return {copy.made, version};
    }
    const ValueId made = redistributed(node, value, local, wanted);
    copies.push_back({version, phase, wanted, made});
    return {made, made == local.made ? local.copied_at : version};
  }

  void check_fresh(NodeId node, ValueId value, const LocalValue& local) const {
    if (!local.copied_at || *local.copied_at == version_of(value)) return;
    fail(node,
         fmt::format("it reads {}, backed by a copy with layout {}, but the memory has been written to since the copy "
                     "was made",
                     text_of_value(value), to_string(local.layout)));
  }

  std::string text_of_value(ValueId value) const {
    return fmt::format("the result of {}", to_text(read_, read_.value(value).producer));
  }

  ValueId redistributed(NodeId node, ValueId value, const LocalValue& local, const Layout& wanted) {
    const RedistributionPlanner& planner = options_.planner != nullptr ? *options_.planner : *planner_;
    const auto bytes = static_cast<int64_t>(c10::elementSize(read_.value(value).dtype));
    const Redistribution way = planner.path(read_.sizes(value), bytes, local.layout, wanted);
    if (!way.possible) {
      fail(node, fmt::format("no redistribution from {} to {} exists for a tensor of sizes [{}]",
                             to_string(local.layout), to_string(wanted), fmt::join(read_.sizes(value), ", ")));
    }
    program_.set_redistribution(to_string(local.layout) + " -> " + to_string(wanted));
    const ValueId made = redistributor_.redistribute(local.made, read_.sizes(value), local.layout, way);
    program_.set_redistribution("");
    return made;
  }

  std::vector<bool> written_operands(NodeId node) const {
    std::vector<bool> written;
    const OperatorFacts& facts = read_.facts(node);
    const bool writes = !effects_.writes(node).empty();
    const auto arguments = read_.arguments(node);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool is_written =
          writes &&
          (facts.unknown || (std::find(facts.written.begin(), facts.written.end(), i) != facts.written.end() &&
                             writes_argument(read_, node, i)));
      read_.for_each_value(arguments.subspan(i, 1), [&](ValueId v) {
        if (is_tensor(v)) written.push_back(is_written);
      });
    }
    return written;
  }

  void call(NodeId node) {
    const std::vector<ValueId> operands = operands_of(node);
    const std::vector<ValueId> results = results_of(node);
    if (operands.empty() && results.empty()) {
      strides_.reset();
      copy_call(node, {});
      return;
    }
    const NodeLayouts& layouts = layouts_of(node, operands.size(), results.size());
    check_random(node, layouts);
    const std::vector<bool> written = written_operands(node);
    std::vector<Taken> taken;
    for (size_t i = 0; i < operands.size(); ++i) {
      taken.push_back(take(node, operands[i], layouts.operands[i], written[i], effects_.geometry_only(node)));
    }
    make_viewable(node, operands, taken, layouts);
    replaced_.clear();
    const auto lookup = rules().lookup(read_, node, layouts.operands, layouts.results, plan_.mesh, rank_);
    const NodeId made = lookup ? look_up(node, *lookup, taken) : copy_call(node, taken);
    place_results(node, made, operands, results, taken, layouts);
  }

  void check_random(NodeId node, const NodeLayouts& layouts) const {
    if (options_.shard_random || !effects_.random(node) || !rules().strategies(read_, node).random) return;
    const auto cut = [](const Layout& layout) { return std::ranges::any_of(layout, &Placement::is_shard); };
    if (std::ranges::none_of(layouts.operands, cut) && std::ranges::none_of(layouts.results, cut)) return;
    fail(node,
         fmt::format("it draws random numbers and its tensors are sharded ({} to {}), so the numbers would differ "
                     "from those of a single device; set ApplyOptions::shard_random to allow it",
                     text_of(layouts.operands), text_of(layouts.results)));
  }

  // Makes operands of views contiguous if needed: a copy is contiguous even if the original tensor was not, and a local
  // result may have other strides than the whole one. A view that was valid for the whole tensor may then need one more
  // copy, and its explicit strides change.
  void make_viewable(NodeId node, std::span<const ValueId> operands, std::vector<Taken>& taken,
                     const NodeLayouts& layouts) {
    const std::string& name = read_.target(node).name();
    strides_.reset();
    const bool names_strides = name == "aten::as_strided" || name == "aten::_reshape_alias";
    if (name.starts_with("aten::as_strided") && name != "aten::as_strided") check_strided(node, operands, taken);
    if (!names_strides && name != "aten::view" && name != "aten::_unsafe_view") return;
    const ValueId result = results_of(node).at(0);
    if (names_strides && !is_reshape(operands[0], result)) {
      check_strided(node, operands, taken);
      return;
    }
    const at::DimVector sizes(local_sizes_of(node, result, layouts.results[0]));
    const auto strides_now = [&] {
      const at::Tensor& tensor = program_.tensor(taken[0].made);
      return at::detail::computeStride(tensor.sizes(), tensor.strides(), sizes);
    };
    std::optional<at::DimVector> strides = strides_now();
    if (!strides) {
      program_.set_redistribution("contiguous");
      taken[0].made = program_.contiguous_clone(taken[0].made);
      program_.set_redistribution("");
      if (!taken[0].copied_at) taken[0].copied_at = version_of(operands[0]);
      strides = strides_now();
    }
    if (names_strides) strides_ = std::move(strides);
  }

  bool is_reshape(ValueId source, ValueId result) const {
    const auto ref = [](std::span<const int64_t> ints) { return c10::IntArrayRef(ints.data(), ints.size()); };
    const auto strides = at::detail::computeStride(ref(read_.sizes(source)), ref(read_.strides(source)),
                                                   at::DimVector(ref(read_.sizes(result))));
    return read_.numel(source) == read_.numel(result) && read_.value(source).offset == read_.value(result).offset &&
           strides && std::ranges::equal(*strides, read_.strides(result));
  }

  // Checks that explicit strides and offsets still address the recorded memory.
  void check_strided(NodeId node, std::span<const ValueId> operands, std::span<const Taken> taken) const {
    const at::Tensor& tensor = program_.tensor(taken[0].made);
    const ValueId value = operands[0];
    if (std::ranges::equal(tensor.sizes(), read_.sizes(value)) &&
        std::ranges::equal(tensor.strides(), read_.strides(value)) &&
        tensor.storage_offset() == read_.value(value).offset &&
        static_cast<int64_t>(tensor.storage().nbytes()) == read_.storage(read_.value(value).storage).bytes) {
      return;
    }
    fail(node, "its explicit strides and offset do not match the memory layout of the local tensor");
  }

  // Makes a call with indices into a sharded dimension. Indices of other devices are replaced by ones that contribute
  // nothing (local_program.h).
  NodeId look_up(NodeId node, const ShardingRules::Lookup& lookup, std::vector<Taken> taken) {
    const std::string& name = read_.target(node).name();
    const auto named = [&](const char* argument) { return *read_.target(node).signature().position_of(argument); };
    const auto number = [&](const char* argument) { return read_.arguments(node)[named(argument)].i; };
    ValueId& indices = taken.at(lookup.operand).made;
    if (name.starts_with("aten::nll_loss")) {
      constexpr int64_t kIgnored = -100;  // not a valid index on any device
      indices = local_indices(program_, indices, lookup, kIgnored, number("ignore_index")).indices;
      replaced_.emplace_back(named("ignore_index"), Argument::of_int(kIgnored));
      return copy_call(node, taken);
    }
    const LocalIndices local = local_indices(program_, indices, lookup, /*instead=*/0, std::nullopt);
    indices = local.indices;
    if (name == "aten::embedding_dense_backward") {
      const int64_t padding = number("padding_idx");
      const bool is_here = padding >= lookup.begin && padding < lookup.end;
      replaced_.emplace_back(named("padding_idx"), Argument::of_int(is_here ? padding - lookup.begin : -1));
      taken.at(0).made = zero_rows(program_, taken.at(0).made, local.others);
      return copy_call(node, taken);
    }
    if (name != "aten::embedding") fail(node, "indexing into a sharded dimension is not supported for this operator");
    replaced_.emplace_back(named("padding_idx"), Argument::of_int(-1));
    const ValueId found = program_.only_result(copy_call(node, taken));
    const NodeId made =
        program_.append(program_.emitter.target("aten::masked_fill.Scalar"), rows_of(program_, found, local.others));
    program_.rebuild.node(node, made);
    return made;
  }

  // Returns arguments with each value replaced: tensors by the taken operands, in order.
  std::vector<Argument> mapped(std::span<const Argument> arguments, std::span<const Taken> taken) {
    size_t next = 0;
    std::vector<Argument> local;
    for (const Argument& argument : arguments) {
      local.push_back(program_.emitter.mapped(
          argument, [&](ValueId v) { return is_tensor(v) ? taken[next++].made : std::as_const(values_)[v].made; }));
    }
    return local;
  }

  NodeId copy_call(NodeId node, std::span<const Taken> taken) {
    const NodeLayouts& layouts = plan_.nodes[node];
    const bool whole = std::ranges::all_of(layouts.operands, &Layout::is_replicated) &&
                       std::ranges::all_of(layouts.results, &Layout::is_replicated);
    const auto recorded = read_.arguments(node);
    std::vector<Argument> arguments(recorded.begin(), recorded.end());
    if (!whole) {
      try {
        arguments = rules().local_arguments(read_, node, layouts.operands, layouts.results, plan_.mesh);
      } catch (const UnsupportedError&) {
        throw;
      } catch (const Error& error) {
        fail(node, fmt::format("{} to {}: {}", text_of(layouts.operands), text_of(layouts.results), error.what()));
      }
    }
    std::vector<Argument> local = mapped(arguments, taken);
    if (strides_) {
      local.at(2) = made_.int_list(std::span<const int64_t>(strides_->data(), strides_->size()));
      if (local.size() > 3) local[3] = Argument::of_int(program_.tensor(taken[0].made).storage_offset());
    }
    for (const auto& [position, argument] : replaced_) local.at(position) = argument;
    const NodeId made = program_.append(program_.rebuild.target(read_.node(node).target), local);
    program_.rebuild.node(node, made);
    return made;
  }

  const ShardingRules& rules() const { return options_.rules != nullptr ? *options_.rules : *rules_; }
  void place_results(NodeId node, NodeId made, std::span<const ValueId> operands, std::span<const ValueId> results,
                     std::span<const Taken> taken, const NodeLayouts& layouts) {
    // Values that a node read on the host are numbers in the graph already, and a node without results has no shapes to
    // infer. Such nodes may reject their operands.
    const bool has_no_results = read_.target(node).signature().returns.empty();
    torch::jit::Stack stack;
    if (!results.empty() || (has_no_results && read_.target(node).kind() == TargetKind::kOperator)) {
      try {
        stack = program_.call(made);
      } catch (const std::exception& error) {
        const auto* libtorch = dynamic_cast<const c10::Error*>(&error);
        fail(node, fmt::format("{} to {}: on local tensors, {}\n  {}", text_of(layouts.operands),
                               text_of(layouts.results), to_text(made_, made),
                               libtorch != nullptr ? libtorch->what_without_backtrace() : error.what()));
      }
    }
    size_t next = 0;
    const auto recorded = read_.results(node);
    std::vector<Argument> placed;
    for (size_t i = 0; i < recorded.size(); ++i) {
      placed.push_back(
          place(node, made, recorded[i], i < stack.size() ? stack[i] : c10::IValue(), operands, taken, layouts, next));
    }
    made_.set_results(made, placed);
  }

  Argument place(NodeId node, NodeId made, const Argument& recorded, const c10::IValue& actual,
                 std::span<const ValueId> operands, std::span<const Taken> taken, const NodeLayouts& layouts,
                 size_t& next) {
    if (recorded.kind == ArgumentKind::kNone) return Argument::none();
    if (recorded.kind == ArgumentKind::kList) {
      const auto elements = read_.list(recorded);
      const auto tensors = actual.toListRef();
      if (elements.size() != tensors.size()) {
        fail(node, fmt::format("it returns a list of {} on local tensors, but {} in the graph", tensors.size(),
                               elements.size()));
      }
      std::vector<Argument> placed;
      for (size_t i = 0; i < elements.size(); ++i) {
        placed.push_back(place(node, made, elements[i], tensors[i], operands, taken, layouts, next));
      }
      return made_.make_list(placed);
    }
    const ValueId value = recorded.ref.value;
    if (!is_tensor(value)) {
      const ValueId scalar = made_.new_scalar(made, read_.value(value).kind);
      values_[value] = {scalar, Layout(), std::nullopt};
      return Argument::of_value(scalar);
    }
    const Layout& layout = layouts.results[next++];
    if (!actual.isTensor() || !actual.toTensor().defined()) {
      fail(node, "it returns None on local tensors, but a tensor in the graph");
    }
    const at::Tensor& tensor = actual.toTensor();
    const std::vector<int64_t> expected = local_sizes_of(node, value, layout);
    if (!std::ranges::equal(tensor.sizes(), expected)) {
      fail(node, fmt::format("{} to {}: it returns sizes [{}] on local tensors, but {} of [{}] has [{}]",
                             text_of(layouts.operands), text_of(layouts.results), fmt::join(tensor.sizes(), ", "),
                             to_string(layout), fmt::join(read_.sizes(value), ", "), fmt::join(expected, ", ")));
    }
    const StorageId storage = read_.value(value).storage;
    const bool is_new = !program_.self_of(storage).valid();
    const ValueId local = program_.new_value(made, tensor, value);
    const StorageId lives_in = made_.value(local).storage;
    LocalValue& known = values_[value];
    known = {local, layout, std::nullopt};
    if (is_new && program_.self_of(storage) != lives_in) {
      // New memory in the whole program but an alias of an operand here: equivalent unless either is written to.
      bool written = is_written_later(storage);
      for (size_t i = 0; i < operands.size(); ++i) {
        if (made_.value(taken[i].made).storage == lives_in) {
          written |= is_written_later(read_.value(operands[i]).storage);
        }
      }
      if (written) {
        fail(node,
             "its result aliases an operand on local tensors but not in the original program, and one of them is "
             "written to later");
      }
      program_.join(storage, lives_in);
    } else if (program_.self_of(storage) != lives_in) {
      // A view of a copy, or a copy where the program had a view.
      known.copied_at = version_of(value);
      for (size_t i = 0; i < operands.size(); ++i) {
        if (taken[i].copied_at && read_.value(operands[i]).storage == storage) {
          known.copied_at = std::min(*known.copied_at, *taken[i].copied_at);
        }
      }
    }
    return Argument::of_value(local);
  }

  // Redistributes the operands of sg::output and sg::gradient before the first of these nodes, which come last.
  void prepare_ends(NodeId first) {
    ends_begun_ = true;
    for (NodeId node = first; node.valid(); node = read_.node(node).next) {
      program_.stand_for(node);
      std::vector<Taken>& taken = ends_[node];
      const std::vector<ValueId> operands = operands_of(node);
      const NodeLayouts& layouts = layouts_of(node, operands.size(), 0);
      const bool gradient = read_.node(node).target == target_of(Builtin::kGradient);
      for (size_t i = 0; i < operands.size(); ++i) {
        // The parameter of a gradient is an identifier, not an input.
        taken.push_back(gradient && i == 0 ? Taken{std::as_const(values_)[operands[0]].made, std::nullopt}
                                           : take(node, operands[i], layouts.operands[i], false, false));
      }
    }
    program_.stand_for(first);
  }

  void end(NodeId node) {
    const std::vector<Argument> local = mapped(read_.arguments(node), ends_[node]);
    const NodeId made = program_.append(program_.rebuild.target(read_.node(node).target), local);
    program_.rebuild.node(node, made);
    std::string layouts;
    std::string sizes;
    const std::vector<ValueId> operands = operands_of(node);
    const NodeLayouts& plan = plan_.nodes[node];
    const bool gradient = read_.node(node).target == target_of(Builtin::kGradient);
    for (size_t i = gradient ? 1 : 0; i < operands.size(); ++i) {
      const char* const separator = layouts.empty() ? "" : ";";
      const auto whole = read_.sizes(operands[i]);
      layouts += separator + to_string(plan.operands[i]);
      sizes += separator + (whole.empty() ? "scalar" : fmt::format("{}", fmt::join(whole, ",")));
    }
    if (layouts.empty()) return;
    made_.set_note(made, kLayoutNote, layouts);
    made_.set_note(made, kSizesNote, sizes);
  }

  void finish() {
    const auto self = [this](ValueId value) { return value.valid() ? std::as_const(values_)[value].made : ValueId(); };
    for (const NodeId node : read_.nodes()) {
      const NodeId made = program_.rebuild.replacement_of(node);
      if (made.valid()) program_.rebuild.saved(node, made, self);
    }
    // A tensor that the program holds to the end is its last alias. If that is backed by a copy, such as the sum of
    // partial gradients, the source is freed.
    IdMap<StorageId, StorageId> held;
    for (const NodeId node : read_.nodes()) {
      read_.for_each_output(node, [&](ValueId value) {
        const StorageId storage = read_.value(value).storage;
        if (!storage.valid() || read_.storage(storage).freed_after.valid()) return;
        if (read_.is_placeholder(read_.storage(storage).born)) return;
        const ValueId made = std::as_const(values_)[value].made;
        if (made.valid()) held[storage] = made_.value(made).storage;
      });
    }
    program_.rebuild.finish(self, [&](StorageId storage) {
      const StorageId last = std::as_const(held)[storage];
      return last.valid() ? last : program_.self_of(storage);
    });
    std::vector<bool> cut(made_.value_capacity());
    for (uint32_t i = 0; i < read_.value_capacity(); ++i) {
      const LocalValue& local = std::as_const(values_)[ValueId(i)];
      if (!local.made.valid() || !is_tensor(ValueId(i))) continue;
      cut[local.made.index] = !std::ranges::equal(read_.sizes(ValueId(i)), made_.sizes(local.made));
    }
    std::erase_if(made_.guards, [&](const Guard& guard) {
      return (guard.kind == Guard::Kind::kSize || guard.kind == Guard::Kind::kSizes) && cut[guard.value.index];
    });
    made_.metadata.other[kMeshKey] = plan_.mesh.to_string();
    made_.metadata.other[kRankKey] = std::to_string(rank_);
  }

  Graph read_;  // a copy, since rules add lists of local sizes to it
  const GraphLayouts& plan_;
  int64_t rank_;
  const ApplyOptions& options_;
  std::optional<ShardingRules> rules_;
  Interconnect interconnect_;
  std::optional<RedistributionPlanner> planner_;
  Effects effects_;
  Graph made_;
  LocalProgram program_;
  Redistributor redistributor_;
  std::vector<uint32_t> versions_;  // by storage of the read graph, at the current node
  IdMap<ValueId, LocalValue> values_;
  IdMap<ValueId, std::vector<Copy>> copies_;
  IdMap<StorageId, ValueId> first_in_;  // first placeholder of each storage
  IdMap<NodeId, std::vector<Taken>> ends_;
  bool ends_begun_ = false;
  std::optional<at::DimVector> strides_;               // explicit strides of the current node
  std::vector<std::pair<size_t, Argument>> replaced_;  // replaced arguments of the current node, by position
};

ShardedGraph apply(const Graph& graph, const GraphLayouts& plan, int64_t rank, const ApplyOptions& options) {
  return ShardedGraph::of(Application(graph, plan, rank, options).run());
}

}  // namespace shadowgraph
