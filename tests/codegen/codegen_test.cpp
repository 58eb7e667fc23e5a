// Compiled emitted C++ is bitwise equal to eager: whole training steps, gradients through autograd with and without
// checkpoints, random programs, and literals of every kind. The code is in build/tests/codegen/emitted.cpp, generated
// by fixtures/make_fixtures.cpp.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim.h>

#include <cstring>

#include "tests/codegen/fixtures/emitted.h"
#include "tests/codegen/fixtures/fixture_list.h"
#include "tests/codegen/fixtures/literals_program.h"
#include "tests/codegen/fixtures/odd_storage_program.h"
#include "tests/codegen/fixtures/user_functions.h"
#include "tests/random/program.h"

namespace shadowgraph {
namespace {

constexpr uint64_t kSeed = 2025;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  const at::Tensor x = a.detach().resolve_conj().contiguous();
  const at::Tensor y = b.detach().resolve_conj().contiguous();
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

models::BuiltModel build_real(const std::string& name) {
  at::manual_seed(kSeed);
  return build_tiny(name);
}

NamedTensors named_tensors(const models::BuiltModel& model) {
  NamedTensors tensors;
  for (const auto& entry : model.module->named_parameters()) tensors.emplace(entry.key(), entry.value());
  for (const auto& entry : model.module->named_buffers()) tensors.emplace(entry.key(), entry.value());
  for (size_t i = 0; i < model.inputs.size(); ++i) tensors.emplace(model.input_names[i], model.inputs[i]);
  return tensors;
}

void expect_same_module(const models::BuiltModel& eager, const models::BuiltModel& emitted) {
  const auto parameters = emitted.module->named_parameters();
  for (const auto& entry : eager.module->named_parameters()) {
    EXPECT_TRUE(same_bits(entry.value(), parameters[entry.key()])) << entry.key();
  }
  const auto buffers = emitted.module->named_buffers();
  for (const auto& entry : eager.module->named_buffers()) {
    EXPECT_TRUE(same_bits(entry.value(), buffers[entry.key()])) << entry.key();
  }
}

class EmittedCpp : public ::testing::Test {
 protected:
  void SetUp() override {
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  struct Step {
    models::BuiltModel model;
    at::Tensor loss;
    at::Tensor next_random;
  };
  static Step eager_step(const std::string& name) {
    Step step{.model = build_real(name), .loss = {}, .next_random = {}};
    const auto parameters = step.model.module->parameters();
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (trains_with_adamw(name)) {
      optimizer = std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
    } else {
      optimizer = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    }
    at::manual_seed(kSeed + 1);
    step.loss = step.model.loss(step.model.forward(step.model.inputs), step.model.inputs);
    step.loss.backward();
    optimizer->step();
    step.next_random = at::rand({1});
    return step;
  }

  static void expect_same_step(const StepFixture& fixture) {
    SCOPED_TRACE(fixture.name);
    const Step eager = eager_step(fixture.model);
    const auto real = build_real(fixture.model);
    at::manual_seed(kSeed + 1);
    const NamedTensors outputs = emitted().at(fixture.name)(named_tensors(real));
    EXPECT_TRUE(same_bits(eager.next_random, at::rand({1}))) << "the generator states differ";
    EXPECT_TRUE(same_bits(eager.loss, outputs.at("output0"))) << eager.loss;
    size_t compared = 0;
    for (const auto& entry : eager.model.module->named_parameters()) {
      const auto found = outputs.find("gradient." + entry.key());
      if (found == outputs.end()) continue;  // the second name of a tied parameter
      EXPECT_TRUE(same_bits(entry.value().grad(), found->second)) << entry.key();
      ++compared;
    }
    EXPECT_EQ(compared + 1, outputs.size());
    expect_same_module(eager.model, real);
  }

  static void expect_same_slice(const SliceFixture& fixture) {
    SCOPED_TRACE(fixture.name);
    NamedTensors expected;
    NamedTensors given;
    if (fixture.initialization) {
      expected = named_tensors(build_real(fixture.model));
      at::manual_seed(kSeed);
    } else {
      const Step eager = eager_step(fixture.model);
      expected = named_tensors(eager.model);
      expected["output0"] = eager.loss;
      for (const auto& entry : eager.model.module->named_parameters()) {
        expected["gradient." + entry.key()] = entry.value().grad();
      }
      given = named_tensors(build_real(fixture.model));
      at::manual_seed(kSeed + 1);
    }
    const NamedTensors outputs = emitted().at(fixture.name)(given);
    EXPECT_GE(outputs.size(), fixture.values.size());
    EXPECT_LT(outputs.size(), expected.size());
    for (const auto& [name, output] : outputs) EXPECT_TRUE(same_bits(expected.at(name), output)) << name;
  }

  // Forward code under autograd: compares outputs, and gradients of a loss on them.
  static void expect_same_gradients(const std::string& name, const std::string& fixture) {
    SCOPED_TRACE(fixture);
    const auto eager = build_real(name);
    at::manual_seed(kSeed + 1);
    const auto expected = eager.forward(eager.inputs);
    eager.loss(expected, eager.inputs).backward();

    const auto real = build_real(name);
    at::manual_seed(kSeed + 1);
    const NamedTensors named = emitted().at(fixture)(named_tensors(real));
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < expected.size(); ++i) {
      outputs.push_back(named.at("output" + std::to_string(i)));
      EXPECT_TRUE(same_bits(expected[i], outputs[i])) << i;
    }
    real.loss(outputs, real.inputs).backward();
    const auto parameters = real.module->named_parameters();
    size_t compared = 0;
    for (const auto& entry : eager.module->named_parameters()) {
      EXPECT_TRUE(same_bits(entry.value().grad(), parameters[entry.key()].grad())) << entry.key();
      compared += entry.value().grad().defined() ? 1 : 0;
    }
    EXPECT_GT(compared, 3U);
    expect_same_module(eager, real);
  }

 private:
  int threads_ = 1;
};

TEST_F(EmittedCpp, TrainsAsEager) {
  for (const StepFixture& fixture : step_fixtures()) expect_same_step(fixture);
}
TEST_F(EmittedCpp, IsDifferentiatedByAutograd) {
  for (const ForwardFixture& fixture : forward_fixtures()) expect_same_gradients(fixture.model, fixture.name);
}
TEST_F(EmittedCpp, ComputesWhatChosenValuesNeed) {
  for (const SliceFixture& fixture : slice_fixtures()) expect_same_slice(fixture);
}

void expect_same_program(int seed, const std::string& fixture) {
  const auto program = shadowgraph::testing::RandomProgram::make(static_cast<uint64_t>(seed), 8 + seed % 25);
  const shadowgraph::testing::Outcome eager = shadowgraph::testing::run_eagerly(program);
  shadowgraph::testing::Outcome run;
  const auto inputs = program.inputs();
  NamedTensors named;
  for (size_t i = 0; i < inputs.size(); ++i) {
    run.inputs.push_back(inputs[i].detach());
    named.emplace("input" + std::to_string(i), inputs[i]);
  }
  at::manual_seed(program.seed());
  const NamedTensors outputs = emitted().at(fixture)(named);
  for (size_t i = 0; i < outputs.size(); ++i) run.outputs.push_back(outputs.at("output" + std::to_string(i)));
  ASSERT_EQ(shadowgraph::testing::difference(eager, run), "") << fixture << "\n" << program.describe();
}

TEST_F(EmittedCpp, RunsRandomProgramsAsEager) {
  for (int seed = 1; seed <= kRandomPrograms; ++seed) expect_same_program(seed, "program_" + std::to_string(seed));
}
TEST_F(EmittedCpp, RunsTheBodiesOfCallsAsEager) {
  for (int seed = 1; seed <= kProgramsInParts; ++seed) {
    expect_same_program(seed, "program_" + std::to_string(seed) + "_in_parts");
  }
}

TEST_F(EmittedCpp, SpellsEveryLiteral) {
  const c10::NoGradGuard no_grad;
  at::manual_seed(1);
  const at::Tensor x = at::randn({2, 3, 4, 4});
  const at::Tensor y = at::randn({2, 3, 4, 4});
  const auto constants = literals_constants();
  at::manual_seed(2);
  const auto expected = literals_program(x, y, constants);
  at::manual_seed(2);
  const NamedTensors outputs = emitted().at("literals")({{"x", x}, {"y", y}});
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor& output = outputs.at("output" + std::to_string(i));
    EXPECT_TRUE(same_bits(expected[i], output)) << i << "\n" << expected[i] << "\n" << output;
  }
}

TEST_F(EmittedCpp, CopiesStoragesOfNoWholeNumberOfElements) {
  const at::Tensor x = at::randn({5});
  const auto expected = odd_storage_program(x);
  const NamedTensors outputs = emitted().at("odd_storage")({{"x", x}});
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(same_bits(expected[i], outputs.at("output" + std::to_string(i)))) << i;
  }
}

TEST_F(EmittedCpp, SpellsAnyName) {
  const at::Tensor x = at::randn({3});
  const NamedTensors outputs = emitted().at("awkward_name")({{kAwkwardName, x}});
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_TRUE(same_bits(x.neg(), outputs.begin()->second));
}

TEST_F(EmittedCpp, CallsFunctionsOfTheUsersOwn) {
  const at::Tensor x = at::randn({4, 4});
  const at::Tensor y = at::randn({4, 4});
  const auto expected = user_functions_program(x, y);
  const NamedTensors outputs = emitted().at("user_functions")({{"x", x}, {"y", y}});
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(same_bits(expected[i], outputs.at("output" + std::to_string(i)))) << i;
  }
}

TEST_F(EmittedCpp, RefusesTensorsThatTheGraphWasNotMadeFor) {
  const at::Tensor x = at::zeros({2, 3, 4, 4});
  const auto run = emitted().at("literals");
  EXPECT_THROW(run({{"x", x}}), std::invalid_argument);
  EXPECT_THROW(run({{"x", x}, {"y", x.to(at::kDouble)}}), std::invalid_argument);
  EXPECT_THROW(run({{"x", x}, {"y", at::zeros({2, 3, 4, 5})}}), std::invalid_argument);
  EXPECT_THROW(run({{"x", x}, {"y", at::Tensor()}}), std::invalid_argument);
}

}  // namespace
}  // namespace shadowgraph
