// The functional, in-place and non-out= forms of an operator compute the same results.
#include "ir/operators/operator_forms.h"

#include "tests/ir/operator_calls.h"

namespace shadowgraph::operator_facts_test {
namespace {

using OperatorForms = OperatorCalls;

// Batch norm's `save_mean` outside training.
bool leaves_out_alone(const Outcome& run, const Target& target) {
  const auto& arguments = function_schema(target).arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].is_out() && !run.written.contains(i)) return true;
  }
  return false;
}

TEST_F(OperatorForms, GiveInTheirFunctionalFormWhatTheyWrite) {
  std::set<std::string> forms;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const Target target = target_of_name(call.name);
    const FunctionalForm* form = functional_form(target);
    if (form == nullptr) return;
    forms.insert(call.name + " " + form->target.name());
    EXPECT_TRUE(form->target.facts().written.empty());
    const Outcome run = run_call(call.name, call.arguments);
    // writes nothing in this call
    if (facts.write_condition >= 0 && !run.arguments[facts.write_condition].toBool()) return;
    if (leaves_out_alone(run, target)) return;
    const Arguments arguments = made_arguments(function_schema(target), call.arguments);
    Arguments taken;
    for (const uint16_t position : form->arguments) taken.push_back(arguments[position]);
    const auto results = run_on(*find_operator(form->target), taken);
    ASSERT_EQ(results.size(), form->fresh.size() + form->written.size());
    for (size_t r = 0; r < form->fresh.size(); ++r) {
      EXPECT_TRUE(same_contents(results[r], run.results[form->fresh[r]])) << "result " << r;
    }
    for (size_t w = 0; w < form->written.size(); ++w) {
      EXPECT_TRUE(same_contents(results[form->fresh.size() + w], run.arguments[form->written[w]]))
          << "argument " << form->written[w];
    }
  });
  EXPECT_TRUE(forms.contains("aten::_native_batch_norm_legit.out aten::_native_batch_norm_legit_functional"));
  EXPECT_TRUE(forms.contains("aten::rrelu_with_noise.out aten::rrelu_with_noise_functional"));
  EXPECT_TRUE(forms.contains("aten::_fused_adamw_ aten::_fused_adamw"));
  EXPECT_GE(forms.size(), 25U);
}

TEST_F(OperatorForms, LeaveInTheirInPlaceFormWhatTheyGive) {
  std::set<std::string> forms;
  for_each_call([&](const Call& call, const OperatorFacts&) {
    const Target target = target_of_name(call.name);
    const Target* form = in_place_form(target);
    if (form == nullptr) return;
    forms.insert(form->name());
    const Outcome run = run_call(call.name, call.arguments);
    Arguments arguments = made_arguments(function_schema(target), call.arguments);
    const auto results = run_on(*find_operator(*form), arguments);
    std::vector<IValue> left = results;
    const FunctionalForm* back = functional_form(*form);
    ASSERT_NE(back, nullptr);
    EXPECT_EQ(back->target.name(), target.name());
    for (size_t w = 0; w < back->written.size(); ++w) {
      EXPECT_TRUE(same_contents(run.results[back->fresh.size() + w], arguments[back->written[w]]));
    }
  });
  EXPECT_TRUE(forms.contains("aten::normal_"));
  EXPECT_TRUE(forms.contains("aten::_fused_adamw_"));
  EXPECT_GE(forms.size(), 4U);
}

TEST_F(OperatorForms, GiveWithoutOutWhatTheyLeaveThere) {
  std::set<std::string> forms;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const Target target = target_of_name(call.name);
    const FreshForm* form = fresh_form(target);
    EXPECT_TRUE(form == nullptr || facts.is_out_variant);
    if (form == nullptr) return;
    forms.insert(toString(form->op.operator_name()));
    const Outcome run = run_call(call.name, call.arguments);
    if (leaves_out_alone(run, target)) return;
    const Arguments arguments = made_arguments(function_schema(target), call.arguments);
    Arguments taken;
    for (size_t i = 0; i < form->arguments.size(); ++i) {
      const bool known = form->arguments[i] != FreshForm::kOfResult;
      const bool dtype = !known && form->op.schema().arguments()[i].name() == "dtype";
      const at::Tensor out = tensors_in(run.results[0]).front();
      taken.push_back(known ? arguments[form->arguments[i]] : dtype ? IValue(out.scalar_type()) : IValue());
    }
    EXPECT_TRUE(same_contents(run_on(form->op, taken), run.results));
  });
  EXPECT_TRUE(forms.contains("aten::arange.start_step"));
  EXPECT_TRUE(forms.contains("aten::zeros_like"));
  EXPECT_GE(forms.size(), 8U);
}

}  // namespace
}  // namespace shadowgraph::operator_facts_test
