// A shape rule with the arguments that its operator has in this libtorch. A later version may append some with defaults,
// and a rule must have the operator's very signature.
//
//     registry.add("aten::x", &WithLaterArguments<at::_ops::x, rule>::run);    rule(a, b), and x(a, b, c=None) by now
//
// Replaces: a rule for each version.
// Since:    2.14, `seqused_k` and `block_table` of _cudnn_attention_forward, which no shape depends on.
// Check:    AttentionRules.EveryRuleOfTheProcessFitsItsOperator, and OperatorInfo when the operator is first met.
#pragma once

#include <c10/core/SymInt.h>

#include <tuple>
#include <type_traits>
#include <utility>

namespace shadowgraph {

template <class Operator, auto rule, class Signature = typename Operator::schema>
struct WithLaterArguments;
template <class Operator, auto rule, class Result, class... Arguments>
struct WithLaterArguments<Operator, rule, Result(Arguments...)> {
  // Rules take numbers where an operator takes symbolic ones.
  template <class T>
  using Plain = std::conditional_t<std::is_same_v<T, c10::SymInt>, int64_t, T>;

  template <class... Known>
  static auto call(auto(*function)(Known...), std::tuple<Plain<Arguments>...>&& given) {
    return [&]<size_t... i>(std::index_sequence<i...>) { return function(std::forward<Known>(std::get<i>(given))...); }
    (std::index_sequence_for<Known...>());
  }
  static auto run(Plain<Arguments>... arguments) {
    return call(rule, std::tuple<Plain<Arguments>...>(std::forward<Plain<Arguments>>(arguments)...));
  }
};

}  // namespace shadowgraph
