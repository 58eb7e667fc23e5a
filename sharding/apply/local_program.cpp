#include "sharding/apply/local_program.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/calls/calls_on_fakes.h"
#include "core/fake/process_groups.h"
#include "ir/records.h"
#include "sharding/layout/dimension_cuts.h"

namespace shadowgraph {

static int64_t product(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

LocalProgram::LocalProgram(const Graph& read, Graph& made)
    : rebuild(read, made), emitter(read, made), read_(read), made_(made), calls_(made) {}

void LocalProgram::stand_for(NodeId read) {
  model_ = read;
  const NodeId forward = read_.node(read).forward;
  emitter.stand_for(read, forward.valid() ? rebuild.replacement_of(forward) : NodeId());
}

NodeId LocalProgram::append(TargetId target, std::span<const Argument> arguments) {
  const NodeId node = emitter.append(target, arguments);
  if (!redistribution_.empty()) made_.set_note(node, "redistribution", redistribution_);
  return node;
}

torch::jit::Stack LocalProgram::call(NodeId node) {
  torch::jit::Stack stack;
  calls_.push_arguments(
      node, [this](ValueId value) -> const at::Tensor& { return tensors_[value]; }, stack);
  std::optional<c10::Device> device;
  read_.for_each_output(model_, [&](ValueId value) {
    if (!device && read_.value(value).kind == ValueKind::kTensor) device = read_.value(value).device();
  });
  calls_.call(node, device, stack);
  return stack;
}

ValueId LocalProgram::new_value(NodeId node, const at::Tensor& fake, ValueId like) {
  const auto bytes = static_cast<int64_t>(fake.storage().nbytes());
  const auto [known, is_new] = storages_.try_emplace(fake.storage().unsafeGetStorageImpl());
  if (is_new) {
    const StorageId old = like.valid() ? read_.value(like).storage : StorageId();
    if (old.valid() && !std::as_const(counterparts_)[old].valid()) {
      known->second = rebuild.storage(old, node);
      counterparts_[old] = known->second;
    } else {
      known->second = made_.add_storage({.born = node});
    }
    Storage& storage = mutable_storage(made_, known->second);
    storage.bytes = bytes;
    storage.device_type = fake.device().type();
    storage.device_index = fake.device().index();
  } else {
    Storage& storage = mutable_storage(made_, known->second);
    storage.bytes = std::max(storage.bytes, bytes);
  }
  const ValueId value = made_.new_tensor(node, {.dtype = fake.scalar_type(),
                                                .sizes = {fake.sizes().data(), fake.sizes().size()},
                                                .strides = {fake.strides().data(), fake.strides().size()},
                                                .storage = known->second,
                                                .offset = fake.storage_offset(),
                                                .device = fake.device(),
                                                .requires_grad = like.valid() && read_.value(like).requires_grad});
  tensors_[value] = fake;
  return value;
}

ValueId LocalProgram::new_result(NodeId node, const at::Tensor& fake, ValueId like) {
  const Argument result = Argument::of_value(new_value(node, fake, like));
  made_.set_results(node, {&result, 1});
  return result.ref.value;
}

ValueId LocalProgram::call_for_one(const char* name, std::initializer_list<Argument> arguments) {
  return only_result(append(emitter.target(name), std::span<const Argument>(arguments.begin(), arguments.size())));
}

ValueId LocalProgram::only_result(NodeId node) {
  const torch::jit::Stack results = call(node);
  return new_result(node, results.front().toTensor());
}

ValueId LocalProgram::view(ValueId source, std::span<const int64_t> sizes) {
  if (std::ranges::equal(made_.sizes(source), sizes)) return source;
  return call_for_one("aten::view", {Argument::of_value(source), made_.int_list(sizes)});
}

ValueId LocalProgram::permute(ValueId source, std::span<const int64_t> order) {
  return call_for_one("aten::permute", {Argument::of_value(source), made_.int_list(order)});
}

ValueId LocalProgram::contiguous_clone(ValueId source) {
  return call_for_one("aten::clone", {Argument::of_value(source),
                                      Argument::of_int(static_cast<int64_t>(c10::MemoryFormat::Contiguous))});
}

ValueId LocalProgram::contiguous(ValueId source) {
  return made_.is_contiguous(source) ? source : contiguous_clone(source);
}

ValueId LocalProgram::collective(const char* name, std::initializer_list<Argument> arguments,
                                 std::span<const int64_t> sizes) {
  const NodeId node = append(emitter.target(name), std::span<const Argument>(arguments.begin(), arguments.size()));
  const at::Tensor& input = tensors_[arguments.begin()->ref.value];
  const auto strides = c10::contiguous_strides(c10::IntArrayRef(sizes.data(), sizes.size()));
  const at::Tensor fake = fake_on(fake_storage(static_cast<int64_t>(input.itemsize()) * product(sizes)),
                                  input.scalar_type(), sizes, strides, /*offset=*/0, input.device());
  const Argument sent = Argument::of_value(new_result(node, fake));
  return new_result(append(emitter.target("_c10d_functional::wait_tensor"), {&sent, 1}), fake);
}

LocalIndices local_indices(LocalProgram& program, ValueId indices, const ShardingRules::Lookup& lookup, int64_t instead,
                           std::optional<int64_t> ignored) {
  const auto of = [](ValueId value) { return Argument::of_value(value); };
  const auto number = [](int64_t value) { return Argument::of_int(value); };
  const ValueId shifted = program.call_for_one("aten::sub.Scalar", {of(indices), number(lookup.begin), number(1)});
  const ValueId low = program.call_for_one("aten::lt.Scalar", {of(shifted), number(0)});
  const ValueId high = program.call_for_one("aten::ge.Scalar", {of(shifted), number(lookup.end - lookup.begin)});
  ValueId others = program.call_for_one("aten::logical_or", {of(low), of(high)});
  if (ignored) {
    const ValueId skipped = program.call_for_one("aten::eq.Scalar", {of(indices), number(*ignored)});
    others = program.call_for_one("aten::logical_or", {of(others), of(skipped)});
  }
  const ValueId local = program.call_for_one("aten::masked_fill.Scalar", {of(shifted), of(others), number(instead)});
  return {local, others};
}

std::vector<Argument> rows_of(LocalProgram& program, ValueId tensor, ValueId others) {
  const ValueId rows = program.call_for_one("aten::unsqueeze", {Argument::of_value(others), Argument::of_int(-1)});
  return {Argument::of_value(tensor), Argument::of_value(rows), Argument::of_int(0)};
}

ValueId zero_rows(LocalProgram& program, ValueId tensor, ValueId others) {
  return program.only_result(
      program.append(program.emitter.target("aten::masked_fill.Scalar"), rows_of(program, tensor, others)));
}

// A step moves one factor of a dimension: the pieces of the axis. If all factors before it are 1, the pieces are
// contiguous blocks, which a collective sends or receives in place. Otherwise one clone moves the factor to the front
// first, or back into its position afterwards.
//
// all_gather S(1) of [4, 6] over 2: [4, 3] -> all_gather [8, 3] -> view [2, 4, 3] -> permute [4, 2, 3] -> clone [4, 6]

static std::vector<int64_t> sizes_of(const Graph& graph, ValueId value) {
  const auto sizes = graph.sizes(value);
  return {sizes.begin(), sizes.end()};
}

// Splits dimension `dim` of `sizes` into factors: stretches, pieces, and the size of a piece.
static std::vector<int64_t> split(std::span<const int64_t> sizes, size_t dim, int64_t stretches, int64_t pieces) {
  std::vector<int64_t> factors(sizes.begin(), sizes.end());
  const int64_t rest = factors[dim] / (stretches * pieces);
  factors[dim] = stretches;
  factors.insert(factors.begin() + static_cast<int64_t>(dim) + 1, {pieces, rest});
  return factors;
}

static std::vector<int64_t> without(std::span<const int64_t> factors, size_t position) {
  std::vector<int64_t> rest(factors.begin(), factors.end());
  rest.erase(rest.begin() + static_cast<int64_t>(position));
  return rest;
}

// Returns c10d's reduction for a partial tensor. A mean is a sum followed by a division.
static std::string_view reduction(PartialOp op) { return to_string(op == PartialOp::kAverage ? PartialOp::kSum : op); }

Argument Redistributor::group(size_t axis) {
  const MeshAxis& mesh_axis = mesh_.axes[axis];
  if (described_.insert(axis).second) {
    const Argument arguments[] = {made_.string_argument(mesh_axis.name), Argument::of_int(mesh_axis.size),
                                  Argument::of_int(mesh_.coordinate(rank_, axis)),
                                  made_.int_list(mesh_.ranks_along(axis, rank_)),
                                  made_.string_argument(mesh_axis.name)};
    program_.append(made_.intern_target(process_group_target()), arguments);
  }
  return made_.string_argument(mesh_axis.name);
}

ValueId Redistributor::to_front(ValueId source, std::span<const int64_t> factors, size_t position) {
  if (product(factors.first(position)) == 1) return program_.contiguous(source);
  std::vector<int64_t> order(factors.size());
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + static_cast<int64_t>(position),
              order.begin() + static_cast<int64_t>(position) + 1);
  return program_.contiguous_clone(program_.permute(program_.view(source, factors), order));
}

ValueId Redistributor::from_front(ValueId source, std::span<const int64_t> factors, size_t position) {
  if (product(factors.first(position)) == 1) return source;
  std::vector<int64_t> front = without(factors, position);
  front.insert(front.begin(), factors[position]);
  std::vector<int64_t> order(factors.size());
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + 1, order.begin() + static_cast<int64_t>(position) + 1);
  return program_.contiguous_clone(program_.permute(program_.view(source, front), order));
}

ValueId Redistributor::slice(ValueId source, std::span<const int64_t> sizes, const Layout& after, size_t axis) {
  const size_t dim = after[axis].dim;
  const int64_t mine = mesh_.coordinate(rank_, axis);
  const std::vector<int64_t> local = *local_sizes(sizes, after, mesh_);
  const int64_t outer = stretches(after, axis, mesh_);
  const auto number = [](int64_t value) { return Argument::of_int(value); };
  if (outer == 1) {
    return program_.contiguous_clone(program_.call_for_one(
        "aten::slice.Tensor", {Argument::of_value(source), number(after[axis].dim), number(mine * local[dim]),
                               number((mine + 1) * local[dim]), number(1)}));
  }
  const ValueId factored = program_.view(source, split(sizes_of(made_, source), dim, outer, mesh_.axes[axis].size));
  return program_.view(
      program_.contiguous_clone(program_.call_for_one(
          "aten::select.int", {Argument::of_value(factored), number(after[axis].dim + 1), number(mine)})),
      local);
}

ValueId Redistributor::all_gather(ValueId source, std::span<const int64_t> sizes, const Layout& before, size_t axis) {
  const size_t dim = before[axis].dim;
  const int64_t pieces = mesh_.axes[axis].size;
  std::vector<int64_t> gathered = sizes_of(made_, source);
  std::vector<int64_t> whole = gathered;
  whole[dim] *= pieces;
  gathered[0] *= pieces;
  const Argument name = group(axis);
  const ValueId pieces_in_front =
      program_.collective("_c10d_functional::all_gather_into_tensor",
                          {Argument::of_value(program_.contiguous(source)), Argument::of_int(pieces), name}, gathered);
  const std::vector<int64_t> factors = split(whole, dim, stretches(before, axis, mesh_), pieces);
  return program_.view(from_front(pieces_in_front, factors, dim + 1), whole);
}

ValueId Redistributor::finished(ValueId reduced, PartialOp op, size_t axis) {
  if (op != PartialOp::kAverage) return reduced;
  return program_.call_for_one("aten::div.Tensor",
                               {Argument::of_value(reduced), Argument::of_int(mesh_.axes[axis].size)});
}

ValueId Redistributor::all_reduce(ValueId source, PartialOp op, size_t axis) {
  const Argument name = group(axis);
  const ValueId reduced =
      program_.collective("_c10d_functional::all_reduce",
                          {Argument::of_value(program_.contiguous(source)), made_.string_argument(reduction(op)), name},
                          sizes_of(made_, source));
  return finished(reduced, op, axis);
}

ValueId Redistributor::reduce_scatter(ValueId source, std::span<const int64_t> sizes, PartialOp op, const Layout& after,
                                      size_t axis) {
  const size_t dim = after[axis].dim;
  const int64_t pieces = mesh_.axes[axis].size;
  const std::vector<int64_t> local = *local_sizes(sizes, after, mesh_);
  const std::vector<int64_t> factors = split(sizes_of(made_, source), dim, stretches(after, axis, mesh_), pieces);
  std::vector<int64_t> scattered = local;
  scattered[0] *= pieces;
  const Argument name = group(axis);
  const ValueId pieces_in_front = program_.view(to_front(source, factors, dim + 1), scattered);
  const ValueId reduced = program_.collective(
      "_c10d_functional::reduce_scatter_tensor",
      {Argument::of_value(pieces_in_front), made_.string_argument(reduction(op)), Argument::of_int(pieces), name},
      local);
  return finished(reduced, op, axis);
}

ValueId Redistributor::all_to_all(ValueId source, std::span<const int64_t> sizes, const Layout& before,
                                  const RedistributionStep& step) {
  const size_t axis = step.axis;
  const int64_t devices = mesh_.axes[axis].size;
  const size_t old_dim = before[axis].dim;
  const size_t new_dim = step.after[axis].dim;
  const int64_t old_outer = stretches(before, axis, mesh_);
  const int64_t new_outer = stretches(step.after, axis, mesh_);
  // The dimensions before sharding by this axis, including the sharded factor and the one to be sharded.
  std::vector<int64_t> factors = sizes_of(made_, source);
  factors[old_dim] *= devices;
  size_t gone = 0;    // position of the sharded factor
  size_t coming = 0;  // position of the factor to be sharded
  if (old_dim != new_dim) {
    const bool old_first = old_dim < new_dim;
    factors = old_first ? split(split(factors, new_dim, new_outer, devices), old_dim, old_outer, devices)
                        : split(split(factors, old_dim, old_outer, devices), new_dim, new_outer, devices);
    gone = old_dim + 1 + (old_first ? 0 : 2);
    coming = new_dim + 1 + (old_first ? 2 : 0);
  } else if (new_outer % (old_outer * devices) == 0) {
    const int64_t between = new_outer / (old_outer * devices);
    factors = split(split(factors, old_dim, new_outer, devices), old_dim, old_outer, devices);
    TORCH_INTERNAL_ASSERT(factors[old_dim + 2] == between);
    gone = old_dim + 1;
    coming = old_dim + 3;
  } else if (old_outer % (new_outer * devices) == 0) {
    factors = split(split(factors, old_dim, old_outer, devices), old_dim, new_outer, devices);
    coming = old_dim + 1;
    gone = old_dim + 3;
  } else {
    // The new pieces are not equal parts of the old ones.
    return slice(all_gather(source, sizes, before, axis), sizes, step.after, axis);
  }
  const std::vector<int64_t> held = without(factors, gone);
  const size_t position = coming - (gone < coming ? 1 : 0);
  const std::vector<int64_t> exchanged = {devices, product(held) / devices};
  const std::vector<int64_t> ones(static_cast<size_t>(devices), 1);
  const Argument name = group(axis);
  const ValueId sent = program_.view(to_front(source, held, position), exchanged);
  const ValueId received =
      program_.collective("_c10d_functional::all_to_all_single",
                          {Argument::of_value(sent), made_.int_list(ones), made_.int_list(ones), name}, exchanged);
  const std::vector<int64_t> kept = without(factors, coming);
  return program_.view(from_front(received, kept, gone - (coming < gone ? 1 : 0)),
                       *local_sizes(sizes, step.after, mesh_));
}

ValueId Redistributor::step(ValueId source, std::span<const int64_t> sizes, const Layout& before,
                            const RedistributionStep& step) {
  if (mesh_.axes[step.axis].size == 1) return source;
  switch (step.kind) {
    case RedistributionKind::kSlice:
      return slice(source, sizes, step.after, step.axis);
    case RedistributionKind::kAllGather:
      return all_gather(source, sizes, before, step.axis);
    case RedistributionKind::kAllReduce:
      return all_reduce(source, step.from.op, step.axis);
    case RedistributionKind::kReduceScatter:
      return reduce_scatter(source, sizes, step.from.op, step.after, step.axis);
    case RedistributionKind::kAllToAll:
      return all_to_all(source, sizes, before, step);
  }
  return source;
}

ValueId Redistributor::redistribute(ValueId source, std::span<const int64_t> sizes, const Layout& from,
                                    const Redistribution& way) {
  Layout before = from;
  for (const RedistributionStep& one : way.steps) {
    source = step(source, sizes, before, one);
    before = one.after;
  }
  return source;
}

}  // namespace shadowgraph
