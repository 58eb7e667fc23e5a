// Checks every fact in ir/operators/ against an actual run of the operator.
#include "ir/operators/operator_facts.h"

#include <torch/library.h>

#include "ir/operators/operator_forms.h"
#include "tests/ir/operator_calls.h"

namespace shadowgraph::operator_facts_test {
namespace {

using Ints = std::vector<int64_t>;

TEST_F(OperatorCalls, WriteAndAliasWhatTheFactsSay) {
  for_each_call([](const Call& call, const OperatorFacts& facts) {
    const Outcome run = run_call(call.name, call.arguments);
    std::set<size_t> said(facts.written.begin(), facts.written.end());
    if (facts.write_condition >= 0 && !run.arguments.at(facts.write_condition).toBool()) said.clear();
    if (call.exactly) {
      EXPECT_EQ(run.written, said);
    } else {
      EXPECT_TRUE(std::includes(said.begin(), said.end(), run.written.begin(), run.written.end()));
    }
    for (const auto& [result, argument] : run.aliases) {
      EXPECT_TRUE(
          std::any_of(facts.aliases.begin(), facts.aliases.end(),
                      [&](const OperatorFacts::Alias& a) { return a.result == result && a.argument == argument; }))
          << "result " << result << " aliases argument " << argument;
    }
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      if (!alias.always || tensors_in(run.arguments.at(alias.argument)).empty()) continue;
      EXPECT_TRUE(run.aliases.contains({alias.result, alias.argument})) << "result " << alias.result << " is fresh";
    }
    if (!facts.is_view) return;
    EXPECT_TRUE(run.written.empty());
    const bool always = std::all_of(facts.aliases.begin(), facts.aliases.end(), [](const auto& a) { return a.always; });
    for (size_t r = 0; always && r < run.results.size(); ++r) {
      EXPECT_TRUE(std::any_of(run.aliases.begin(), run.aliases.end(), [&](const auto& a) { return a.first == r; }));
    }
  });
}

TEST_F(OperatorCalls, OverwriteWhatTheFactsSay) {
  size_t checked = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    if (facts.overwritten.empty()) return;
    ++checked;
    const Outcome run = run_call(call.name, call.arguments);
    const Outcome other = run_call(call.name, call.arguments, kPoison, [&](Arguments& arguments) {
      for (const uint16_t position : facts.overwritten) {
        for (const at::Tensor& t : tensors_in(arguments[position])) change(t);
      }
    });
    EXPECT_TRUE(same_contents(left_by(run, facts), left_by(other, facts)));
  });
  EXPECT_GE(checked, 25U);
}

// If nodes fill, draw or depend on geometry only, results do not depend on operand contents.
TEST_F(OperatorCalls, ReadNoContentsWhereTheFactsSaySo) {
  size_t filling = 0;
  size_t drawing = 0;
  size_t geometry_only = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const bool looks = facts.geometry_only && !facts.is_view;
    if (!facts.fills && !facts.draws && !looks) return;
    filling += facts.fills;
    drawing += facts.draws;
    geometry_only += looks;
    const Outcome run = run_call(call.name, call.arguments);
    const uint64_t seed = facts.fills ? kCallSeed + 1 : kCallSeed;  // operators that fill do not draw either
    const auto changed = [&](Arguments& arguments) {
      for (const IValue& argument : arguments) {
        for (const at::Tensor& t : tensors_in(argument)) change(t);
      }
    };
    const Outcome other = run_call(call.name, call.arguments, kPoison, changed, seed);
    EXPECT_TRUE(same_contents(left_by(run, facts), left_by(other, facts)));
    if (facts.draws) {
      const Outcome again = run_call(call.name, call.arguments, kPoison, nullptr, kCallSeed + 1);
      EXPECT_FALSE(same_contents(left_by(run, facts), left_by(again, facts)));
    }
  });
  EXPECT_GE(filling, 20U);
  EXPECT_GE(drawing, 15U);
  EXPECT_GE(geometry_only, 15U);
}

TEST_F(OperatorCalls, DrawFromTheGeneratorWhatTheFactsSay) {
  std::set<std::string> random, drew;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const Outcome run = run_call(call.name, call.arguments);
    EXPECT_TRUE(facts.random || !run.drew);
    EXPECT_TRUE(!facts.draws || run.drew);
    if (facts.random) random.insert(call.name);
    if (run.drew) drew.insert(call.name);
  });
  // Each draws in at least one call: dropout draws only in training.
  EXPECT_EQ(random, drew);
}

TEST_F(OperatorCalls, LeaveMemoryAsItWasFoundWhereTheFactsSaySo) {
  size_t checked = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const bool found = facts.uninitialized || facts.resizes;
    checked += found;
    const Outcome run = run_call(call.name, call.arguments, kPoison);
    const Outcome other = run_call(call.name, call.arguments, kOtherPoison);
    EXPECT_EQ(same_contents(left_by(run, facts), left_by(other, facts)), !found);
  });
  EXPECT_GE(checked, 13U);
}

// Changing one element of an operand changes only that element of the result.
TEST_F(OperatorCalls, ArePointwiseWhereTheFactsSaySo) {
  size_t checked = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    if (!facts.pointwise || facts.host_read || facts.is_out_variant) return;
    const Outcome run = run_call(call.name, call.arguments);
    if (run.results.empty()) return;  // _foreach_add_ has no results
    for (size_t i = 0; i < run.arguments.size(); ++i) {
      const Outcome other = run_call(call.name, call.arguments, kPoison, [&](Arguments& arguments) {
        for (const at::Tensor& t : tensors_in(arguments[i])) change(t, /*only_first=*/true);
      });
      const auto results = tensors_in(run.results[0]);
      const auto others = tensors_in(other.results[0]);
      const auto operands = tensors_in(run.arguments[i]);
      ASSERT_EQ(results.size(), others.size());
      for (size_t t = 0; t < results.size(); ++t) {
        if (t >= operands.size() || operands[t].sizes() != results[t].sizes()) continue;
        ++checked;
        const int64_t n = results[t].numel();
        EXPECT_TRUE(same_bytes(results[t].flatten().narrow(0, 1, n - 1), others[t].flatten().narrow(0, 1, n - 1)));
      }
    }
  });
  EXPECT_GE(checked, 9U);
}

TEST_F(OperatorCalls, GiveTheHostContentsWhereTheFactsSaySo) {
  size_t checked = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const Outcome run = run_call(call.name, call.arguments);
    bool all_tensors = true;
    for (const c10::Argument& result : operator_of(call.name).schema().returns()) {
      all_tensors = all_tensors && (result.type()->kind() == c10::TypeKind::TensorType ||
                                    result.type()->kind() == c10::TypeKind::ListType);
    }
    if (all_tensors) {
      EXPECT_FALSE(facts.host_read);
      return;
    }
    ++checked;
    // _batch_norm_impl_index returns a number that identifies the chosen kernel.
    bool depends = false;
    for (size_t i = 0; i < run.arguments.size() && tensors_in(run.results[0]).empty(); ++i) {
      const Outcome other = run_call(call.name, call.arguments, kPoison, [&](Arguments& arguments) {
        for (const at::Tensor& t : tensors_in(arguments[i])) change(t);
      });
      depends = depends || !same_contents(run.results, other.results);
    }
    EXPECT_EQ(facts.host_read, depends);
  });
  EXPECT_GE(checked, 9U);
}

TEST_F(OperatorCalls, ChangeTensorObjectsWhereTheFactsSaySo) {
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const Outcome run = run_call(call.name, call.arguments);
    EXPECT_EQ(facts.takes_storage, run.moved_storage);
    EXPECT_TRUE(!facts.resizes || run.moved_sizes);
    EXPECT_TRUE(facts.changes_objects || facts.is_out_variant || !run.moved_objects);
    EXPECT_TRUE(facts.changes_objects || (!facts.resizes && !facts.takes_storage));
    EXPECT_TRUE(!facts.changes_objects || facts.written.empty() || run.moved_objects);
  });
}

TEST_F(OperatorCalls, TurnBitsOfViewsWhereTheFactsSaySo) {
  size_t turned = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    if (!facts.is_view) return;
    const Outcome run = run_call(call.name, call.arguments);
    const at::Tensor source = tensors_in(run.arguments[0]).front();
    for (const at::Tensor& view : tensors_in(run.results[0])) {
      if (!view.is_alias_of(source)) continue;
      EXPECT_EQ(view.is_conj() != source.is_conj(), facts.conjugates && source.is_complex());
      EXPECT_EQ(view.is_neg() != source.is_neg(), facts.negates);
      turned += view.is_conj() || view.is_neg();
    }
  });
  EXPECT_EQ(turned, 7U);
}

// set_ replaces the storage of self and keeps self's lazy bits, whatever those of the source are.
TEST(IrOperatorFacts, SetKeepsTheBitsOfSelf) {
  const auto complex_numbers = [] { return at::complex(at::rand({3, 4}), at::rand({3, 4})); };
  at::Tensor self = complex_numbers().conj();
  self.set_(complex_numbers());
  EXPECT_TRUE(self.is_conj());
  at::Tensor plain = complex_numbers();
  plain.set_(complex_numbers().conj());
  EXPECT_FALSE(plain.is_conj());
}

TEST(IrOperatorFacts, SparseTensorsAreResized) {
  const auto sparse = [](int64_t n) { return at::eye(n).to_sparse(); };
  EXPECT_TRUE(target_of_name("aten::resize_as_sparse_").facts().resizes);
  at::Tensor self = at::sparse_coo_tensor({2, 2}, at::kFloat);
  at::resize_as_sparse_(self, sparse(5));
  EXPECT_EQ(self.sizes(), (Ints{5, 5}));
  EXPECT_EQ(at::resize_as_sparse(at::sparse_coo_tensor({2, 2}, at::kFloat), sparse(5)).sizes(), (Ints{5, 5}));
}

// ---- Facts of schemas

OperatorFacts facts_named(const std::string& name) { return target_of_name(name).facts(); }
OperatorFacts facts_of_function(const char* schema) { return Target(TargetKind::kFunction, schema).facts(); }

TEST(IrOperatorFacts, FollowFromSchemas) {
  EXPECT_TRUE(facts_named("aten::add_.Tensor").is_in_place);
  EXPECT_FALSE(facts_named("aten::add_.Tensor").is_out_variant);
  EXPECT_TRUE(facts_named("aten::add.out").is_out_variant);
  EXPECT_FALSE(facts_named("aten::add.out").is_in_place);
  EXPECT_TRUE(facts_named("aten::view").is_view);
  EXPECT_FALSE(facts_named("aten::add.Tensor").is_view);
  EXPECT_FALSE(facts_named("aten::t_").is_view);
  EXPECT_EQ(facts_named("aten::_fused_moving_avg_obs_fq_helper").written.size(), 4U);
  EXPECT_FALSE(facts_named("aten::eq.Tensor").host_read);
  EXPECT_FALSE(facts_named("aten::relu").unknown);
  EXPECT_TRUE(facts_of_function("my::leaf(...) -> ...").unknown);
  EXPECT_TRUE(facts_of_function("my::leaf(Any x) -> Tensor").unknown);
  EXPECT_FALSE(facts_of_function("my::fused(Tensor(a!) x) -> Tensor(a!)").unknown);
  EXPECT_TRUE(facts_of_function("my::reduce(Tensor x, str group_name) -> Tensor").collective);
  EXPECT_TRUE(Target(TargetKind::kOperator, "c10d::sum(Tensor x) -> Tensor").facts().collective);
}

// A row for all overloads must not cover additional tensors that one of them reads.
TEST(IrOperatorFacts, OverloadsThatReadOtherTensorsAreNotWhatTheirRowSays) {
  EXPECT_TRUE(facts_named("aten::randint_like").geometry_only);
  EXPECT_FALSE(facts_named("aten::randint_like.Tensor").geometry_only);
  EXPECT_FALSE(facts_named("aten::randint_like.Tensor").draws);
  EXPECT_TRUE(facts_named("aten::linspace").fills);
  EXPECT_FALSE(facts_named("aten::linspace.Tensor_Tensor").fills);
  EXPECT_FALSE(facts_named("aten::fill_.Tensor").fills);
  EXPECT_FALSE(facts_named("aten::bernoulli_.Tensor").draws);
}

TEST(IrOperatorFacts, AreKeptWithTheTargetAndItsCopies) {
  const Target target = target_of_name("aten::mul.Tensor");
  const Target copy = target;
  EXPECT_EQ(&target.facts(), &copy.facts());
  Graph graph;
  const TargetId id = graph.intern_target(target);
  EXPECT_EQ(&graph.facts(id), &target.facts());
}

// The tags of an operator registered later are looked up then, and it is recognized as a form of another operator.
TEST(IrOperatorFacts, FollowAnOperatorThatIsRegisteredLater) {
  const Target target(TargetKind::kOperator, "sg_late::noisy_(Tensor(a!) x) -> Tensor(a!)");
  const OperatorFacts& before = target.facts();
  EXPECT_FALSE(before.random);
  EXPECT_TRUE(before.changes_objects);
  EXPECT_EQ(&target.facts(), &before);
  EXPECT_EQ(functional_form(target), nullptr);
  {
    torch::Library library(torch::Library::FRAGMENT, "sg_late", std::nullopt, __FILE__, __LINE__);
    library.def("noisy_(Tensor(a!) x) -> Tensor(a!)", {at::Tag::nondeterministic_seeded});
    library.def("noisy(Tensor x) -> Tensor", {at::Tag::nondeterministic_seeded});
    EXPECT_TRUE(target.facts().random);
    EXPECT_FALSE(target.facts().changes_objects);
    EXPECT_FALSE(before.random);  // a copy of the earlier facts is unchanged
    ASSERT_NE(functional_form(target), nullptr);
    EXPECT_EQ(functional_form(target)->target.name(), "sg_late::noisy");
    ASSERT_NE(in_place_form(functional_form(target)->target), nullptr);
  }
  EXPECT_TRUE(target.facts().random);
  EXPECT_EQ(functional_form(target), nullptr);
}

}  // namespace
}  // namespace shadowgraph::operator_facts_test
