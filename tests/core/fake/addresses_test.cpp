#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

TEST(Addresses, AreDistinctForEachStorage) {
  const at::Tensor real = at::ones({2});
  const FakeTensorMode mode;
  const at::Tensor a = at::empty({1 << 18, 1 << 18});  // 256 GiB
  const at::Tensor b = at::empty({3}, at::kDouble);
  EXPECT_FALSE(has_fake_address(a.storage()));
  const uintptr_t address = fake_address(a.storage());
  EXPECT_TRUE(has_fake_address(a.storage()));
  EXPECT_EQ(fake_address(a.t().slice(0, 3).storage()), address);
  const uintptr_t other = fake_address(b.storage());
  EXPECT_TRUE(other >= address + a.storage().nbytes() || address >= other + b.storage().nbytes());
  EXPECT_LT(other, uintptr_t{1} << 63);
  EXPECT_EQ(fake_address(at::empty({0}).storage()), 0);
  EXPECT_THROW(fake_address(real.storage()), Error);
  EXPECT_FALSE(has_fake_address(real.storage()));
  b.fill_(3);  // contents are known, then unknown
  b.uniform_();
  EXPECT_EQ(fake_address(b.storage()), other);
}

TEST(AddressesDeathTest, HaveNoMemory) {
  const FakeTensorMode mode;
  const uintptr_t address = fake_address(at::empty({3}).storage());
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1, "");
}

}  // namespace
}  // namespace shadowgraph
