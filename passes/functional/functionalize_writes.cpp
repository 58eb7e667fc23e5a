// Functionalizes nodes that write. There are three ways, from the cheapest on:
//
//     copy_(%1, %2)           from contents alone: %1 is now %2, and the node goes
//     add_(%1, %2)            by the functional operator: %3 = add(%1, %2), and %1 is now %3
//     some::op_(%1)           by a functional call: copy the storage, run the very operator there
//
// A way is taken only if it gives the same bits. A fresh result may lie in memory in another way than the tensor that
// it replaces, and some kernels give other bits for other strides. The last way always works and costs the copy.
#include <c10/util/strides.h>

#include <algorithm>
#include <utility>

#include "core/calls/functional_call.h"
#include "ir/operators/operator_facts.h"
#include "passes/functional/functionalizer.h"
#include "passes/functional/layout_independence.h"

namespace shadowgraph {

// Pairs every written argument with the result that aliases it, since `out=` and resize_ may leave another geometry
// than they were given.
std::vector<Functionalizer::Written> Functionalizer::written_by(NodeId n) {
  const OperatorFacts& facts = read_.facts(n);
  const auto arguments = read_.arguments(n);
  const auto results = read_.results(n);
  std::vector<Written> written;
  for (const uint16_t position : facts.written) {
    if (position >= arguments.size()) continue;
    const size_t first = written.size();
    read_.for_each_value(arguments.subspan(position, 1), [&](ValueId v) { written.push_back({position, v, v}); });
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      if (alias.argument != position || alias.result >= results.size()) continue;
      size_t i = first;
      read_.for_each_value(results.subspan(alias.result, 1), [&](ValueId v) {
        if (i < written.size() && read_.value(v).storage == read_.value(written[i].before).storage) {
          written[i++].after = v;
        }
      });
    }
  }
  return written;
}

// Says whether a write changes only what a tensor looks at. Such nodes vanish, and later reads take the new view.
bool Functionalizer::metadata(NodeId n, std::span<const Written> written) {
  const OperatorFacts& facts = read_.facts(n);
  if (facts.takes_storage) return true;
  const std::string& name = read_.target(n).signature().name;
  if (name == "aten::as_strided_" || name == "aten::requires_grad_") return true;
  if (facts.resizes) {
    return std::none_of(written.begin(), written.end(), [&](const Written& w) { return outgrows(w); });
  }
  const FunctionalForm* form = functional_form(read_.target(n));
  if (form == nullptr || !form->target.facts().is_view) return false;
  read_.for_each_output(n, [&](ValueId v) { images_.current(v); });
  return true;
}

// Tries ways from the cheapest to the one that always works: contents alone, the functional operator, a functional
// call.
void Functionalizer::write(NodeId n) {
  const std::vector<Written> written = written_by(n);
  if (written.empty()) return copy(n);
  for (const Written& w : written) {
    const Value& value = read_.value(w.before);
    if (!value.storage.valid() || value.layout != c10::Layout::Strided) {
      fail(n, "writes a tensor that has no strides; only strided tensors can be functionalized");
    }
  }
  if (metadata(n, written)) return;
  ++result_.writes;
  // Notes how far writes reach in each storage; the epilogue copies no more than that.
  for (const Written& w : written) {
    Extent& extent = writes_[read_.value(w.before).storage.index];
    const auto [begin, end] = view_of(read_, w.after).bytes();
    extent.last = n;
    if (begin == end) continue;
    if (!extent.only.valid()) {
      extent = {begin, end, w.after, false, n};
    } else {
      extent.begin = std::min(extent.begin, begin);
      extent.end = std::max(extent.end, end);
      if (!same_geometry(view_of(read_, extent.only), view_of(read_, w.after))) extent.several = true;
    }
  }
  prepare_saved(n);
  if (written.size() == 1 && write_contents(n, written.front())) return;
  // aten::resize gives a tensor of that size; what matters here is the storage, which keeps what it holds.
  const bool resizes = read_.facts(n).resizes;
  const FunctionalForm* form = functional_form(read_.target(n));
  if (form != nullptr && !resizes && !form->target.facts().is_view && may_reorder(n, *form, written) &&
      write_functionally(n, *form, written)) {
    return;
  }
  call_functionally(n, written);
}

// Says whether a copy_ would read a lazy negative of another dtype. It converts first and negates then, so that
// imaginary parts become -0. A clone, which other operators read, negates first.
bool Functionalizer::copies_lazily(NodeId n) const {
  if (read_.target(n).name() != "aten::copy_") return false;
  const auto arguments = read_.arguments(n);
  if (arguments[0].kind != ArgumentKind::kValue || arguments[1].kind != ArgumentKind::kValue) return false;
  const ValueId source = arguments[1].ref.value;
  return images_.has_bits(source) && read_.value(source).dtype != read_.value(arguments[0].ref.value).dtype;
}

// From here on the storage's image has this content where the write was.
void Functionalizer::commit(const Written& written, ValueId content) {
  result_.scatters += images_.write(written.after, content);
}

// copy_ and the in-place forms convert to the type and device of what they write; functional ones do not.
ValueId Functionalizer::converted(ValueId content, c10::ScalarType dtype, c10::Device device,
                                  const Argument& non_blocking) {
  const Value& value = made_.value(content);
  if (value.dtype == dtype && value.device() == device) return content;
  const auto same_device = value.device() == device;
  return emitter_.call(
      emitter_.target("aten::_to_copy"),
      {Argument::of_value(content),
       value.dtype == dtype ? Argument::none() : Argument::of_int(static_cast<int64_t>(dtype)), Argument::none(),
       same_device ? Argument::none() : Argument::of_device(device), Argument::none(), non_blocking, Argument::none()});
}

// Handles copy_, fill_ and zero_, whose new content needs nothing of the old.
//
//     copy_(%1, %2)      %1 is now clone(%2), or %2 converted
//     zero_(%1)          %1 is now full(sizes, 0)
bool Functionalizer::write_contents(NodeId n, const Written& written) {
  const std::string& name = read_.target(n).name();
  const bool is_copy = name == "aten::copy_";
  const bool is_fill = name == "aten::fill_.Scalar" || name == "aten::fill_.Tensor" || name == "aten::zero_";
  // A view that visits an element twice has no single new content.
  if ((!is_copy && !is_fill) || internal_overlap(view_of(read_, written.after)) != Overlap::kNone) return false;
  if (copies_lazily(n)) return false;
  const auto arguments = read_.arguments(n);
  const Argument source = arguments.size() > 1 ? arguments[1] : Argument::of_int(0);
  const Value& value = read_.value(written.after);
  const auto sizes = read_.sizes(written.after);
  const NodeId before = made_.last();
  ValueId content;
  if (source.kind == ArgumentKind::kValue && read_.value(source.ref.value).kind == ValueKind::kTensor) {
    if (!read_.value(source.ref.value).storage.valid()) return false;
    const Argument blocking = is_copy ? arguments[2] : Argument::of_bool(false);
    ValueId plain = images_.current(source.ref.value);
    // Whatever is made of it next, views aside, would take it for what is stored.
    const bool lazy = images_.has_bits(source.ref.value);
    if (lazy) {
      plain = emitter_.call(emitter_.target("aten::clone"), {Argument::of_value(plain), Argument::of_int(0)});
    }
    const ValueId typed = converted(plain, value.dtype, value.device(), blocking);
    content = emitter_.expand(typed, sizes);
    // A fresh tensor must be laid out like the one it replaces, unless it is scattered anyway: later kernels get the
    // strides that they had.
    if (images_.replaces(written.after)) {
      const StridedView wanted = view_of(read_, written.after);
      StridedView have = view_of(made_, content);
      have.offset = wanted.offset;
      const bool fresh = (typed != plain || lazy) && content == typed;
      if (!fresh || !same_elements(have, wanted)) {
        const bool keep = same_elements(have, wanted) && is_dense(have);
        content = emitter_.call(emitter_.target("aten::clone"),
                                {Argument::of_value(content), keep ? Argument::none() : Argument::of_int(0)});
      }
    }
  } else if (source.kind == ArgumentKind::kConstant || source.kind == ArgumentKind::kNone) {
    return false;
  } else {
    const Argument number = emitter_.mapped(source, [&](ValueId v) { return images_.current(v); });
    TensorGeometry geometry;
    geometry.dtype = value.dtype;
    geometry.device = value.device();
    geometry.sizes.assign(sizes.begin(), sizes.end());
    geometry.strides = c10::contiguous_strides(sizes);
    content = emitter_.call(emitter_.target("aten::full"),
                            {made_.int_list(sizes), number, Argument::of_int(static_cast<int64_t>(value.dtype)),
                             Argument::none(), Argument::of_device(value.device()), Argument::none()},
                            geometry, StorageId());
  }
  commit(written, content);
  // The last node made stands for the write: backward nodes link to it.
  if (made_.last() != before) carried_.node(n, made_.last());
  keep_saved(n, made_.last());
  return true;
}

// Says whether computing all results from what was there before gives what computing them in place gives. An operand
// that lies across what is written would be read after a part of the write. The same geometry is no danger where each
// element needs itself alone.
bool Functionalizer::may_reorder(NodeId n, const FunctionalForm& form, std::span<const Written> written) const {
  if (copies_lazily(n)) return false;
  std::vector<StorageId> storages;
  for (const Written& w : written) {
    const StorageId storage = read_.value(w.before).storage;
    if (std::find(storages.begin(), storages.end(), storage) != storages.end()) return false;
    storages.push_back(storage);
    if (outgrows(w) && !images_.replaces(w.after)) return false;
    if (internal_overlap(view_of(read_, w.after)) != Overlap::kNone) return false;
    if (images_.has_bits(w.after) && !(form.target.facts().pointwise && is_layout_independent(read_, n))) return false;
  }
  if (storages.size() > 1) std::sort(storages.begin(), storages.end());
  bool good = true;
  const auto arguments = read_.arguments(n);
  for (uint16_t i = 0; i < arguments.size(); ++i) {
    const bool is_written =
        std::any_of(written.begin(), written.end(), [&](const Written& w) { return w.position == i; });
    if (is_written) continue;
    read_.for_each_value(arguments.subspan(i, 1), [&](ValueId v) {
      const Value& value = read_.value(v);
      if (!value.storage.valid() || !std::binary_search(storages.begin(), storages.end(), value.storage)) return;
      const ValueId w = written.front().after;
      good = good && form.target.facts().pointwise && written.size() == 1 && value.dtype == read_.value(w).dtype &&
             images_.has_bits(v) == images_.has_bits(w) && same_geometry(view_of(read_, v), view_of(read_, w));
    });
  }
  return good;
}

// Calls the functional operator on fake tensors first: only its results say how they are laid out. If they do not fit,
// the node is erased again.
bool Functionalizer::write_functionally(NodeId n, const FunctionalForm& form, std::span<const Written> in_any_order) {
  std::vector<Written> written;  // as the form gives them
  for (const uint16_t position : form.written) {
    std::copy_if(in_any_order.begin(), in_any_order.end(), std::back_inserter(written),
                 [&](const Written& w) { return w.position == position; });
  }
  const auto arguments = read_.arguments(n);
  std::vector<Argument> taken;
  for (const uint16_t position : form.arguments) {
    taken.push_back(emitter_.mapped(arguments[position], [&](ValueId v) { return images_.current(v); }));
  }
  const NodeId made = emitter_.append(carried_.target(form.target), taken);
  const auto give_up = [&] {
    made_.erase(made);
    return false;
  };
  if (!emitter_.find_results(made)) return give_up();
  const auto results = made_.results(made);
  std::vector<ValueId> contents;
  made_.for_each_value(results.subspan(form.fresh.size()), [&](ValueId v) { contents.push_back(v); });
  if (contents.size() != written.size()) return give_up();
  for (size_t i = 0; i < written.size(); ++i) {
    const StridedView have = view_of(made_, contents[i]);
    const StridedView wanted = view_of(read_, written[i].after);
    const bool same_sizes = std::equal(have.sizes.begin(), have.sizes.end(), wanted.sizes.begin(), wanted.sizes.end());
    const bool same_layout =
        same_sizes && same_elements({have.sizes, have.strides, 0, 1}, {wanted.sizes, wanted.strides, 0, 1});
    const bool same_dtype = made_.value(contents[i]).dtype == read_.value(written[i].after).dtype;
    const bool same_device = made_.value(contents[i]).device() == read_.value(written[i].after).device();
    if (!same_sizes || !same_device) return give_up();
    if (!same_layout || !same_dtype) {
      // Another layout is harmless only where no sum or draw depends on the order of elements.
      const OperatorFacts& facts = form.target.facts();
      if (!facts.pointwise || facts.random || !is_layout_independent(read_, n)) return give_up();
    }
  }
  // Results that are no written argument: as the functional operator gives them, which is as they were.
  for (size_t r = 0; r < form.fresh.size(); ++r) {
    const Argument& old = read_.results(n)[form.fresh[r]];
    if (old.kind == ArgumentKind::kValue && results[r].kind == ArgumentKind::kValue) {
      images_.define(old.ref.value, results[r].ref.value);
    } else if (old.kind != ArgumentKind::kNone || results[r].kind != ArgumentKind::kNone) {
      return give_up();
    }
  }
  carried_.node(n, made);
  for (size_t i = 0; i < written.size(); ++i) {
    const Value& value = read_.value(written[i].after);
    commit(written[i], converted(contents[i], value.dtype, value.device(), Argument::of_bool(false)));
  }
  keep_saved(n, made);
  return true;
}

// The last way: run the very operator on a copy of the storage. It always works and costs the copy.
void Functionalizer::call_functionally(NodeId n, std::span<const Written> written) {
  const auto target = functional_call_of(read_.target(n));
  if (!target) {
    fail(n,
         "writes its arguments, and there is no functional form of it; register one operator that returns what it "
         "writes, named without the last '_' or with '_functional'");
  }
  ++result_.functional_calls;
  const std::vector<Argument> arguments = current_arguments(n);
  const NodeId made = emitter_.append(carried_.target(*target), arguments);
  const OperatorFacts& facts = read_.facts(n);
  std::vector<Argument> results;
  for (size_t r = 0; r < read_.results(n).size(); ++r) {
    const bool aliases =
        std::any_of(facts.aliases.begin(), facts.aliases.end(), [&](const auto& a) { return a.result == r; });
    if (!aliases) results.push_back(result_like(read_.results(n)[r], made));
  }
  // Each written storage has one new storage, whole: tensors that shared one still do.
  std::vector<std::pair<StorageId, StorageId>> storages;
  std::vector<std::pair<StorageId, ValueId>> wholes;
  size_t next = 0;
  for (const uint16_t position : facts.written) {
    const Argument& argument = read_.arguments(n)[position];
    const auto written_value = [&]() -> Argument {
      const Written& w = written[next++];
      const StorageId storage = read_.value(w.before).storage;
      TensorGeometry geometry = TensorGeometry::of(read_, w.after);
      auto known = std::find_if(storages.begin(), storages.end(), [&](const auto& s) { return s.first == storage; });
      if (known == storages.end()) {
        const int64_t bytes = made_.storage(made_.value(images_.base(storage)).storage).bytes;
        storages.emplace_back(storage, emitter_.add_storage(made, geometry, bytes));
        known = storages.end() - 1;
      }
      TensorMeta spec;
      spec.dtype = geometry.dtype;
      spec.sizes = {geometry.sizes.data(), geometry.sizes.size()};
      spec.strides = {geometry.strides.data(), geometry.strides.size()};
      spec.offset = geometry.offset;
      spec.device = geometry.device;
      spec.storage = known->second;
      const ValueId value = made_.new_tensor(made, spec);
      wholes.emplace_back(storage, value);
      return Argument::of_value(value);
    };
    if (argument.kind == ArgumentKind::kValue) {
      results.push_back(written_value());
    } else if (argument.kind == ArgumentKind::kList) {
      std::vector<Argument> elements;
      for (const Argument& element : read_.list(argument)) {
        elements.push_back(element.kind == ArgumentKind::kValue ? written_value() : Argument::none());
      }
      results.push_back(made_.make_list(elements));
    } else {
      results.push_back(Argument::none());
    }
  }
  made_.set_results(made, results);
  carried_.node(n, made);
  for (const auto& [storage, whole] : wholes) {
    images_.replace_grown(storage, whole, view_of(made_, whole).bytes().second);
  }
  keep_saved(n, made);
}

}  // namespace shadowgraph
