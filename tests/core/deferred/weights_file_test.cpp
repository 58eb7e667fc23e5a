// Tests the files that write_weights() writes. check_weights.py reads them with torch.load.
#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/deferred/deferred.h"

namespace shadowgraph {
namespace {

std::string record(caffe2::serialize::PyTorchStreamReader& reader, const std::string& name) {
  const auto [data, size] = reader.getRecord(name);
  return {static_cast<const char*>(data.get()), size};
}

// Storages are pickled as ("storage", class, key, "cpu", elements), integers as LONG1 of nine bytes.
std::vector<int64_t> elements_of_storages(const std::string& pickle) {
  std::vector<int64_t> elements;
  for (size_t at = pickle.find("cpu"); at != std::string::npos; at = pickle.find("cpu", at + 1)) {
    EXPECT_EQ(pickle.substr(at + 3, 2), "\x8a\x09");
    int64_t number = 0;
    for (size_t i = 0; i < 8; ++i) number |= int64_t{static_cast<unsigned char>(pickle.at(at + 5 + i))} << (8 * i);
    elements.push_back(number);
  }
  return elements;
}

// A view saves its whole storage, once for all views that share it.
TEST(WeightsFile, AStorageIsWrittenWholeWhateverViewsNameIt) {
  const std::string path = ::testing::TempDir() + "views.pt";
  const at::Tensor t = at::arange(10, at::kFloat);
  const at::Tensor part = t.slice(0, 2, 5);
  const at::Tensor lone = at::arange(12, at::kLong).slice(0, 1, 3);
  const WrittenWeights written = write_weights(path, {{"part", part}, {"whole", t}, {"lone", lone}}, {});
  EXPECT_EQ(written.tensors, 3U);
  EXPECT_EQ(written.storages, 2U);
  EXPECT_EQ(written.bytes, 10U * 4 + 12U * 8);

  caffe2::serialize::PyTorchStreamReader reader(path);
  EXPECT_EQ(record(reader, "data/0"), std::string(static_cast<const char*>(t.storage().data()), 40));
  EXPECT_EQ(record(reader, "data/1"), std::string(static_cast<const char*>(lone.storage().data()), 96));
  EXPECT_THAT(elements_of_storages(record(reader, "data.pkl")), ::testing::ElementsAre(10, 10, 12));
}

}  // namespace
}  // namespace shadowgraph
