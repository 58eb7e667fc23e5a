// Tests how the arguments and results of calls on fake tensors become arguments and values of a graph.
#include "core/calls/call_record.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/fake/fake_tensor_impl.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

Argument no_tensor(const at::Tensor&) { throw Error("a tensor where none is"); }

TEST(CallRecord, ArgumentsOfEveryKind) {
  Graph graph;
  const auto of = [&](const c10::IValue& value) { return argument_of(graph, value, no_tensor); };
  EXPECT_EQ(of({}).kind, ArgumentKind::kNone);
  EXPECT_EQ(of(3).i, 3);
  EXPECT_TRUE(of(true).b);
  EXPECT_EQ(of(0.5).d, 0.5);
  EXPECT_EQ(of(c10::complex<double>(1, -2)).kind, ArgumentKind::kComplex);
  EXPECT_EQ(graph.text(of("sum").string), "sum");
  EXPECT_EQ(of(c10::Device(at::kCUDA, 1)).device(), c10::Device(at::kCUDA, 1));
  EXPECT_EQ(graph.ints(of(std::vector<int64_t>{1, 2})).size(), 2U);
  EXPECT_EQ(graph.list(of(std::vector<double>{1, 2})).size(), 2U);
  EXPECT_EQ(of(at::Tensor()).kind, ArgumentKind::kNone) << "an undefined tensor is recorded as None, without a lookup";
  EXPECT_EQ(of(at::ones({}).storage()).kind, ArgumentKind::kOpaque);
  EXPECT_EQ(graph.text(of(at::ones({}).storage()).string), "Storage");
}

TEST(CallRecord, TensorsAreTheCallersWhereverTheyAre) {
  Graph graph;
  std::vector<at::Tensor> asked;
  const auto note = [&](const at::Tensor& tensor) {
    asked.push_back(tensor);
    return Argument::of_int(static_cast<int64_t>(asked.size()));
  };
  const at::Tensor x = at::ones({2});
  const at::Tensor y = at::ones({3});
  c10::List<std::optional<at::Tensor>> holes;
  holes.push_back(x);
  holes.push_back(std::nullopt);
  holes.push_back(y);
  const auto list = graph.list(argument_of(graph, holes, note));
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0].i, 1);
  EXPECT_EQ(list[1].kind, ArgumentKind::kNone);
  EXPECT_EQ(list[2].i, 2);
  EXPECT_TRUE(asked[1].is_same(y));
}

TEST(CallRecord, NumbersInTensorsKeepTheirType) {
  Graph graph;
  EXPECT_EQ(number_of(graph, at::scalar_tensor(7, at::kLong)).i, 7);
  EXPECT_EQ(number_of(graph, at::scalar_tensor(0.25, at::kDouble)).d, 0.25);
  EXPECT_TRUE(number_of(graph, at::scalar_tensor(true, at::kBool)).b);
  EXPECT_EQ(number_of(graph, at::scalar_tensor(c10::complex<double>(0, 1), at::kComplexDouble)).kind,
            ArgumentKind::kComplex);
  const Argument half = number_of(graph, at::scalar_tensor(0.5, at::kHalf));
  ASSERT_EQ(half.kind, ArgumentKind::kConstant) << "no argument kind can hold a half";
  EXPECT_EQ(graph.constant(half.constant).scalar_type(), at::kHalf);
}

TEST(CallRecord, ResultsAreFreshValues) {
  Graph graph;
  const NodeId node = graph.append(target_of(Builtin::kOutput), std::vector<Argument>{graph.make_list({})});
  const auto of = [&](const c10::IValue& value) { return result_of(graph, node, value, no_tensor); };
  EXPECT_EQ(graph.value(of(3).ref.value).kind, ValueKind::kInt);
  EXPECT_EQ(graph.value(of(0.5).ref.value).kind, ValueKind::kFloat);
  EXPECT_EQ(graph.value(of(true).ref.value).kind, ValueKind::kBool);
  EXPECT_EQ(of(at::Tensor()).kind, ArgumentKind::kNone);
  EXPECT_EQ(of({}).kind, ArgumentKind::kNone);
}

TEST(CallRecord, AFakeAsAValueAndItsStorage) {
  const at::Tensor real = at::empty({4, 6}, at::kHalf).slice(1, 1, 6, 2);
  FakeTensorMode mode;
  const at::Tensor x = mode.from_real(real, c10::Device(at::kCUDA, 1));
  const FakeTensorImpl& fake = *as_fake(x);
  const TensorMeta spec = spec_of(fake, StorageId(5));
  EXPECT_EQ(spec.dtype, at::kHalf);
  EXPECT_EQ(std::vector<int64_t>(spec.sizes.begin(), spec.sizes.end()), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(std::vector<int64_t>(spec.strides.begin(), spec.strides.end()), (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(spec.offset, 1);
  EXPECT_EQ(spec.storage, StorageId(5));
  EXPECT_EQ(spec.device, c10::Device(at::kCUDA, 1));
  const Storage storage = storage_of(fake, NodeId(3));
  EXPECT_EQ(storage.bytes, 4 * 6 * 2);
  EXPECT_EQ(storage.born, NodeId(3));
  EXPECT_EQ(storage.device_type, at::kCUDA);
  EXPECT_EQ(storage.device_index, 1);
}

}  // namespace
}  // namespace shadowgraph
