// Overlap of strided views, compared with explicit sets of bytes, and aliases in graphs.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

struct OwnedView {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  int64_t itemsize = 1;

  StridedView view() const { return {sizes, strides, offset, itemsize}; }
  // The byte offset of each element, in index order.
  std::vector<int64_t> elements() const {
    std::vector<int64_t> at{offset * itemsize};
    for (size_t d = 0; d < sizes.size(); ++d) {
      std::vector<int64_t> next;
      for (const int64_t begin : at) {
        for (int64_t i = 0; i < sizes[d]; ++i) next.push_back(begin + i * strides[d] * itemsize);
      }
      at = std::move(next);
    }
    return at;
  }
  std::string text() const {
    std::string result = std::to_string(itemsize) + " bytes, +" + std::to_string(offset) + ":";
    for (size_t d = 0; d < sizes.size(); ++d) {
      result += " " + std::to_string(sizes[d]) + "{" + std::to_string(strides[d]) + "}";
    }
    return result;
  }
};

class Geometries {
 public:
  explicit Geometries(uint32_t seed) : random_(seed) {}
  int64_t up_to(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }

  // A view from slicing and transposing a contiguous tensor, or an arbitrary one.
  OwnedView next() {
    OwnedView view;
    view.itemsize = int64_t{1} << up_to(3);
    view.offset = up_to(12);
    const bool any = up_to(2) == 0;
    int64_t stride = 1;
    for (int64_t d = up_to(3); d > 0; --d) {
      view.sizes.push_back(up_to(9) == 0 ? 0 : 1 + up_to(3));
      view.strides.push_back(any ? up_to(9) : stride * (1 + up_to(1)));
      stride = view.strides.back() * std::max<int64_t>(view.sizes.back(), 1);
    }
    std::shuffle(view.sizes.begin(), view.sizes.end(), std::mt19937(1));  // the same permutation for both
    std::shuffle(view.strides.begin(), view.strides.end(), std::mt19937(1));
    return view;
  }

 private:
  std::mt19937 random_;
};

std::set<int64_t> bytes_of(const OwnedView& view) {
  std::set<int64_t> bytes;
  for (const int64_t begin : view.elements()) {
    for (int64_t i = 0; i < view.itemsize; ++i) bytes.insert(begin + i);
  }
  return bytes;
}

TEST(AliasAnalysis, OverlapIsThatOfTheSetsOfBytes) {
  int undecided = 0;
  int counts[3] = {};
  for (uint32_t seed = 0; seed < 40000; ++seed) {
    Geometries geometries(seed);
    const OwnedView a = geometries.next();
    OwnedView b = geometries.next();
    if (seed % 8 == 0) b.itemsize = a.itemsize;
    if (seed % 64 == 0) b = a;
    const std::set<int64_t> x = bytes_of(a);
    const std::set<int64_t> y = bytes_of(b);
    const bool common = std::any_of(x.begin(), x.end(), [&](int64_t byte) { return y.contains(byte); });
    const bool same = common && a.itemsize == b.itemsize && a.sizes == b.sizes && a.elements() == b.elements();
    const Overlap expected = !common ? Overlap::kNone : same ? Overlap::kSame : Overlap::kPartial;
    const Overlap found = overlap(a.view(), b.view());
    if (found == Overlap::kMay) {
      ++undecided;
      continue;
    }
    ASSERT_EQ(to_string(found), to_string(expected)) << "seed " << seed << "\n" << a.text() << "\n" << b.text();
    ASSERT_EQ(overlap(b.view(), a.view()), found) << "seed " << seed << ": not symmetric";
    ++counts[static_cast<size_t>(found)];
  }
  // Undecided only if both views visit some elements twice, in orders that do not nest.
  EXPECT_LT(undecided, 40000 / 25);
  for (const int count : counts) EXPECT_GT(count, 500);
}

TEST(AliasAnalysis, InternalOverlapAndDensityAreThoseOfTheElements) {
  int dense_ones = 0;
  for (uint32_t seed = 0; seed < 20000; ++seed) {
    Geometries geometries(seed);
    const OwnedView a = geometries.next();
    const auto elements = a.elements();
    const std::set<int64_t> places(elements.begin(), elements.end());
    const bool twice = places.size() != elements.size();
    ASSERT_EQ(internal_overlap(a.view()), twice ? Overlap::kPartial : Overlap::kNone) << "seed " << seed << "\n"
                                                                                      << a.text();
    const bool dense = elements.empty() || (!twice && *places.rbegin() - *places.begin() ==
                                                          static_cast<int64_t>(places.size() - 1) * a.itemsize);
    ASSERT_EQ(is_dense(a.view()), dense) << "seed " << seed << "\n" << a.text();
    dense_ones += dense;
  }
  EXPECT_GT(dense_ones, 1000);
}

TEST(AliasAnalysis, LargeViewsAreDecidedWithoutLookingAtEachElement) {
  // Rows of a matrix with 2^40 elements: the even columns and the odd columns.
  const int64_t many = int64_t{1} << 20;
  const OwnedView even{{many, many / 2}, {many, 2}, 0, 4};
  const OwnedView odd{{many, many / 2}, {many, 2}, 1, 4};
  EXPECT_EQ(overlap(even.view(), odd.view()), Overlap::kNone);
  const OwnedView upper{{many / 2, many}, {many, 1}, 0, 4};
  const OwnedView lower{{many / 2, many}, {many, 1}, many / 2 * many, 4};
  EXPECT_EQ(overlap(upper.view(), lower.view()), Overlap::kNone);
  EXPECT_EQ(overlap(upper.view(), even.view()), Overlap::kPartial);
  const OwnedView column{{many}, {many}, 3, 4};
  const OwnedView row{{many}, {1}, 5 * many, 4};
  EXPECT_EQ(overlap(column.view(), row.view()), Overlap::kPartial);
  const OwnedView left{{2000, 3}, {many, 1}, 0, 4};
  const OwnedView right{{2000, 3}, {many, 1}, 3, 4};
  EXPECT_EQ(overlap(left.view(), right.view()), Overlap::kNone);
  const OwnedView window{{many, 3}, {1, 1}, 0, 4};
  EXPECT_EQ(internal_overlap(window.view()), Overlap::kMay);
  EXPECT_TRUE(is_dense(upper.view()));
  EXPECT_FALSE(is_dense(even.view()));
}

TEST(AliasAnalysis, ValuesOfAGraph) {
  const Graph graph = parse(
      "shadowgraph 1 libtorch 2.13.0\n"
      "operator aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> "
      "Tensor(a)\n"
      "operator aten::t(Tensor(a) self) -> Tensor(a)\n"
      "operator aten::relu(Tensor self) -> Tensor\n"
      "operator aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)\n"
      "s0 = 64 cpu input\ns1 = 64 cpu temporary\n"
      "%0 = sg::input(name=\"x\") : f32[4,4] @s0\n"
      "%1 = aten::slice.Tensor(self=%0, dim=0, start=0, end=2) : f32[2,4] @s0\n"
      "%2 = aten::slice.Tensor(self=%0, dim=0, start=2, end=4) : f32[2,4] @s0+8\n"
      "%3 = aten::t(self=%0) : f32[4,4]{1,4} @s0\n"
      "%4 = aten::t(self=%3) : f32[4,4] @s0\n"
      "%5 = aten::relu(self=%0) : f32[4,4] @s1\n"
      "%6 = aten::slice.Tensor(self=%5, dim=0, start=0, end=1) : f32[1,4] @s1\n"
      "%7 = aten::expand(self=%6, size=[4, 4]) : f32[4,4]{0,1} @s1\n");
  const AliasAnalysis aliases = AliasAnalysis::of(graph);
  const auto value = [](uint32_t i) { return ValueId(i); };
  EXPECT_EQ(aliases.relation(value(1), value(2)), Overlap::kNone);
  EXPECT_EQ(aliases.relation(value(0), value(1)), Overlap::kPartial);
  EXPECT_EQ(aliases.relation(value(0), value(3)), Overlap::kPartial);
  EXPECT_EQ(aliases.relation(value(0), value(4)), Overlap::kSame);
  EXPECT_EQ(aliases.relation(value(0), value(5)), Overlap::kNone);
  EXPECT_EQ(aliases.internal(value(7)), Overlap::kPartial);
  EXPECT_EQ(aliases.internal(value(3)), Overlap::kNone);
  EXPECT_EQ(aliases.bytes_used(StorageId(0)), (std::pair<int64_t, int64_t>(0, 64)));
}

}  // namespace
}  // namespace shadowgraph
