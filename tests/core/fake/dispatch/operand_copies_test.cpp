// Pointwise operators on operands of mixed dtypes and layouts. On the CPU, the strides of the result match eager, which
// first copies operands to the common dtype. Simulated GPUs, whose kernels copy nothing, match the Meta kernel.
#include <ATen/core/dispatch/Dispatcher.h>

#include <random>

#include "core/fake/dispatch/run_on_meta.h"
#include "shadowgraph/capture/fake.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using torch::jit::Stack;

std::string error_message(const std::exception& error) {
  const auto* libtorch = dynamic_cast<const c10::Error*>(&error);
  return libtorch != nullptr ? libtorch->what_without_backtrace() : error.what();
}

struct Layout {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// Broadcast to [2, 1, 3]: dense, permuted, expanded, with gaps, and with unusual strides where the size is 1.
const std::vector<Layout>& mixed_layouts() {
  static const std::vector<Layout> all = {
      {{2, 1, 3}, {3, 3, 1}},
      {{2, 1, 3}, {3, 5, 1}},
      {{2, 1, 3}, {1, 2, 2}},
      {{2, 1, 3}, {0, 3, 1}},
      {{2, 1, 3}, {1, 2, 0}},
      {{2, 1, 3}, {0, 0, 0}},
      {{2, 1, 3}, {6, 1, 2}},
      {{2, 1, 3}, {2, 1, 4}},
      {{2, 1, 3}, {8, 9, 1}},
      {{1, 3}, {7, 2}},
      {{3}, {2}},
      {{}, {}},
      {{2, 1, 1}, {1, 1, 1}},
      {{2, 1, 3}, {1, 1, 40}},
  };
  return all;
}

at::Tensor laid_out(const Layout& layout, at::ScalarType dtype) {
  return at::ones({100}, dtype).as_strided(layout.sizes, layout.strides);
}

bool is_tensor(const c10::Argument& argument) { return argument.type()->kind() == c10::TypeKind::TensorType; }

// Draws tensor operands at random and sets other arguments to their default or 1; nullopt if the schema needs more.
std::optional<Stack> random_arguments(const c10::FunctionSchema& schema, std::mt19937& random) {
  static constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kInt,     at::kLong,
                                               at::kBool,  at::kHalf,   at::kBFloat16};
  const auto below = [&](size_t bound) { return static_cast<size_t>(random() % bound); };
  Stack stack;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.is_out()) {
      stack.emplace_back(at::empty({0}, kDtypes[below(2)]));
    } else if (is_tensor(argument)) {
      stack.emplace_back(laid_out(mixed_layouts()[below(mixed_layouts().size())], kDtypes[below(std::size(kDtypes))]));
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else if (argument.type()->kind() == c10::TypeKind::NumberType) {
      stack.emplace_back(below(2) == 0 ? c10::IValue(1) : c10::IValue(0.5));
    } else if (argument.type()->kind() == c10::TypeKind::OptionalType) {
      stack.emplace_back();
    } else if (argument.type()->kind() == c10::TypeKind::IntType) {
      stack.emplace_back(1);
    } else if (argument.type()->kind() == c10::TypeKind::FloatType) {
      stack.emplace_back(0.5);
    } else if (argument.type()->kind() == c10::TypeKind::BoolType) {
      stack.emplace_back(false);
    } else {
      return std::nullopt;
    }
  }
  return stack;
}

Stack fakes_of(FakeTensorMode& mode, const Stack& arguments, c10::Device device) {
  Stack fakes;
  for (const c10::IValue& argument : arguments) {
    fakes.push_back(argument.isTensor() ? c10::IValue(mode.from_real(argument.toTensor(), device)) : argument);
  }
  return fakes;
}

std::string call_text(const c10::FunctionSchema& schema, const Stack& arguments) {
  std::string text = toString(schema.operator_name()) + "(";
  for (const c10::IValue& argument : arguments) {
    text += argument.isTensor() ? described(argument.toTensor()) + ", " : c10::str(argument, ", ");
  }
  return text + ")";
}

TEST(OperandCopies, EveryPointwiseOperatorIsLaidOutAsEagerDoesIt) {
  const c10::NoGradGuard no_grad;
  std::mt19937 random(2026);
  size_t operators = 0;
  size_t mattered = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || !copies_operands_on_cpu(*op)) continue;
    if (!OperatorInfo::of(*op).copies_operands) continue;
    bool compared = false;
    for (int round = 0; round < 60; ++round) {
      const auto arguments = random_arguments(op->schema(), random);
      if (!arguments) break;
      Stack real = *arguments;
      Stack fake;
      Stack meta;
      const std::string call = call_text(op->schema(), *arguments);
      {
        FakeTensorMode mode;
        fake = fakes_of(mode, *arguments, at::kCPU);
      }
      {
        FakeTensorMode mode;
        meta = fakes_of(mode, *arguments, c10::Device(at::kCUDA, 0));
      }
      try {
        op->callBoxed(real);
      } catch (const std::exception&) {
        continue;  // eager has no kernel for these dtypes
      }
      try {
        op->callBoxed(fake);
        op->callBoxed(meta);
      } catch (const std::exception& error) {
        ADD_FAILURE() << call << ": " << error_message(error);
        break;
      }
      compared = true;
      mattered += fake[0].toTensor().strides() != meta[0].toTensor().strides();
      EXPECT_EQ(described(real[0].toTensor()), described(fake[0].toTensor())) << call;
    }
    operators += compared;
  }
  EXPECT_GT(operators, 150U);
  EXPECT_GT(mattered, 100U);  // otherwise no case copied an operand
}

}  // namespace
}  // namespace shadowgraph::testing
