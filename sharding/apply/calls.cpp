#include <ATen/TensorUtils.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shadowgraph/text.h"
#include "sharding/apply/application.h"
#include "sharding/apply/lookup.h"

namespace shadowgraph {

void Application::call(NodeId node) {
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

void Application::check_random(NodeId node, const NodeLayouts& layouts) const {
  if (options_.random_parts || !effects_.random(node) || !rules().strategies(read_, node).random) return;
  const auto cut = [](const Layout& layout) {
    return std::any_of(layout.begin(), layout.end(), [](const Placement& p) { return p.is_shard(); });
  };
  if (std::none_of(layouts.operands.begin(), layouts.operands.end(), cut) &&
      std::none_of(layouts.results.begin(), layouts.results.end(), cut)) {
    return;
  }
  fail(node, fmt::format("it draws random numbers, and its tensors are cut ({} to {}): a part draws others than the "
                         "whole would. ApplyOptions::random_parts allows it",
                         text_of(layouts.operands), text_of(layouts.results)));
}

void Application::make_viewable(NodeId node, std::span<const ValueId> operands, std::vector<Taken>& taken,
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

bool Application::is_reshape(ValueId source, ValueId result) const {
  const auto ref = [](std::span<const int64_t> ints) { return c10::IntArrayRef(ints.data(), ints.size()); };
  const auto strides = at::detail::computeStride(ref(read_.sizes(source)), ref(read_.strides(source)),
                                                 at::DimVector(ref(read_.sizes(result))));
  return read_.numel(source) == read_.numel(result) && read_.value(source).offset == read_.value(result).offset &&
         strides && std::ranges::equal(*strides, read_.strides(result));
}

void Application::check_strided(NodeId node, std::span<const ValueId> operands, std::span<const Taken> taken) const {
  const at::Tensor& tensor = program_.tensor(taken[0].made);
  const ValueId value = operands[0];
  if (std::ranges::equal(tensor.sizes(), read_.sizes(value)) &&
      std::ranges::equal(tensor.strides(), read_.strides(value)) &&
      tensor.storage_offset() == read_.value(value).offset &&
      static_cast<int64_t>(tensor.storage().nbytes()) == read_.storage(read_.value(value).storage).bytes) {
    return;
  }
  fail(node, "it names strides and an offset in memory that is laid out otherwise here");
}

NodeId Application::look_up(NodeId node, const ShardingRules::Lookup& lookup, std::vector<Taken> taken) {
  const std::string& name = read_.target(node).name();
  const auto named = [&](const char* argument) { return *read_.target(node).signature().position_of(argument); };
  const auto number = [&](const char* argument) { return read_.arguments(node)[named(argument)].i; };
  ValueId& indices = taken.at(lookup.operand).made;
  if (name.starts_with("aten::nll_loss")) {
    constexpr int64_t kIgnored = -100;  // no index of this device
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
    taken.at(0).made = without_rows(program_, taken.at(0).made, local.others);
    return copy_call(node, taken);
  }
  if (name != "aten::embedding") fail(node, "nothing is known of how its indices are looked up in a part");
  replaced_.emplace_back(named("padding_idx"), Argument::of_int(-1));
  const ValueId found = program_.only_result(copy_call(node, taken));
  const NodeId made =
      program_.append(program_.emitter.target("aten::masked_fill.Scalar"), rows_of(program_, found, local.others));
  program_.rebuild.node(node, made);
  return made;
}

NodeId Application::copy_call(NodeId node, std::span<const Taken> taken) {
  const NodeLayouts& layouts = plan_.nodes[node];
  const auto replicated = [](const Layout& layout) { return layout.is_replicated(); };
  const bool whole = std::all_of(layouts.operands.begin(), layouts.operands.end(), replicated) &&
                     std::all_of(layouts.results.begin(), layouts.results.end(), replicated);
  const auto recorded = read_.arguments(node);
  std::vector<Argument> arguments(recorded.begin(), recorded.end());
  if (!whole) {
    try {
      arguments = rules().local_arguments(read_, node, layouts.operands, layouts.results, plan_.mesh);
    } catch (const ShardingError&) {
      throw;
    } catch (const Error& error) {
      fail(node, fmt::format("{} to {}: {}", text_of(layouts.operands), text_of(layouts.results), error.what()));
    }
  }
  size_t next = 0;
  std::vector<Argument> local;
  for (const Argument& argument : arguments) {
    local.push_back(program_.emitter.mapped(argument, [&](ValueId v) {
      if (is_tensor(v)) return taken[next++].made;
      return std::as_const(values_)[v].made;
    }));
  }
  if (strides_) {
    local.at(2) = made_.int_list(std::span<const int64_t>(strides_->data(), strides_->size()));
    if (local.size() > 3) local[3] = Argument::of_int(program_.tensor(taken[0].made).storage_offset());
  }
  for (const auto& [position, argument] : replaced_) local.at(position) = argument;
  const NodeId made = program_.append(program_.rebuild.target(read_.node(node).target), local);
  program_.rebuild.node(node, made);
  return made;
}

void Application::place_results(NodeId node, NodeId made, std::span<const ValueId> operands,
                                std::span<const ValueId> results, std::span<const Taken> taken,
                                const NodeLayouts& layouts) {
  // What a node read on the host is a number in the graph already, and a node that returns nothing has no shape to
  // find. Such a node may refuse its operands.
  const bool gives_nothing = read_.target(node).signature().returns.empty();
  torch::jit::Stack stack;
  if (!results.empty() || (gives_nothing && read_.target(node).kind() == TargetKind::kOperator)) {
    try {
      stack = program_.call(made);
    } catch (const std::exception& error) {
      const auto* libtorch = dynamic_cast<const c10::Error*>(&error);
      fail(node,
           fmt::format("{} to {}: on local tensors, {}\n  {}", text_of(layouts.operands), text_of(layouts.results),
                       to_text(made_, made), libtorch != nullptr ? libtorch->what_without_backtrace() : error.what()));
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

Argument Application::place(NodeId node, NodeId made, const Argument& recorded, const c10::IValue& actual,
                            std::span<const ValueId> operands, std::span<const Taken> taken, const NodeLayouts& layouts,
                            size_t& next) {
  if (recorded.kind == ArgumentKind::kNone) return Argument::none();
  if (recorded.kind == ArgumentKind::kList) {
    const auto elements = read_.list(recorded);
    const auto tensors = actual.toListRef();
    if (elements.size() != tensors.size()) {
      fail(node, fmt::format("it gives a list of {} on local tensors, where the graph has {}", tensors.size(),
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
    fail(node, "it gives None on local tensors, where the graph has a tensor");
  }
  const at::Tensor& tensor = actual.toTensor();
  const std::vector<int64_t> expected = local_sizes_of(node, value, layout);
  if (!std::ranges::equal(tensor.sizes(), expected)) {
    fail(node, fmt::format("{} to {}: on local tensors it gives sizes [{}], and {} of [{}] would be [{}]",
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
    // The result is fresh memory in the whole program and an operand's memory here. That is as good, unless somebody
    // writes to either.
    bool written = is_written_later(storage);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (made_.value(taken[i].made).storage == lives_in) {
        written |= is_written_later(read_.value(operands[i]).storage);
      }
    }
    if (written) {
      fail(node,
           "its result shares memory with an operand on local tensors, where the program had a fresh tensor, and "
           "one of them is written to later");
    }
    program_.join(storage, lives_in);
  } else if (program_.self_of(storage) != lives_in) {
    // This is a view of a copy, or a copy where the program had a view.
    known.copied_at = version_of(value);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (taken[i].copied_at && read_.value(operands[i]).storage == storage) {
        known.copied_at = std::min(*known.copied_at, *taken[i].copied_at);
      }
    }
  }
  return Argument::of_value(local);
}

}  // namespace shadowgraph
