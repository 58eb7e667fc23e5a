#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "core/calls/fake_values.h"
#include "shadowgraph/sharding/parts.h"
#include "shadowgraph/text.h"
#include "sharding/apply/application.h"
#include "sharding/apply/sharding_notes.h"

namespace shadowgraph {
namespace {

std::span<const int64_t> sizes_of(c10::IntArrayRef ints) { return {ints.data(), ints.size()}; }

// Returns dense strides whose dimensions have the same order as in the given strides.
std::vector<int64_t> dense_like(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
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

}  // namespace

void Application::placeholder(NodeId node) {
  const ValueId value = results_of(node).at(0);
  const Layout& layout = layouts_of(node, 0, 1).results[0];
  const std::vector<int64_t> local = local_sizes_of(node, value, layout);
  const Value& old = read_.value(value);
  const bool whole = std::ranges::equal(local, read_.sizes(value));
  const ValueId first = first_in_[old.storage];
  at::Tensor fake;
  if (first.valid()) {
    // This placeholder is another name for memory that an earlier one stands for.
    const LocalValue& other = values_[first];
    const at::Tensor& model = program_.tensor(other.made);
    const bool same = same_place_in_read(value, first) && layout == other.layout;
    if (!same && !(whole && other.layout.is_replicated())) {
      fail(node, fmt::format("it shares its memory with {}, which lies as {}; both must lie as {} then",
                             to_text(read_, read_.value(first).producer), to_string(other.layout), to_string(layout)));
    }
    const auto sizes = same ? sizes_of(model.sizes()) : read_.sizes(value);
    const auto strides = same ? sizes_of(model.strides()) : read_.strides(value);
    fake =
        fake_on(model.storage(), old.dtype, sizes, strides, same ? model.storage_offset() : old.offset, old.device());
  } else if (whole) {
    fake = fake_on(fake_storage(read_.storage(old.storage).bytes), old.dtype, read_.sizes(value), read_.strides(value),
                   old.offset, old.device());
  } else {
    int64_t bytes = static_cast<int64_t>(c10::elementSize(old.dtype));
    for (const int64_t size : local) bytes *= size;
    fake = fake_on(fake_storage(bytes), old.dtype, local, dense_like(local, read_.strides(value)), 0, old.device());
  }
  Argument name = read_.arguments(node)[0];
  if (name.kind == ArgumentKind::kConstant) {
    name = local_constant(node, name, layout, whole);
  } else {
    name = program_.emitter.copied(name);
  }
  const NodeId made = program_.append(program_.rebuild.target(read_.node(node).target), {&name, 1});
  const Argument result = Argument::of_value(program_.new_value(made, fake, value));
  made_.set_results(made, {&result, 1});
  program_.rebuild.node(node, made);
  made_.set_note(made, kLayoutNote, to_string(layout));
  made_.set_note(made, kSizesNote, fmt::format("{}", fmt::join(read_.sizes(value), ",")));
  values_[value] = {result.ref.value, layout, std::nullopt};
  if (!first.valid()) first_in_[old.storage] = value;
}

bool Application::same_place_in_read(ValueId a, ValueId b) const {
  const Value& x = read_.value(a);
  const Value& y = read_.value(b);
  return x.storage == y.storage && x.offset == y.offset && x.dtype == y.dtype &&
         std::ranges::equal(read_.sizes(a), read_.sizes(b)) && std::ranges::equal(read_.strides(a), read_.strides(b));
}

Argument Application::local_constant(NodeId node, const Argument& constant, const Layout& layout, bool whole) {
  if (whole && !layout.has_partial()) return constant;
  const at::Tensor& full = read_.constant(constant.constant);
  if (!full.defined() || full.is_meta()) fail(node, "its contents are not known, so there is no part of them");
  return Argument::of_constant(made_.add_constant(local_part(full, layout, plan_.mesh, rank_)));
}

void Application::alias(NodeId node) {
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
    fail(node, fmt::format("no operator made this alias, so it must be replicated like its source, not {} of {}",
                           to_string(layouts.results[0]), to_string(layouts.operands[0])));
  }
  const Argument argument = Argument::of_value(source.made);
  const NodeId made = program_.append(program_.rebuild.target(read_.node(node).target), {&argument, 1});
  const Argument result = Argument::of_value(program_.new_value(made, fake, value));
  made_.set_results(made, {&result, 1});
  program_.rebuild.node(node, made);
  values_[value] = {result.ref.value, layouts.results[0], source.copied_at};
}

}  // namespace shadowgraph
