// Which operator computes, without writing, what an operator leaves in the arguments that it writes; and the other way.
//
//     aten::add_.Tensor(self!, other)            aten::add.Tensor(self, other) -> self
//     aten::mm.out(self, mat2, out!)             aten::mm(self, mat2) -> out
//     aten::_fused_adamw_(self![], ...)          aten::_fused_adamw(self[], ...) -> (self[], ...)
//     aten::_native_batch_norm_legit(...)        aten::_native_batch_norm_legit_functional(...) -> (results..., mean, var)
//     aten::t_(self!)                            aten::t(self), a view
//
// Found by name and schema among the operators of this process: the name without its last underscore or with
// "_functional", any overload that takes the same arguments (without the `out=` ones), writes nothing and returns one
// tensor or list more for each written argument. A few that are named otherwise are in a table.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

struct FunctionalForm {
  Target target;                    // what to call instead
  std::vector<uint16_t> arguments;  // its arguments, by position in the original
  std::vector<uint16_t> fresh;      // original results that are no written argument: the first results of `target`
  std::vector<uint16_t> written;    // written arguments (original positions): the results after those
  bool pointwise = false;           // each element is computed alone
  bool random = false;
  bool is_view = false;  // aten::t for aten::t_
};

// nullopt if there is none.
std::optional<FunctionalForm> functional_form_of(const Target& target);
// The in-place operator with the same arguments whose functional form `target` is; nullopt if none.
std::optional<Target> in_place_form_of(const Target& target);

// One answer per target of a graph.
template <class Form, std::optional<Form> (*find)(const Target&)>
class FormCache {
 public:
  const Form* of(const Graph& graph, TargetId id) {
    if (id.index >= cache_.size()) cache_.resize(id.index + 1);
    auto& entry = cache_[id.index];
    if (!entry) entry = std::make_unique<const std::optional<Form>>(find(graph.target(id)));
    return entry->has_value() ? &**entry : nullptr;
  }

 private:
  std::vector<std::unique_ptr<const std::optional<Form>>> cache_;
};
using FunctionalForms = FormCache<FunctionalForm, functional_form_of>;
using InPlaceForms = FormCache<Target, in_place_form_of>;

}  // namespace shadowgraph
