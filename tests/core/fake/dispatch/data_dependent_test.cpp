// Results with data-dependent sizes: the error, its workarounds, sizes given by name and by function, and kernels run
// on zeros.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(FakeDataDependent, TheErrorNamesTheOperatorAndTheWaysOut) {
  const FakeTensorMode mode;
  const at::Tensor x = at::rand({4});
  const at::Tensor mask = x > 0.5;
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"aten::nonzero", [&] { at::nonzero(x); }},
      {"aten::masked_select", [&] { x.masked_select(mask); }},
      {"aten::_unique2", [&] { at::_unique2(x); }},
      {"aten::_unique", [&] { at::_unique(x); }},
      {"aten::_local_scalar_dense", [&] { x[0].item(); }},
      {"aten::equal", [&] { at::equal(x, x + 1); }},
      {"aten::nonzero", [&] { x.index({mask}); }},
      {"aten::repeat_interleave.Tensor", [&] { at::repeat_interleave(x.to(at::kLong)); }},
      {"aten::bincount", [&] { at::bincount(x.to(at::kLong)); }},
  };
  for (const auto& [op, call] : calls) {
    EXPECT_THAT(call,
                ThrowsMessage<DataDependentError>(AllOf(HasSubstr(op), HasSubstr("number"), HasSubstr("UnfakeGuard"))))
        << op;
  }
}

TEST(FakeDataDependent, AFunctionIsAskedForSizes) {
  std::vector<std::string> asked;
  FakeTensorMode mode(
      {.data_sizes = {{"nonzero1", 1}}, .data_size_hint = [&](const DataSizeQuery& question) -> std::optional<int64_t> {
         asked.push_back(question.name + " " + question.op + " " + std::to_string(question.most));
         EXPECT_TRUE(is_fake(question.tensor));
         if (question.op == "aten::_unique2") return std::nullopt;
         return question.most / 2;
       }});
  const at::Tensor x = at::rand({4, 2});
  EXPECT_EQ(at::nonzero(x).sizes(), at::IntArrayRef({4, 2}));
  EXPECT_EQ(at::nonzero(x).sizes(), at::IntArrayRef({4, 2}));     // not computed twice
  EXPECT_EQ(at::nonzero(x[0]).sizes(), at::IntArrayRef({1, 1}));  // given by name
  EXPECT_EQ(x.index({x > 0}).sizes(), at::IntArrayRef({4}));
  EXPECT_THROW(at::_unique2(x), DataDependentError);
  EXPECT_EQ(asked, (std::vector<std::string>{"nonzero0 aten::nonzero 8", "nonzero2 aten::nonzero 8",
                                             "unique0 aten::_unique2 8"}));
}

TEST(FakeDataDependent, AKindIsAnsweredAtOnce) {
  const FakeTensorMode mode({.data_sizes = {{"nonzero", 5}, {"nonzero1", 0}}});
  const at::Tensor x = at::rand({4, 2});
  EXPECT_EQ(at::nonzero(x).size(0), 5);
  EXPECT_EQ(at::nonzero(x[0]).size(0), 0);  // given by name
  EXPECT_EQ(at::nonzero(x[1]).size(0), 2);  // at most the number of elements
  EXPECT_THROW(at::_unique2(x), DataDependentError);
}

// bincount has max + 1 bins, and at least `minlength`.
TEST(FakeDataDependent, BinsAreAtLeastThoseAskedFor) {
  const FakeTensorMode mode({.data_sizes = {{"bincount", 3}}});
  const at::Tensor x = at::empty({4}, at::kLong);
  EXPECT_EQ(at::bincount(x).size(0), 3);
  EXPECT_EQ(at::bincount(x, {}, 7).size(0), 7);
  EXPECT_EQ(at::bincount(x, {}, 2).size(0), 3);
}

// Unknown routing indices are spread evenly over the allocated size, or over the count that the user gives.
TEST(FakeDataDependent, CountsOfARoutingAreEven) {
  const auto counts = [](const FakeTensorMode&) {
    const at::Tensor ids = at::empty({5, 2}, at::kLong);
    const at::Tensor marks = at::zeros({5, 4}, at::kLong).scatter(1, ids, 1);
    EXPECT_TRUE(marks.sum(1).eq(2).all().item<bool>());  // no row chooses the same expert twice
    const at::Tensor summed = marks.sum(0), counted = at::bincount(ids.flatten(), {}, 4);
    EXPECT_TRUE(summed.equal(counted));
    const at::Tensor real = *known_contents(counted);
    return std::vector<int64_t>(real.const_data_ptr<int64_t>(), real.const_data_ptr<int64_t>() + real.numel());
  };
  EXPECT_EQ(counts(FakeTensorMode()), (std::vector<int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(counts(FakeTensorMode({.data_sizes = {{"routing[2]", 5}}})), (std::vector<int64_t>{2, 2, 5, 1}));
  EXPECT_THROW(counts(FakeTensorMode({.data_sizes = {{"routing0[2]", 6}}})), Error);  // exceeds the five rows
}

TEST(FakeDataDependent, AWriteAsksAgain) {
  int asked = 0;
  const FakeTensorMode mode(
      {.data_size_hint = [&](const DataSizeQuery&) -> std::optional<int64_t> { return ++asked; }});
  at::Tensor x = at::rand({8});
  const at::Tensor alias = x.view({8});
  EXPECT_EQ(at::nonzero(x).size(0), 1);
  EXPECT_EQ(at::nonzero(alias).size(0), 1);  // aliases the same data
  EXPECT_EQ(at::nonzero(x.slice(0, 4)).size(0), 2);
  alias.add_(1);
  EXPECT_EQ(at::nonzero(x).size(0), 3);
  EXPECT_EQ(at::nonzero(x).size(0), 3);
}

TEST(FakeDataDependent, RepeatsAreASize) {
  const FakeTensorMode mode({.data_sizes = {{"repeats0", 7}}});
  const at::Tensor repeats = at::randint(5, {3}, at::kLong);
  const at::Tensor x = at::rand({3, 2});
  EXPECT_EQ(at::repeat_interleave(x, repeats, 0).sizes(), at::IntArrayRef({7, 2}));
  EXPECT_EQ(at::repeat_interleave(repeats).sizes(), at::IntArrayRef({7}));
  EXPECT_EQ(at::repeat_interleave(x, repeats, 0, 12).sizes(), at::IntArrayRef({12, 2}));
}

// ---- Kernels run on zeros

at::Tensor doubled_rows(const at::Tensor& x) { return at::cat({x, x}); }
at::Tensor looked_up(const at::Tensor& table, const at::Tensor& keys) { return table.index_select(0, keys); }
at::Tensor hidden_view(const at::Tensor& x) { return x.view({-1}); }
at::Tensor& into(at::Tensor& x, const at::Tensor& y) { return x.add_(y); }
at::Tensor& flattened_(at::Tensor& x) { return x.squeeze_(0); }
TORCH_LIBRARY(sg_zeros, library) {
  library.def("doubled_rows(Tensor x) -> Tensor");
  library.def("lookup(Tensor table, Tensor keys) -> Tensor");
  library.def("hidden_view(Tensor x) -> Tensor");
  library.def("into(Tensor(a!) x, Tensor y) -> Tensor(a!)");
  library.def("flattened_(Tensor(a!) x) -> Tensor(a!)", {at::Tag::inplace_view});
}
TORCH_LIBRARY_IMPL(sg_zeros, CPU, library) {
  library.impl("doubled_rows", doubled_rows);
  library.impl("lookup", looked_up);
  library.impl("hidden_view", hidden_view);
  library.impl("into", into);
  library.impl("flattened_", flattened_);
}
template <class Signature, class... Args>
auto call(const char* name, Args&&... args) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>().call(std::forward<Args>(args)...);
}
using Unary = at::Tensor(const at::Tensor&);
using Binary = at::Tensor(const at::Tensor&, const at::Tensor&);

TEST(FakeOnZeros, NeverByDefault) {
  const FakeTensorMode mode;
  EXPECT_THROW(call<Unary>("sg_zeros::doubled_rows", at::rand({2, 3})), NoRuleError);
}

TEST(FakeOnZeros, AnUnknownOperatorIsRun) {
  const FakeTensorMode mode({.device = at::kCUDA, .allow_fallback_kernels = true});
  const at::Tensor y = call<Unary>("sg_zeros::doubled_rows", at::rand({2, 3}));
  EXPECT_TRUE(is_fake(y));
  EXPECT_EQ(y.device(), c10::Device(at::kCUDA, 0));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({4, 3}));
  at::Tensor x = at::rand({2});
  EXPECT_TRUE((call<at::Tensor&(at::Tensor&, const at::Tensor&)>("sg_zeros::into", x, at::rand({2})).is_same(x)));
}

TEST(FakeOnZeros, WhatZerosWouldFalsifyIsRefused) {
  const FakeTensorMode mode({.allow_fallback_kernels = true});
  const at::Tensor x = at::rand({2, 3});
  EXPECT_THAT([&] { call<Binary>("sg_zeros::lookup", x, at::randint(2, {4}, at::kLong)); },
              ThrowsMessage<NoRuleError>(HasSubstr("indexes")));
  EXPECT_THAT([&] { call<Unary>("sg_zeros::hidden_view", x); }, ThrowsMessage<NoRuleError>(HasSubstr("shares memory")));
  at::Tensor row = at::rand({1, 3});
  EXPECT_THAT([&] { call<at::Tensor&(at::Tensor&)>("sg_zeros::flattened_", row); },
              ThrowsMessage<NoRuleError>(HasSubstr("changes the geometry")));
  EXPECT_EQ(row.sizes(), at::IntArrayRef({1, 3}));
  EXPECT_THROW(at::nonzero(x), DataDependentError);
}

}  // namespace
}  // namespace shadowgraph
