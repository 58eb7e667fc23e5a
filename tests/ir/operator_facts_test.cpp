// Checks ir/operators/: runs operators on real tensors, and holds every fact against what happened.
//
// Each call runs several times on the same arguments, with the generator seeded alike. Memory is filled with another
// byte before it is handed out, or contents differ. So a result that depends on what it must not depend on shows.
#include "ir/operators/operator_facts.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "ir/operators/operator_forms.h"
#include "ir/operators/operator_name.h"
#include "ir/operators/operator_table.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph::operator_facts_test {
namespace {

using c10::IValue;
using Arguments = std::vector<IValue>;
using Ints = std::vector<int64_t>;

const IValue kNo;

// ---- What is run ---------------------------------------------------------------------------------------------------

struct Call {
  std::string name;  // with overload
  std::function<Arguments()> arguments;
  // False: what is said to be written may stay as it is, in a case that the schema cannot tell.
  bool exactly = true;
};

at::Tensor x() { return at::rand({3, 4}) + 0.5; }
at::Tensor y() { return at::rand({3, 4}) + 1.5; }
at::Tensor complex_numbers() { return at::complex(x(), y()); }
at::Tensor quantized() { return at::quantize_per_tensor(x(), 0.1, 3, at::kQInt8); }
at::Tensor batch() { return at::rand({4, 3, 5, 5}) + 2; }
at::Tensor ones(int64_t n = 3) { return at::ones({n}); }
at::Tensor zeros(int64_t n = 3) { return at::zeros({n}); }
std::vector<at::Tensor> two() { return {x(), y()}; }

void add_batch_norms(std::vector<Call>& calls) {
  for (const bool training : {true, false}) {
    const auto add = [&](const char* name, std::vector<IValue> more) {
      calls.push_back({name, [=] {
                         Arguments arguments{batch(), ones(), zeros(), zeros(), ones(), training, 0.1, 1e-5};
                         arguments.insert(arguments.end(), more.begin(), more.end());
                         return arguments;
                       }});
    };
    add("aten::batch_norm", {false});
    add("aten::native_batch_norm", {});
    add("aten::_native_batch_norm_legit", {});
    add("aten::_batch_norm_impl_index", {false});
    add("aten::instance_norm", {false});
    calls.push_back({"aten::_native_batch_norm_legit.out",
                     [=] {
                       return Arguments{batch(), ones(), zeros(), zeros(), ones(), training,
                                        0.1,     1e-5,   batch(), ones(),  ones()};
                     },
                     false});
  }
  const auto with_update = [] { return Arguments{batch(), ones(), zeros(), zeros(), ones(), 0.1, 1e-5}; };
  calls.push_back({"aten::_batch_norm_with_update", with_update});
  calls.push_back({"aten::_batch_norm_no_update", with_update});
  calls.push_back(
      {"aten::_native_batch_norm_legit.no_stats", [] { return Arguments{batch(), ones(), zeros(), true, 0.1, 1e-5}; }});
  calls.push_back({"aten::batch_norm_update_stats", [] { return Arguments{batch(), zeros(), ones(), 0.1}; }});
  calls.push_back({"aten::native_layer_norm", [] { return Arguments{batch(), Ints{5, 5}, kNo, kNo, 1e-5}; }});
}

void add_noise_and_observers(std::vector<Call>& calls) {
  const at::Scalar lower(0.1), upper(0.3);
  for (const bool training : {true, false}) {
    const auto noise = [=] { return Arguments{-at::rand({8}), at::zeros({8}), lower, upper, training, kNo}; };
    calls.push_back({"aten::rrelu_with_noise", noise, training});
    calls.push_back({"aten::rrelu_with_noise_", noise, false});
    calls.push_back({"aten::rrelu_with_noise.out",
                     [=] {
                       Arguments arguments = noise();
                       arguments.emplace_back(at::zeros({8}));
                       return arguments;
                     },
                     training});
  }
  const auto observed = [] {
    return Arguments{at::randn({6}),
                     at::ones({1}, at::kLong),
                     at::ones({1}, at::kLong),
                     at::zeros({1}),
                     at::zeros({1}),
                     at::ones({1}),
                     at::full({1}, 3, at::kInt),
                     0.01,
                     0,
                     255,
                     -1,
                     false,
                     false};
  };
  calls.push_back({"aten::_fused_moving_avg_obs_fq_helper", observed});
  calls.push_back({"aten::fused_moving_avg_obs_fake_quant", observed});
  calls.push_back({"aten::embedding_renorm_", [] {
                     return Arguments{at::randn({4, 3}) * 10, at::zeros({2}, at::kLong), 1.0, 2.0};
                   }});
}

void add_views(std::vector<Call>& calls) {
  const auto add = [&](const char* name, std::function<Arguments()> arguments) {
    calls.push_back({name, std::move(arguments)});
  };
  const Ints flat{12};
  add("aten::_unsafe_view", [=] { return Arguments{x(), flat}; });
  add("aten::unsafe_split.Tensor", [] { return Arguments{x(), 2}; });
  add("aten::unsafe_split_with_sizes", [] { return Arguments{x(), Ints{1, 2}}; });
  add("aten::unsafe_chunk", [] { return Arguments{x(), 2}; });
  add("aten::view", [=] { return Arguments{x(), flat}; });
  add("aten::t", [] { return Arguments{x()}; });
  add("aten::detach", [] { return Arguments{x()}; });
  add("aten::alias", [] { return Arguments{x()}; });
  add("aten::as_strided", [=] { return Arguments{x(), flat, Ints{1}}; });
  add("aten::split.Tensor", [] { return Arguments{x(), 2}; });
  add("aten::unbind.int", [] { return Arguments{x()}; });
  add("aten::expand", [] { return Arguments{x(), Ints{2, 3, 4}}; });
  add("aten::squeeze", [] { return Arguments{x()}; });
  add("aten::real", [] { return Arguments{x()}; });
  add("aten::lift_fresh", [] { return Arguments{x()}; });
  add("aten::lift", [] { return Arguments{x()}; });
  for (const bool transposed : {false, true}) {
    const auto source = [=] { return transposed ? x().t() : x(); };
    add("aten::reshape", [=] { return Arguments{source(), flat}; });
    add("aten::reshape_as", [=] { return Arguments{source(), at::zeros({12})}; });
    add("aten::contiguous", [=] { return Arguments{source()}; });
    add("aten::flatten.using_ints", [=] { return Arguments{source()}; });
    add("aten::ravel", [=] { return Arguments{source()}; });
    add("aten::to.dtype", [=] { return Arguments{x(), transposed ? at::kDouble : at::kFloat}; });
  }
  for (const bool training : {false, true}) {
    const auto dropped = [=] { return Arguments{at::rand({2, 3, 4}) + 0.5, 0.5, training}; };
    for (const char* name : {"aten::dropout", "aten::feature_dropout", "aten::alpha_dropout",
                             "aten::feature_alpha_dropout", "aten::native_dropout"}) {
      add(name, dropped);
    }
  }
  add("aten::broadcast_tensors", [] { return Arguments{two()}; });
  add("aten::meshgrid", [] { return Arguments{std::vector<at::Tensor>{ones(2), ones(3)}}; });
  for (const char* name : {"aten::atleast_1d.Sequence", "aten::atleast_2d.Sequence", "aten::atleast_3d.Sequence"}) {
    add(name, [] { return Arguments{std::vector<at::Tensor>{ones(2), ones(3)}}; });
  }
  for (const char* name :
       {"aten::_conj", "aten::conj", "aten::adjoint", "aten::mH", "aten::matrix_H", "aten::_neg_view", "aten::t"}) {
    add(name, [] { return Arguments{complex_numbers()}; });
  }
  add("aten::conj", [] { return Arguments{x()}; });
  add("aten::adjoint", [] { return Arguments{x()}; });
  add("aten::_neg_view", [] { return Arguments{x()}; });
}

void add_objects(std::vector<Call>& calls) {
  const auto add = [&](const char* name, std::function<Arguments()> arguments) {
    calls.push_back({name, std::move(arguments)});
  };
  add("aten::set_", [] { return Arguments{x()}; });
  add("aten::set_.source_Tensor", [] { return Arguments{x(), y()}; });
  add("aten::set_.source_Tensor_storage_offset", [] { return Arguments{x(), y(), 0, Ints{2, 2}, Ints{2, 1}}; });
  add("aten::set_data", [] { return Arguments{x(), y()}; });
  add("aten::resize", [] { return Arguments{x(), Ints{5, 6}, kNo}; });
  add("aten::resize_", [] { return Arguments{x(), Ints{5, 6}, kNo}; });
  add("aten::resize_as", [] { return Arguments{x(), at::zeros({5, 6}), kNo}; });
  add("aten::resize_as_", [] { return Arguments{x(), at::zeros({5, 6}), kNo}; });
  add("aten::t_", [] { return Arguments{x()}; });
  add("aten::unsqueeze_", [] { return Arguments{x(), 0}; });
}

void add_overwriting(std::vector<Call>& calls) {
  const auto add = [&](const char* name, std::function<Arguments()> arguments) {
    calls.push_back({name, std::move(arguments)});
  };
  add("aten::zero_", [] { return Arguments{x()}; });
  add("aten::fill_.Scalar", [] { return Arguments{x(), 3}; });
  add("aten::fill_.Tensor", [] { return Arguments{x(), at::scalar_tensor(3)}; });
  add("aten::copy_", [] { return Arguments{x(), y(), false}; });
  add("aten::copy_", [] { return Arguments{x(), at::rand({4}).to(at::kDouble), false}; });
  add("aten::_to_copy", [] { return Arguments{x(), at::kDouble}; });
  for (const char* name : {"aten::uniform_", "aten::normal_", "aten::random_", "aten::bernoulli_.float",
                           "aten::exponential_", "aten::cauchy_", "aten::log_normal_"}) {
    add(name, [] { return Arguments{x()}; });
  }
  add("aten::random_.to", [] { return Arguments{x(), 100}; });
  add("aten::random_.from", [] { return Arguments{x(), -100, 100}; });
  add("aten::geometric_", [] { return Arguments{x(), 0.25}; });
  add("aten::bernoulli_.Tensor", [] { return Arguments{x(), at::full({3, 4}, 0.5)}; });
}

void add_factories(std::vector<Call>& calls) {
  const auto add = [&](const char* name, std::function<Arguments()> arguments) {
    calls.push_back({name, std::move(arguments)});
  };
  const Ints size{3, 4};
  for (const char* name : {"aten::zeros", "aten::ones", "aten::rand", "aten::randn", "aten::empty.memory_format"}) {
    add(name, [=] { return Arguments{size}; });
  }
  add("aten::full", [=] { return Arguments{size, 3}; });
  add("aten::scalar_tensor", [] { return Arguments{3}; });
  add("aten::arange", [] { return Arguments{7}; });
  add("aten::arange.start_step", [] { return Arguments{1, 7, 2}; });
  add("aten::range", [] { return Arguments{1, 7}; });
  add("aten::linspace", [] { return Arguments{0, 1, 5}; });
  add("aten::logspace", [] { return Arguments{0, 1, 5}; });
  add("aten::linspace.Tensor_Tensor", [] { return Arguments{at::scalar_tensor(0), at::scalar_tensor(1), 5}; });
  add("aten::eye", [] { return Arguments{3}; });
  add("aten::tril_indices", [] { return Arguments{3, 4}; });
  add("aten::triu_indices", [] { return Arguments{3, 4}; });
  add("aten::randperm", [] { return Arguments{20}; });
  add("aten::randint", [=] { return Arguments{100, size}; });
  for (const char* name :
       {"aten::zeros_like", "aten::ones_like", "aten::rand_like", "aten::randn_like", "aten::empty_like"}) {
    add(name, [] { return Arguments{x()}; });
  }
  add("aten::full_like", [] { return Arguments{x(), 3}; });
  add("aten::randint_like", [] { return Arguments{x(), 100}; });
  add("aten::randint_like.low_dtype", [] { return Arguments{x(), 5, 100}; });
  add("aten::randint_like.Tensor", [] { return Arguments{x(), at::scalar_tensor(100, at::kLong)}; });
  for (const char* name : {"aten::new_zeros", "aten::new_ones", "aten::new_empty"}) {
    add(name, [=] { return Arguments{x(), Ints{2, 5}}; });
  }
  add("aten::new_full", [] { return Arguments{x(), Ints{2, 5}, 3}; });
  add("aten::new_empty_strided", [] { return Arguments{x(), Ints{2, 5}, Ints{5, 1}}; });
  add("aten::empty_strided", [] { return Arguments{Ints{2, 5}, Ints{5, 1}}; });
  add("aten::empty_permuted", [] { return Arguments{Ints{2, 5}, Ints{1, 0}}; });
  add("aten::empty_quantized", [=] { return Arguments{size, quantized()}; });
  add("aten::_empty_affine_quantized", [=] { return Arguments{size, at::kQInt8}; });
  add("aten::_empty_per_channel_affine_quantized", [=] {
    return Arguments{size, ones(), at::zeros({3}, at::kLong), 0, at::kQInt8};
  });
}

void add_host_reads(std::vector<Call>& calls) {
  const auto add = [&](const char* name, std::function<Arguments()> arguments) {
    calls.push_back({name, std::move(arguments)});
  };
  add("aten::sym_size.int", [] { return Arguments{x(), 1}; });
  add("aten::sym_stride.int", [] { return Arguments{x(), 0}; });
  add("aten::sym_numel", [] { return Arguments{x()}; });
  add("aten::sym_storage_offset", [] { return Arguments{x()}; });
  for (const char* name : {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"}) {
    add(name, [] { return Arguments{at::scalar_tensor(0)}; });
  }
  for (const char* name : {"aten::equal", "aten::allclose"}) {
    add(name, [] { return Arguments{ones(), ones()}; });
  }
  add("aten::_nested_tensor_from_mask_left_aligned", [] {
    return Arguments{at::rand({1, 3, 2}), at::tensor({1, 1, 0}).to(at::kBool).reshape({1, 3})};
  });
}

void add_forms(std::vector<Call>& calls) {
  const auto add = [&](const char* name, std::function<Arguments()> arguments) {
    calls.push_back({name, std::move(arguments)});
  };
  add("aten::add.Tensor", [] { return Arguments{x(), y(), 1}; });
  add("aten::add_.Tensor", [] { return Arguments{x(), y(), 1}; });
  add("aten::add.out", [] { return Arguments{x(), y(), 1, x()}; });
  add("aten::relu_", [] { return Arguments{x() - 1}; });
  add("aten::clone", [] { return Arguments{x()}; });
  add("aten::mm.out", [] { return Arguments{x(), x().t(), at::zeros({3, 3})}; });
  add("aten::max.dim_max", [] { return Arguments{x(), 1, false, zeros(), at::zeros({3}, at::kLong)}; });
  add("aten::arange.start_out", [] { return Arguments{1, 7, 2, zeros()}; });
  add("aten::zeros_like.out", [] { return Arguments{x(), kNo, x()}; });
  add("aten::full.out", [] { return Arguments{Ints{3, 4}, 3, x()}; });
  add("aten::normal.float_float_out", [] { return Arguments{0.0, 1.0, Ints{3, 4}, kNo, x()}; });
  add("aten::normal_functional", [] { return Arguments{x()}; });
  add("aten::_foreach_add_.Scalar", [] { return Arguments{two(), 1}; });
  add("aten::_foreach_add.Scalar_out", [] { return Arguments{two(), 1, two()}; });
  add("aten::_foreach_mul.List", [] { return Arguments{two(), two()}; });
  const auto adam = [](bool out) {
    return [=] {
      const auto steps = [] { return std::vector<at::Tensor>{at::ones({}), at::ones({})}; };
      const auto squares = [] { return std::vector<at::Tensor>{x(), y()}; };
      Arguments arguments{two(), two(), two(), squares(), squares(), steps(), 0.1, 0.9,
                          0.99,  0.01,  1e-8,  true,      false,     kNo,     kNo};
      if (out) arguments.emplace_back(two());
      return arguments;
    };
  };
  calls.push_back({"aten::_fused_adamw_", adam(false), false});  // gradients only when they are scaled
  add("aten::_fused_adamw", adam(false));
  calls.push_back({"aten::_fused_adamw.out", adam(true), false});
}

const std::vector<Call>& all_calls() {
  static const std::vector<Call> calls = [] {
    std::vector<Call> all;
    add_batch_norms(all);
    add_noise_and_observers(all);
    add_views(all);
    add_objects(all);
    add_overwriting(all);
    add_factories(all);
    add_host_reads(all);
    add_forms(all);
    return all;
  }();
  return calls;
}

// Rows whose operators cannot be run like the rest.
struct NotRun {
  const char* row;
  const char* why;
};
constexpr NotRun kNotRun[] = {
    {"aten::cudnn_batch_norm", "needs a GPU"},
    {"aten::miopen_batch_norm", "needs a GPU of AMD's"},
    {"aten::_cudnn_rnn", "needs a GPU"},
    {"aten::batch_norm_gather_stats", "needs a GPU: there is no kernel for the CPU"},
    {"aten::batch_norm_gather_stats_with_counts", "needs a GPU: there is no kernel for the CPU"},
    {"aten::_resize_output", "there is no kernel for the CPU"},
    {"aten::_resize_output_", "there is no kernel for the CPU"},
    {"aten::resize_as_sparse", "on sparse tensors: SparseTensorsAreResized"},
    {"aten::resize_as_sparse_", "on sparse tensors: SparseTensorsAreResized"},
    {"c10d::broadcast_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allreduce_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allreduce_coalesced_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allgather_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::_allgather_base_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allgather_coalesced_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::allgather_into_tensor_coalesced_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::reduce_scatter_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::_reduce_scatter_base_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::reduce_scatter_tensor_coalesced_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::reduce_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::gather_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::scatter_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::alltoall_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::alltoall_base_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::recv_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"c10d::recv_any_source_", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"_c10d_functional::wait_tensor", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"_c10d_functional::isend", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"_c10d_functional::irecv", "needs a process group: tests/core/capture/collectives_test.cpp"},
    {"_c10d_functional::batch_p2p_ops", "needs a process group: tests/core/capture/collectives_test.cpp"},
};

// ---- How it is run -------------------------------------------------------------------------------------------------

// Hands out memory that holds `byte` everywhere. Storages remember who gave them their memory, and ask again to grow:
// never destroyed.
class PoisonAllocator final : public c10::Allocator {
 public:
  explicit PoisonAllocator(int byte) : byte_(byte) {}
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = c10::GetDefaultCPUAllocator()->allocate(bytes);
    if (bytes != 0) std::memset(data.get(), byte_, bytes);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  int byte_;
};

class PoisonedMemory {
 public:
  explicit PoisonedMemory(int byte) : before_(c10::GetCPUAllocator()) {
    static std::map<int, c10::Allocator*> known;
    c10::Allocator*& allocator = known[byte];
    if (allocator == nullptr) allocator = new PoisonAllocator(byte);
    c10::SetCPUAllocator(allocator, kPriority);
  }
  ~PoisonedMemory() { c10::SetCPUAllocator(before_, kPriority); }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;

 private:
  static constexpr uint8_t kPriority = 100;
  c10::Allocator* before_;
};
constexpr int kPoison = 0x5A;
constexpr int kOtherPoison = 0x3C;

c10::OperatorHandle operator_of(const std::string& name) { return find_operator(name).value(); }
Target target_of_name(const std::string& name) { return Target(TargetKind::kOperator, operator_of(name).schema()); }

std::vector<at::Tensor> tensors_in(const IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? std::vector{value.toTensor()} : std::vector<at::Tensor>();
  std::vector<at::Tensor> found;
  if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      for (const at::Tensor& t : tensors_in(element)) found.push_back(t);
    }
  }
  return found;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor p = a.resolve_conj().resolve_neg().contiguous();
  const at::Tensor q = b.resolve_conj().resolve_neg().contiguous();
  return p.numel() == 0 || std::memcmp(p.const_data_ptr(), q.const_data_ptr(), p.numel() * p.itemsize()) == 0;
}
bool same_contents(const IValue& a, const IValue& b) {
  const auto p = tensors_in(a);
  const auto q = tensors_in(b);
  if (!p.empty() || !q.empty()) return std::equal(p.begin(), p.end(), q.begin(), q.end(), same_bytes);
  if (a.isTensor() || a.isNone() || a.isList()) return a.tagKind() == b.tagKind();
  if (a.isDouble()) return a.toDouble() == b.toDouble();
  if (a.isBool()) return a.toBool() == b.toBool();
  return a.toScalar().toLong() == b.toScalar().toLong();
}
bool same_contents(const std::vector<IValue>& a, const std::vector<IValue>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const IValue& p, const IValue& q) { return same_contents(p, q); });
}

// Other contents of the same dtype and geometry, in place; the first element alone, or all.
void change(const at::Tensor& tensor, bool only_first = false) {
  if (tensor.numel() == 0 || tensor.is_quantized()) return;
  const at::Tensor part = only_first ? tensor.flatten().narrow(0, 0, 1) : tensor;
  if (part.scalar_type() == at::kBool) {
    part.logical_not_();
  } else {
    part.add_(1);
  }
}

struct Geometry {
  Ints sizes, strides;
  const void* storage = nullptr;
  friend bool operator==(const Geometry&, const Geometry&) = default;
};
Geometry geometry_now(const at::Tensor& t) {
  return {t.sizes().vec(), t.strides().vec(), t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()};
}

// One run and what it left.
struct Outcome {
  Arguments arguments;  // after it
  std::vector<IValue> results;
  std::set<size_t> written;
  std::set<std::pair<size_t, size_t>> aliases;  // result, argument
  bool drew = false;
  bool moved_objects = false;  // an argument has another geometry or storage
  bool moved_storage = false;  // another storage
  bool moved_sizes = false;    // an argument or result has other sizes than the first argument had
};

constexpr uint64_t kArgumentSeed = 11;
constexpr uint64_t kCallSeed = 23;

Arguments made_arguments(const c10::FunctionSchema& schema, const std::function<Arguments()>& make,
                         int poison = kPoison) {
  const PoisonedMemory poisoned(poison);
  at::manual_seed(kArgumentSeed);
  Arguments arguments = make();
  for (size_t i = arguments.size(); i < schema.arguments().size(); ++i) {
    arguments.push_back(schema.arguments()[i].default_value().value());
  }
  return arguments;
}

using Prepare = std::function<void(Arguments&)>;

// Missing arguments are the schema's defaults.
Outcome run_call(const std::string& name, const std::function<Arguments()>& make, int poison = kPoison,
                 const Prepare& prepare = nullptr, uint64_t seed = kCallSeed) {
  const c10::OperatorHandle op = operator_of(name);
  Outcome run;
  run.arguments = made_arguments(op.schema(), make, poison);
  if (prepare) prepare(run.arguments);
  std::vector<std::vector<at::Tensor>> before;
  std::vector<Geometry> geometry;
  for (const IValue& argument : run.arguments) {
    before.emplace_back();
    for (const at::Tensor& t : tensors_in(argument)) {
      before.back().push_back(t.clone());
      geometry.push_back(geometry_now(t));
    }
  }
  at::manual_seed(seed);
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  run.results = run.arguments;
  {
    const PoisonedMemory poisoned(poison);
    op.callBoxed(run.results);
  }
  run.drew = !at::equal(state, at::detail::getDefaultCPUGenerator().get_state());
  size_t k = 0;
  for (size_t i = 0; i < run.arguments.size(); ++i) {
    const auto tensors = tensors_in(run.arguments[i]);
    for (size_t t = 0; t < tensors.size(); ++t, ++k) {
      if (!same_bytes(tensors[t], before[i][t])) run.written.insert(i);
      const Geometry now = geometry_now(tensors[t]);
      run.moved_objects |= !(now == geometry[k]);
      run.moved_storage |= now.storage != geometry[k].storage;
      run.moved_sizes |= now.sizes != geometry[k].sizes;
      for (size_t r = 0; r < run.results.size(); ++r) {
        for (const at::Tensor& out : tensors_in(run.results[r])) {
          if (out.is_alias_of(tensors[t]) && out.nbytes() != 0) run.aliases.insert({r, i});
        }
      }
    }
  }
  for (const IValue& result : run.results) {
    for (const at::Tensor& out : tensors_in(result)) {
      run.moved_sizes |= !geometry.empty() && out.sizes().vec() != geometry[0].sizes;
    }
  }
  return run;
}

// What the arguments hold of what is written, and the results.
std::vector<IValue> left_by(const Outcome& run, const OperatorFacts& facts) {
  std::vector<IValue> all = run.results;
  for (const uint16_t position : facts.written) all.push_back(run.arguments[position]);
  return all;
}

class OperatorCalls : public ::testing::Test {
 protected:
  template <class Check>
  void for_each_call(Check&& check) {
    for (const Call& call : all_calls()) {
      SCOPED_TRACE(toString(operator_of(call.name).schema()));
      const Target target = target_of_name(call.name);
      check(call, target.facts());
    }
  }
};

// ---- What is held against the facts --------------------------------------------------------------------------------

TEST_F(OperatorCalls, WriteAndAliasWhatTheFactsSay) {
  for_each_call([](const Call& call, const OperatorFacts& facts) {
    const Outcome run = run_call(call.name, call.arguments);
    std::set<size_t> said(facts.written.begin(), facts.written.end());
    if (facts.write_condition >= 0 && !run.arguments.at(facts.write_condition).toBool()) said.clear();
    if (call.exactly) {
      EXPECT_EQ(run.written, said);
    } else {
      EXPECT_TRUE(std::includes(said.begin(), said.end(), run.written.begin(), run.written.end()));
    }
    for (const auto& [result, argument] : run.aliases) {
      EXPECT_TRUE(
          std::any_of(facts.aliases.begin(), facts.aliases.end(),
                      [&](const OperatorFacts::Alias& a) { return a.result == result && a.argument == argument; }))
          << "result " << result << " aliases argument " << argument;
    }
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      if (!alias.always || tensors_in(run.arguments.at(alias.argument)).empty()) continue;
      EXPECT_TRUE(run.aliases.contains({alias.result, alias.argument})) << "result " << alias.result << " is fresh";
    }
    if (!facts.is_view) return;
    EXPECT_TRUE(run.written.empty());
    const bool always = std::all_of(facts.aliases.begin(), facts.aliases.end(), [](const auto& a) { return a.always; });
    for (size_t r = 0; always && r < run.results.size(); ++r) {
      EXPECT_TRUE(std::any_of(run.aliases.begin(), run.aliases.end(), [&](const auto& a) { return a.first == r; }));
    }
  });
}

TEST_F(OperatorCalls, OverwriteWhatTheFactsSay) {
  size_t checked = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    if (facts.overwritten.empty()) return;
    ++checked;
    const Outcome run = run_call(call.name, call.arguments);
    const Outcome other = run_call(call.name, call.arguments, kPoison, [&](Arguments& arguments) {
      for (const uint16_t position : facts.overwritten) {
        for (const at::Tensor& t : tensors_in(arguments[position])) change(t);
      }
    });
    EXPECT_TRUE(same_contents(left_by(run, facts), left_by(other, facts)));
  });
  EXPECT_GE(checked, 25U);
}

// Where nodes fill, draw or look at geometry alone, results do not depend on the contents of operands.
TEST_F(OperatorCalls, ReadNoContentsWhereTheFactsSaySo) {
  size_t filling = 0;
  size_t drawing = 0;
  size_t geometry_only = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const bool looks = facts.geometry_only && !facts.is_view;
    if (!facts.fills && !facts.draws && !looks) return;
    filling += facts.fills;
    drawing += facts.draws;
    geometry_only += looks;
    const Outcome run = run_call(call.name, call.arguments);
    const uint64_t seed = facts.fills ? kCallSeed + 1 : kCallSeed;  // what fills draws nothing either
    const auto changed = [&](Arguments& arguments) {
      for (const IValue& argument : arguments) {
        for (const at::Tensor& t : tensors_in(argument)) change(t);
      }
    };
    const Outcome other = run_call(call.name, call.arguments, kPoison, changed, seed);
    EXPECT_TRUE(same_contents(left_by(run, facts), left_by(other, facts)));
    if (facts.draws) {
      const Outcome again = run_call(call.name, call.arguments, kPoison, nullptr, kCallSeed + 1);
      EXPECT_FALSE(same_contents(left_by(run, facts), left_by(again, facts)));
    }
  });
  EXPECT_GE(filling, 20U);
  EXPECT_GE(drawing, 15U);
  EXPECT_GE(geometry_only, 15U);
}

TEST_F(OperatorCalls, DrawFromTheGeneratorWhatTheFactsSay) {
  std::set<std::string> random, drew;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const Outcome run = run_call(call.name, call.arguments);
    EXPECT_TRUE(facts.random || !run.drew);
    EXPECT_TRUE(!facts.draws || run.drew);
    if (facts.random) random.insert(call.name);
    if (run.drew) drew.insert(call.name);
  });
  // Each at least once: dropout does not draw outside training.
  EXPECT_EQ(random, drew);
}

TEST_F(OperatorCalls, LeaveMemoryAsItWasFoundWhereTheFactsSaySo) {
  size_t checked = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const bool found = facts.uninitialised || facts.resizes;
    checked += found;
    const Outcome run = run_call(call.name, call.arguments, kPoison);
    const Outcome other = run_call(call.name, call.arguments, kOtherPoison);
    EXPECT_EQ(same_contents(left_by(run, facts), left_by(other, facts)), !found);
  });
  EXPECT_GE(checked, 13U);
}

// Changing one element changes that element of the result alone.
TEST_F(OperatorCalls, ArePointwiseWhereTheFactsSaySo) {
  size_t checked = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    if (!facts.pointwise || facts.host_read || facts.is_out_variant) return;
    const Outcome run = run_call(call.name, call.arguments);
    if (run.results.empty()) return;  // _foreach_add_
    for (size_t i = 0; i < run.arguments.size(); ++i) {
      const Outcome other = run_call(call.name, call.arguments, kPoison, [&](Arguments& arguments) {
        for (const at::Tensor& t : tensors_in(arguments[i])) change(t, /*only_first=*/true);
      });
      const auto results = tensors_in(run.results[0]);
      const auto others = tensors_in(other.results[0]);
      const auto operands = tensors_in(run.arguments[i]);
      ASSERT_EQ(results.size(), others.size());
      for (size_t t = 0; t < results.size(); ++t) {
        if (t >= operands.size() || operands[t].sizes() != results[t].sizes()) continue;
        ++checked;
        const int64_t n = results[t].numel();
        EXPECT_TRUE(same_bytes(results[t].flatten().narrow(0, 1, n - 1), others[t].flatten().narrow(0, 1, n - 1)));
      }
    }
  });
  EXPECT_GE(checked, 9U);
}

TEST_F(OperatorCalls, GiveTheHostContentsWhereTheFactsSaySo) {
  size_t checked = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const Outcome run = run_call(call.name, call.arguments);
    bool all_tensors = true;
    for (const c10::Argument& result : operator_of(call.name).schema().returns()) {
      all_tensors = all_tensors && (result.type()->kind() == c10::TypeKind::TensorType ||
                                    result.type()->kind() == c10::TypeKind::ListType);
    }
    if (all_tensors) {
      EXPECT_FALSE(facts.host_read);
      return;
    }
    ++checked;
    // _batch_norm_impl_index gives a number that says which kernel ran.
    bool depends = false;
    for (size_t i = 0; i < run.arguments.size() && tensors_in(run.results[0]).empty(); ++i) {
      const Outcome other = run_call(call.name, call.arguments, kPoison, [&](Arguments& arguments) {
        for (const at::Tensor& t : tensors_in(arguments[i])) change(t);
      });
      depends = depends || !same_contents(run.results, other.results);
    }
    EXPECT_EQ(facts.host_read, depends);
  });
  EXPECT_GE(checked, 9U);
}

TEST_F(OperatorCalls, ChangeTensorObjectsWhereTheFactsSaySo) {
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const Outcome run = run_call(call.name, call.arguments);
    EXPECT_EQ(facts.takes_storage, run.moved_storage);
    EXPECT_TRUE(!facts.resizes || run.moved_sizes);
    EXPECT_TRUE(facts.changes_objects || facts.is_out_variant || !run.moved_objects);
    EXPECT_TRUE(facts.changes_objects || (!facts.resizes && !facts.takes_storage));
    EXPECT_TRUE(!facts.changes_objects || facts.written.empty() || run.moved_objects);
  });
}

TEST_F(OperatorCalls, TurnBitsOfViewsWhereTheFactsSaySo) {
  size_t turned = 0;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    if (!facts.is_view) return;
    const Outcome run = run_call(call.name, call.arguments);
    const at::Tensor source = tensors_in(run.arguments[0]).front();
    for (const at::Tensor& view : tensors_in(run.results[0])) {
      if (!view.is_alias_of(source)) continue;
      EXPECT_EQ(view.is_conj() != source.is_conj(), facts.conjugates && source.is_complex());
      EXPECT_EQ(view.is_neg() != source.is_neg(), facts.negates);
      turned += view.is_conj() || view.is_neg();
    }
  });
  EXPECT_EQ(turned, 7U);
}

// set_ gives self another storage and leaves its bits alone, whatever those of its source are.
TEST(IrOperatorFacts, SetKeepsTheBitsOfSelf) {
  at::Tensor self = complex_numbers().conj();
  self.set_(complex_numbers());
  EXPECT_TRUE(self.is_conj());
  at::Tensor plain = complex_numbers();
  plain.set_(complex_numbers().conj());
  EXPECT_FALSE(plain.is_conj());
}

TEST(IrOperatorFacts, SparseTensorsAreResized) {
  const auto sparse = [](int64_t n) { return at::eye(n).to_sparse(); };
  EXPECT_TRUE(target_of_name("aten::resize_as_sparse_").facts().resizes);
  at::Tensor self = at::sparse_coo_tensor({2, 2}, at::kFloat);
  at::resize_as_sparse_(self, sparse(5));
  EXPECT_EQ(self.sizes(), (Ints{5, 5}));
  EXPECT_EQ(at::resize_as_sparse(at::sparse_coo_tensor({2, 2}, at::kFloat), sparse(5)).sizes(), (Ints{5, 5}));
}

// ---- Forms ----------------------------------------------------------------------------------------------------------

std::vector<IValue> run_on(const c10::OperatorHandle& op, Arguments arguments) {
  at::manual_seed(kCallSeed);
  const PoisonedMemory poisoned(kPoison);
  op.callBoxed(arguments);
  return arguments;
}

// Batch norm's `save_mean` outside training.
bool leaves_out_alone(const Outcome& run, const Target& target) {
  const auto& arguments = function_schema(target).arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].is_out() && !run.written.contains(i)) return true;
  }
  return false;
}

TEST_F(OperatorCalls, GiveInTheirFunctionalFormWhatTheyWrite) {
  std::set<std::string> forms;
  for_each_call([&](const Call& call, const OperatorFacts& facts) {
    const Target target = target_of_name(call.name);
    const FunctionalForm* form = functional_form(target);
    if (form == nullptr) return;
    forms.insert(call.name + " " + form->target.name());
    EXPECT_TRUE(form->target.facts().written.empty());
    const Outcome run = run_call(call.name, call.arguments);
    if (facts.write_condition >= 0 && !run.arguments[facts.write_condition].toBool()) return;  // writes nothing
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

TEST_F(OperatorCalls, LeaveInTheirInPlaceFormWhatTheyGive) {
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

TEST_F(OperatorCalls, GiveWithoutOutWhatTheyLeaveThere) {
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

// ---- The table ------------------------------------------------------------------------------------------------------

// A row that names an operator or argument that is not there does nothing, silently: it must not exist.
TEST(OperatorTable, RowsNameOperatorsAndArgumentsThatExist) {
  std::vector<c10::OperatorHandle> all;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (auto op = c10::Dispatcher::singleton().findSchema(name)) all.push_back(*op);
  }
  std::set<std::string_view> names;
  for (const OperatorRow& row : operator_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " has two rows";
    const auto matching = [&](std::string_view name, const std::string& argument) {
      return std::any_of(all.begin(), all.end(), [&](const c10::OperatorHandle& op) {
        const auto& schema = op.schema();
        if (!stands_for(name, full_name(schema))) return false;
        return argument.empty() || schema.argumentIndexWithName(argument).has_value();
      });
    };
    EXPECT_TRUE(matching(row.name, "")) << row.name;
    EXPECT_TRUE(row.functional.empty() || matching(row.functional, "")) << row.functional;
    std::string arguments(row.writes);
    for (const std::string_view more : {row.when, row.alias_of}) arguments += " " + std::string(more);
    std::istringstream stream(arguments);
    for (std::string argument; stream >> argument;) {
      EXPECT_TRUE(matching(row.name, argument)) << row.name << " " << argument;
    }
    const bool corrects = !row.writes.empty() || !row.alias_of.empty() || row.maybe_alias;
    EXPECT_EQ(corrects, !row.why.empty()) << row.name;
  }
}

TEST(OperatorTable, EveryRowIsRunOrSaysWhyNot) {
  std::set<std::string_view> not_run;
  for (const NotRun& row : kNotRun) not_run.insert(row.row);
  for (const OperatorRow& row : operator_table()) {
    const bool run = std::any_of(all_calls().begin(), all_calls().end(),
                                 [&](const Call& call) { return stands_for(row.name, call.name); });
    EXPECT_NE(run, not_run.erase(row.name) == 1) << row.name;
  }
  EXPECT_TRUE(not_run.empty());
  EXPECT_EQ(std::size(kNotRun), 30U);
}

TEST(OperatorTable, NamesStandForOverloads) {
  EXPECT_EQ(without_overload("aten::add.Tensor"), "aten::add");
  EXPECT_EQ(overload_of("aten::add.Tensor"), "Tensor");
  EXPECT_EQ(overload_of("aten::mm"), "");
  EXPECT_EQ(namespace_of("my::op.out"), "my");
  EXPECT_EQ(short_name("aten::add_.Tensor"), "add_");
  EXPECT_EQ(without_underscore("aten::add_"), "aten::add");
  EXPECT_EQ(without_underscore("aten::__iand__"), "aten::__iand__");
  EXPECT_EQ(without_underscore("_"), "_");
  EXPECT_TRUE(stands_for("aten::add", "aten::add.Tensor"));
  EXPECT_TRUE(stands_for("aten::add", "aten::add"));
  EXPECT_TRUE(stands_for("aten::add.Tensor", "aten::add.Tensor"));
  EXPECT_FALSE(stands_for("aten::add.Tensor", "aten::add"));
  EXPECT_FALSE(stands_for("aten::add", "aten::addmm"));
  EXPECT_FALSE(stands_for("aten::add", "aten::add_.Tensor"));
  EXPECT_EQ(operator_name("aten::add.Tensor"), c10::OperatorName("aten::add", "Tensor"));
}

// ---- Facts of schemas -----------------------------------------------------------------------------------------------

OperatorFacts facts_named(const std::string& name) { return target_of_name(name).facts(); }
OperatorFacts facts_of_function(const char* schema) { return Target(TargetKind::kFunction, schema).facts(); }

TEST(IrOperatorFacts, FollowFromSchemas) {
  EXPECT_TRUE(facts_named("aten::add_.Tensor").is_in_place);
  EXPECT_FALSE(facts_named("aten::add_.Tensor").is_out_variant);
  EXPECT_TRUE(facts_named("aten::add.out").is_out_variant);
  EXPECT_FALSE(facts_named("aten::add.out").is_in_place);
  EXPECT_TRUE(facts_named("aten::view").is_view);
  EXPECT_FALSE(facts_named("aten::add.Tensor").is_view);
  EXPECT_FALSE(facts_named("aten::t_").is_view);
  EXPECT_EQ(facts_named("aten::_fused_moving_avg_obs_fq_helper").written.size(), 4U);
  EXPECT_FALSE(facts_named("aten::eq.Tensor").host_read);
  EXPECT_FALSE(facts_named("aten::relu").unknown);
  EXPECT_TRUE(facts_of_function("my::leaf(...) -> ...").unknown);
  EXPECT_TRUE(facts_of_function("my::leaf(Any x) -> Tensor").unknown);
  EXPECT_FALSE(facts_of_function("my::fused(Tensor(a!) x) -> Tensor(a!)").unknown);
  EXPECT_TRUE(facts_of_function("my::reduce(Tensor x, str group_name) -> Tensor").collective);
  EXPECT_TRUE(Target(TargetKind::kOperator, "c10d::sum(Tensor x) -> Tensor").facts().collective);
}

// A row for all overloads says nothing of the contents that one of them reads besides.
TEST(IrOperatorFacts, OverloadsThatReadOtherTensorsAreNotWhatTheirRowSays) {
  EXPECT_TRUE(facts_named("aten::randint_like").geometry_only);
  EXPECT_FALSE(facts_named("aten::randint_like.Tensor").geometry_only);
  EXPECT_FALSE(facts_named("aten::randint_like.Tensor").draws);
  EXPECT_TRUE(facts_named("aten::linspace").fills);
  EXPECT_FALSE(facts_named("aten::linspace.Tensor_Tensor").fills);
  EXPECT_FALSE(facts_named("aten::fill_.Tensor").fills);
  EXPECT_FALSE(facts_named("aten::bernoulli_.Tensor").draws);
}

TEST(IrOperatorFacts, AreKeptWithTheTargetAndItsCopies) {
  const Target target = target_of_name("aten::mul.Tensor");
  const Target copy = target;
  EXPECT_EQ(&target.facts(), &copy.facts());
  Graph graph;
  const TargetId id = graph.intern_target(target);
  EXPECT_EQ(&graph.facts(id), &target.facts());
}

// An operator that comes later is asked for its tags then, and found as another's form.
TEST(IrOperatorFacts, FollowAnOperatorThatIsRegisteredLater) {
  const Target target(TargetKind::kOperator, "sg_late::noisy_(Tensor(a!) x) -> Tensor(a!)");
  const OperatorFacts& before = target.facts();
  EXPECT_FALSE(before.random);
  EXPECT_TRUE(before.changes_objects);
  EXPECT_EQ(&target.facts(), &before);
  EXPECT_EQ(functional_form(target), nullptr);
  {
    torch::Library library(torch::Library::FRAGMENT, "sg_late", std::nullopt, __FILE__, __LINE__);
    library.def("noisy_(Tensor(a!) x) -> Tensor(a!)", {at::Tag::nondeterministic_seeded});
    library.def("noisy(Tensor x) -> Tensor", {at::Tag::nondeterministic_seeded});
    EXPECT_TRUE(target.facts().random);
    EXPECT_FALSE(target.facts().changes_objects);
    EXPECT_FALSE(before.random);  // who holds the first answer still does
    ASSERT_NE(functional_form(target), nullptr);
    EXPECT_EQ(functional_form(target)->target.name(), "sg_late::noisy");
    ASSERT_NE(in_place_form(functional_form(target)->target), nullptr);
  }
  EXPECT_TRUE(target.facts().random);
  EXPECT_EQ(functional_form(target), nullptr);
}

}  // namespace
}  // namespace shadowgraph::operator_facts_test
