// The check of ir/operators/operator_exceptions.cpp: operators run on real tensors, contents and storages compared before and
// after with what the facts say.
#include "ir/operators/operator_facts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

using c10::IValue;

OperatorFacts facts_named(const char* name, const char* overload = "") {
  return facts_of(
      Target(TargetKind::kOperator, c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema()));
}

std::vector<at::Tensor> tensors_in(const IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? std::vector{value.toTensor()} : std::vector<at::Tensor>();
  std::vector<at::Tensor> found;
  if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      for (const at::Tensor& t : tensors_in(element)) found.push_back(t);
    }
  }
  return found;
}

struct Observed {
  std::set<size_t> written;                     // argument positions
  std::set<std::pair<size_t, size_t>> aliases;  // result, argument
};

// Runs the operator. Missing arguments are the schema's defaults.
Observed observe(const c10::OperatorHandle& op, std::vector<IValue> arguments) {
  const auto& formals = op.schema().arguments();
  for (size_t i = arguments.size(); i < formals.size(); ++i) arguments.push_back(formals[i].default_value().value());
  std::vector<std::vector<at::Tensor>> before;
  for (const IValue& argument : arguments) {
    before.emplace_back();
    for (const at::Tensor& t : tensors_in(argument)) before.back().push_back(t.clone());
  }
  std::vector<IValue> stack = arguments;
  op.callBoxed(stack);
  Observed result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto tensors = tensors_in(arguments[i]);
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (!at::equal(tensors[k], before[i][k])) result.written.insert(i);
      for (size_t r = 0; r < stack.size(); ++r) {
        for (const at::Tensor& out : tensors_in(stack[r])) {
          if (out.is_alias_of(tensors[k]) && out.nbytes() != 0) result.aliases.insert({r, i});
        }
      }
    }
  }
  return result;
}

// Compares what an operator does with what the facts say of it: facts may say more, never less; `exactly` what is written.
void expect_facts_hold(const char* name, const char* overload, std::vector<IValue> arguments, bool exactly = true) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  SCOPED_TRACE(toString(op.schema()));
  const OperatorFacts facts = facts_of(Target(TargetKind::kOperator, op.schema()));
  const Observed observed = observe(op, arguments);
  std::set<size_t> said(facts.written.begin(), facts.written.end());
  if (facts.write_condition >= 0 && !arguments.at(facts.write_condition).toBool()) said.clear();
  if (exactly) {
    EXPECT_EQ(observed.written, said);
  } else {
    EXPECT_TRUE(std::includes(said.begin(), said.end(), observed.written.begin(), observed.written.end()));
  }
  for (const auto& [result, argument] : observed.aliases) {
    EXPECT_TRUE(
        std::any_of(facts.aliases.begin(), facts.aliases.end(),
                    [&](const OperatorFacts::Alias& a) { return a.result == result && a.argument == argument; }))
        << "result " << result << " aliases argument " << argument;
  }
  for (const OperatorFacts::Alias& alias : facts.aliases) {
    if (!alias.always || tensors_in(arguments.at(alias.argument)).empty()) continue;
    EXPECT_TRUE(observed.aliases.contains({alias.result, alias.argument})) << "result " << alias.result << " is fresh";
  }
}

const IValue kNo;

TEST(IrOperatorFacts, BatchNormFamily) {
  const auto x = [] { return at::randn({4, 3, 5, 5}) + 2; };
  const auto ones = [] { return at::ones({3}); };
  const auto zeros = [] { return at::zeros({3}); };
  for (const bool training : {true, false}) {
    expect_facts_hold("aten::batch_norm", "", {x(), ones(), zeros(), zeros(), ones(), training, 0.1, 1e-5, false});
    expect_facts_hold("aten::native_batch_norm", "", {x(), ones(), zeros(), zeros(), ones(), training, 0.1, 1e-5});
    expect_facts_hold("aten::_native_batch_norm_legit", "",
                      {x(), ones(), zeros(), zeros(), ones(), training, 0.1, 1e-5});
    expect_facts_hold("aten::_batch_norm_impl_index", "",
                      {x(), ones(), zeros(), zeros(), ones(), training, 0.1, 1e-5, false});
    expect_facts_hold("aten::instance_norm", "", {x(), ones(), zeros(), zeros(), ones(), training, 0.1, 1e-5, false});
  }
  expect_facts_hold("aten::_native_batch_norm_legit", "no_stats", {x(), ones(), zeros(), true, 0.1, 1e-5});
  expect_facts_hold("aten::_batch_norm_with_update", "", {x(), ones(), zeros(), zeros(), ones(), 0.1, 1e-5});
  expect_facts_hold("aten::_batch_norm_no_update", "", {x(), ones(), zeros(), zeros(), ones(), 0.1, 1e-5});
  expect_facts_hold("aten::batch_norm_update_stats", "", {x(), zeros(), ones(), 0.1});
  expect_facts_hold("aten::native_layer_norm", "", {x(), std::vector<int64_t>{5, 5}, kNo, kNo, 1e-5});
}

TEST(IrOperatorFacts, NoiseAndObservers) {
  const at::Scalar lower(0.1), upper(0.3);
  for (const bool training : {true, false}) {
    expect_facts_hold("aten::rrelu_with_noise", "", {-at::rand({8}), at::zeros({8}), lower, upper, training, kNo},
                      training);
    expect_facts_hold("aten::rrelu_with_noise_", "", {-at::rand({8}), at::zeros({8}), lower, upper, training, kNo},
                      false);
  }
  const auto observer = [&](const char* name) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    expect_facts_hold(name, "",
                      {at::randn({6}), at::ones({1}, at::kLong), at::ones({1}, at::kLong), at::zeros({1}),
                       at::zeros({1}), at::ones({1}), at::full({1}, 3, at::kInt), 0.01, 0, 255, -1, false, false});
    EXPECT_EQ(facts_of(Target(TargetKind::kOperator, op.schema())).written.size(), 4U);
  };
  observer("aten::_fused_moving_avg_obs_fq_helper");
  observer("aten::fused_moving_avg_obs_fake_quant");
  expect_facts_hold("aten::embedding_renorm_", "", {at::randn({4, 3}) * 10, at::zeros({2}, at::kLong), 1.0, 2.0});
}

TEST(IrOperatorFacts, Aliases) {
  const auto x = [] { return at::arange(12, at::kFloat).reshape({3, 4}).clone(); };
  const std::vector<int64_t> flat{12};
  expect_facts_hold("aten::_unsafe_view", "", {x(), flat});
  expect_facts_hold("aten::unsafe_split", "Tensor", {x(), 2});
  expect_facts_hold("aten::unsafe_split_with_sizes", "", {x(), std::vector<int64_t>{1, 2}});
  expect_facts_hold("aten::unsafe_chunk", "", {x(), 2});
  expect_facts_hold("aten::view", "", {x(), flat});
  expect_facts_hold("aten::reshape", "", {x(), flat});
  expect_facts_hold("aten::reshape", "", {x().t(), flat});  // copies
  expect_facts_hold("aten::contiguous", "", {x()});
  expect_facts_hold("aten::contiguous", "", {x().t()});
  expect_facts_hold("aten::flatten", "using_ints", {x().t()});
  expect_facts_hold("aten::ravel", "", {x().t()});
  expect_facts_hold("aten::to", "dtype", {x(), at::kDouble});
  expect_facts_hold("aten::to", "dtype", {x(), at::kFloat});
  expect_facts_hold("aten::t", "", {x()});
  expect_facts_hold("aten::detach", "", {x()});
  expect_facts_hold("aten::alias", "", {x()});
  expect_facts_hold("aten::as_strided", "", {x(), flat, std::vector<int64_t>{1}});
  expect_facts_hold("aten::split", "Tensor", {x(), 2});
  expect_facts_hold("aten::unbind", "int", {x()});
  expect_facts_hold("aten::dropout", "", {x(), 0.5, false});
  expect_facts_hold("aten::feature_dropout", "", {x(), 0.5, false});
  expect_facts_hold("aten::alpha_dropout", "", {x(), 0.5, false});
  expect_facts_hold("aten::expand", "", {x(), std::vector<int64_t>{2, 3, 4}});
  expect_facts_hold("aten::lift", "", {x()});
  expect_facts_hold("aten::lift_fresh", "", {x()});
  expect_facts_hold("aten::clone", "", {x()});
  expect_facts_hold("aten::real", "", {x()});
  expect_facts_hold("aten::conj", "", {x()});
  expect_facts_hold("aten::squeeze", "", {x()});
  expect_facts_hold("aten::broadcast_tensors", "", {std::vector<at::Tensor>{x(), x()}});
  expect_facts_hold("aten::meshgrid", "", {std::vector<at::Tensor>{at::ones({2}), at::ones({3})}});
  expect_facts_hold("aten::atleast_2d", "Sequence", {std::vector<at::Tensor>{at::ones({2}), at::ones({3})}});
}

TEST(IrOperatorFacts, InPlaceOutAndForeach) {
  const auto x = [] { return at::rand({3}); };
  expect_facts_hold("aten::add_", "Tensor", {x(), x(), at::Scalar(1)});
  expect_facts_hold("aten::add", "out", {x(), x(), at::Scalar(1), x()});
  expect_facts_hold("aten::_foreach_add_", "Scalar", {std::vector<at::Tensor>{x(), x()}, at::Scalar(1)});
  expect_facts_hold("aten::copy_", "", {x(), x()});
  expect_facts_hold("aten::zero_", "", {x()});
  expect_facts_hold("aten::set_", "source_Tensor", {x(), x()});
  EXPECT_TRUE(facts_named("aten::add_", "Tensor").is_in_place);
  EXPECT_FALSE(facts_named("aten::add_", "Tensor").is_out_variant);
  EXPECT_TRUE(facts_named("aten::add", "out").is_out_variant);
  EXPECT_FALSE(facts_named("aten::add", "out").is_in_place);
  EXPECT_TRUE(facts_named("aten::view").is_view);
  EXPECT_FALSE(facts_named("aten::add", "Tensor").is_view);
  EXPECT_FALSE(facts_named("aten::t_").is_view);
}

TEST(IrOperatorFacts, RandomHostReadsAndUnknown) {
  for (const char* name : {"aten::native_dropout", "aten::rand", "aten::bernoulli", "aten::rrelu_with_noise"}) {
    EXPECT_TRUE(facts_named(name).random) << name;
  }
  EXPECT_TRUE(facts_named("aten::normal_").random);
  EXPECT_FALSE(facts_named("aten::relu").random);
  for (const char* name :
       {"aten::item", "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::allclose"}) {
    EXPECT_TRUE(facts_named(name).host_read) << name;
  }
  EXPECT_FALSE(facts_named("aten::eq", "Tensor").host_read);
  EXPECT_FALSE(facts_named("aten::relu").unknown);
  EXPECT_TRUE(facts_of(Target(TargetKind::kFunction, "my::leaf(...) -> ...")).unknown);
  EXPECT_TRUE(facts_of(Target(TargetKind::kFunction, "my::leaf(Any x) -> Tensor")).unknown);
  EXPECT_FALSE(facts_of(Target(TargetKind::kFunction, "my::fused(Tensor(a!) x) -> Tensor(a!)")).unknown);
}

// A row that names an operator or argument that is not there does nothing, silently: it must not exist.
TEST(IrOperatorFacts, RowsNameOperatorsAndArgumentsThatExist) {
  std::vector<c10::OperatorHandle> all;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (auto op = c10::Dispatcher::singleton().findSchema(name)) all.push_back(*op);
  }
  for (const OperatorException& row : operator_exceptions()) {
    const auto matching = [&](const std::string& argument) {
      return std::any_of(all.begin(), all.end(), [&](const c10::OperatorHandle& op) {
        const auto& schema = op.schema();
        const std::string full = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
        if (schema.name() != row.name && full != row.name) return false;
        return argument.empty() || schema.argumentIndexWithName(argument).has_value();
      });
    };
    EXPECT_TRUE(matching("")) << row.name;
    std::string names(row.writes);
    for (const std::string_view more : {row.when, row.alias_of}) names += " " + std::string(more);
    std::istringstream stream(names);
    for (std::string argument; stream >> argument;) EXPECT_TRUE(matching(argument)) << row.name << " " << argument;
    EXPECT_FALSE(row.why.empty());
  }
  for (const std::string_view name : host_read_operators()) {
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const auto& op) { return op.schema().name() == name; }))
        << name;
  }
}

}  // namespace
}  // namespace shadowgraph
