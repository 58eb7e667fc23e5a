// Compares eager and deferred construction; shared by the suites in tests/core/deferred.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Formatting.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "core/deferred/random_streams.h"
#include "core/fake/fake_tensor_impl.h"
#include "shadowgraph/deferred/deferred.h"
#include "shadowgraph/error.h"

namespace shadowgraph::testing {

using Tensors = std::vector<at::Tensor>;

inline RandomState process_state() { return RandomState::of(at::detail::getDefaultCPUGenerator()); }

// Bitwise equality, NaNs included.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || a.strides() != b.strides() ||
      a.storage_offset() != b.storage_offset() || a.device() != b.device() || a.requires_grad() != b.requires_grad()) {
    return false;
  }
  const at::Tensor x = a.detach().resolve_conj().resolve_neg().contiguous();
  const at::Tensor y = b.detach().resolve_conj().resolve_neg().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Compares the tensors and the generator state that `make` leaves in eager with deferring it and materializing its
// results in `order` (indices into the returned tensors).
inline void expect_as_eager(const std::function<Tensors()>& make, const std::vector<size_t>& order,
                            const std::string& what = "", uint64_t seed = 17) {
  at::manual_seed(seed);
  const Tensors eager = make();
  const RandomState left = process_state();
  at::manual_seed(seed);
  const Tensors described = deferred_init(make);
  EXPECT_TRUE(process_state() == left) << what << ": generator state after deferred_init";
  ASSERT_EQ(described.size(), eager.size());
  for (const size_t i : order) {
    materialize_tensor(described[i]);
    EXPECT_FALSE(is_fake(described[i]));
    EXPECT_TRUE(same_bits(described[i], eager[i])) << what << ": tensor " << i << "\n" << described[i] << eager[i];
  }
  EXPECT_TRUE(process_state() == left) << what << ": materializing advanced the generator";
  // Tied and aliasing tensors are the same as in eager.
  for (const size_t i : order) {
    for (const size_t j : order) {
      if (!eager[i].defined() || !eager[j].defined()) continue;
      EXPECT_EQ(described[i].is_same(described[j]), eager[i].is_same(eager[j])) << what << ": " << i << " and " << j;
      EXPECT_EQ(described[i].is_alias_of(described[j]), eager[i].is_alias_of(eager[j]))
          << what << ": " << i << " and " << j;
    }
  }
}

inline void expect_as_eager_in_every_order(const std::function<Tensors()>& make, const std::string& what = "") {
  at::manual_seed(1);
  std::vector<size_t> order(make().size());
  std::iota(order.begin(), order.end(), 0U);
  do {
    expect_as_eager(make, order, what);
    if (::testing::Test::HasFailure()) return;
  } while (std::next_permutation(order.begin(), order.end()));
}

// Materializes each tensor first once, followed by the rest in program order, and all in reverse; for programs with too
// many orders to try them all.
inline void expect_as_eager_in_some_orders(const std::function<Tensors()>& make, const std::string& what = "") {
  at::manual_seed(1);
  std::vector<size_t> order(make().size());
  std::iota(order.begin(), order.end(), 0U);
  for (size_t i = 0; i < order.size(); ++i) {
    expect_as_eager(make, order, what);
    expect_as_eager(make, {order.rbegin(), order.rend()}, what);
    if (::testing::Test::HasFailure()) return;
    std::rotate(order.begin(), order.begin() + 1, order.end());
  }
}

template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "wrong exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace shadowgraph::testing
