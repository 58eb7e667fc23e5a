// At least one call for each operator that has a row in the fact table.
#include "tests/ir/operator_calls.h"

namespace shadowgraph::operator_facts_test {
namespace {

using Ints = std::vector<int64_t>;

const IValue kNo;

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
  calls.push_back({"aten::_fused_adamw_", adam(false), false});  // gradients are written only if they are scaled
  add("aten::_fused_adamw", adam(false));
  calls.push_back({"aten::_fused_adamw.out", adam(true), false});
}

}  // namespace

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

}  // namespace shadowgraph::operator_facts_test
