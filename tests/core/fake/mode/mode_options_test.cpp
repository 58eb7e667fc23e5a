// A capture inherits every option of the mode in which its module was created; tests them one by one.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "core/fake/mode/modes.h"

namespace shadowgraph {
namespace {

// Returns the options that apply to a tensor created in a mode of `options` which has ended but still exists.
FakeTensorOptions taken_from(const FakeTensorOptions& options, const FakeTensorOptions& given = {}) {
  const FakeTensorMode mode(options);
  const at::Tensor own = at::empty({2});
  return options_around({own}, {}, given);
}

TEST(ModeOptions, ACaptureTakesEachFromTheModeOfItsModule) {
  EXPECT_EQ(taken_from({.device = c10::Device(at::kCUDA, 1)}).device, c10::Device(at::kCUDA, 1));
  EXPECT_EQ(taken_from({.profile = DeviceProfile::a100()}).profile, DeviceProfile::a100());
  EXPECT_TRUE(taken_from({.map_devices_to_default = true}).map_devices_to_default);
  EXPECT_EQ(taken_from({.data_sizes = {{"nonzero0", 17}}}).data_sizes, (NamedDataSizes{{"nonzero0", 17}}));
  EXPECT_EQ(taken_from({.contents_budget = ContentsBudget{.bytes = 7}}).contents_budget->bytes, 7);
  EXPECT_EQ(taken_from({.real_tensors = RealTensors::kRefuse}).real_tensors, RealTensors::kRefuse);
  EXPECT_TRUE(taken_from({.allow_fallback_kernels = true}).allow_fallback_kernels);
  EXPECT_TRUE(taken_from({.host_reads = {.finite = true}}).host_reads.finite);
  EXPECT_TRUE(taken_from({.host_reads = {.masks_full = true}}).host_reads.masks_full);
  EXPECT_EQ(taken_from({.host_reads = {.values = {{"item0", 2.5}}}}).host_reads.values.at("item0").toDouble(), 2.5);

  const at::Tensor asked = at::empty({3});
  const FakeTensorOptions sizes = taken_from({.data_size_hint = [](const DataSizeQuery& q) { return q.most - 1; }});
  ASSERT_TRUE(sizes.data_size_hint);
  EXPECT_EQ(sizes.data_size_hint({"nonzero0", "aten::nonzero", asked, 3}), 2);
  const FakeTensorOptions reads =
      taken_from({.host_reads = {.hint = [](const HostReadQuery&) { return c10::Scalar(4); }}});
  ASSERT_TRUE(reads.host_reads.hint);
  EXPECT_EQ(reads.host_reads.hint({"item0", "aten::item", asked, ""})->toLong(), 4);
}

TEST(ModeOptions, WhatACaptureSaysItselfStays) {
  const FakeTensorOptions around{.data_sizes = {{"nonzero0", 17}, {"unique0", 2}},
                                 .data_size_hint = [](const DataSizeQuery&) { return 1; },
                                 .host_reads = {.values = {{"item0", 2.5}, {"bool", true}},
                                                .hint = [](const HostReadQuery&) { return c10::Scalar(1); }},
                                 .contents_budget = ContentsBudget{.bytes = 7},
                                 .real_tensors = RealTensors::kRefuse};
  const FakeTensorOptions found = taken_from(
      around, {.data_sizes = {{"nonzero0", 5}},
               .data_size_hint = [](const DataSizeQuery&) { return 9; },
               .host_reads = {.values = {{"item0", -1.0}}, .hint = [](const HostReadQuery&) { return c10::Scalar(9); }},
               .contents_budget = ContentsBudget{.bytes = 8},
               .real_tensors = RealTensors::kConstant});
  EXPECT_EQ(found.data_sizes, (NamedDataSizes{{"nonzero0", 5}, {"unique0", 2}}));
  const at::Tensor asked = at::empty({3});
  EXPECT_EQ(found.data_size_hint({"nonzero1", "aten::nonzero", asked, 3}), 9);
  EXPECT_EQ(found.host_reads.values.at("item0").toDouble(), -1.0);
  EXPECT_TRUE(found.host_reads.values.at("bool").toBool());
  EXPECT_EQ(found.host_reads.hint({"item1", "aten::item", asked, ""})->toLong(), 9);
  EXPECT_EQ(found.contents_budget->bytes, 8);
  EXPECT_EQ(found.real_tensors, RealTensors::kConstant);
}

}  // namespace
}  // namespace shadowgraph
