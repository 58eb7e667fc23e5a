// Recurrent layers: the fused operators of oneDNN, cuDNN and CUDA, and the layers that select them.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/_cudnn_init_dropout_state.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/fake/rules/registry.h"
#include "core/fake/thread_state.h"

namespace shadowgraph::rules {
namespace {

// cuDNN's numbering, used throughout libtorch.
enum class RnnMode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

// Returns the offset of each parameter in cuDNN's buffer, in elements: all matrices, then all biases. A layer and
// direction has weight_ih, weight_hh, bias_ih, bias_hh and weight_hr, as far as they exist.
std::vector<int64_t> flat_offsets(TensorList weights, int64_t* total) {
  std::vector<int64_t> offsets(weights.size());
  int64_t offset = 0;
  for (const int64_t dimensions : {2, 1}) {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i].dim() != dimensions) continue;
      offsets[i] = offset;
      offset += weights[i].numel();
    }
  }
  *total = offset;
  return offsets;
}

// ---- Fused operators: oneDNN's LSTM, cuDNN's layers and their parameters, fused cells on CUDA
//
// Sizes internal to cuDNN are estimates: the reserve of its forward and its dropout state (eager creates one per device
// and process, here each call does). oneDNN's workspace is exact.

// ---- oneDNN (native/mkldnn/RNN.cpp)

// Returns the size in bytes of the workspace that oneDNN's LSTM keeps for backward (set_offsets in its
// cpu/rnn/rnn_utils.cpp): seven arrays, each page-aligned, with rows padded to cache lines and away from multiples of
// 256 elements. Verified against the installed library on random sizes in float32 and bfloat16; the same with SSE 4.1,
// AVX2 and AVX-512.
int64_t mkldnn_workspace(int64_t steps, int64_t batch, int64_t input_size, int64_t hidden, int64_t element_size) {
  constexpr int64_t kPage = 4096;
  constexpr int64_t kFloat = 4;
  const auto row_bytes = [](int64_t length, int64_t size) {
    const int64_t padded = rounded_up(length, 64 / size);
    return (padded % 256 == 0 ? padded + 64 / size : padded) * size;
  };
  const int64_t cells = steps * batch;
  const int64_t states = 2 * (steps + 1) * batch;  // of the layer below and of this one, before and after each step
  const int64_t widest = std::max(input_size, hidden);
  return rounded_up(cells * row_bytes(4 * hidden, element_size), kPage) +  // gates
         rounded_up(cells * row_bytes(hidden, element_size), kPage) +      // h
         rounded_up(states * row_bytes(widest, element_size), kPage) +     // states
         2 * rounded_up(states * row_bytes(widest, kFloat), kPage) +       // their gradients over layers and over steps
         rounded_up(states * hidden * element_size, kPage) +               // cell states
         rounded_up(states * hidden * kFloat, kPage);                      // their gradients
}

// oneDNN has no LSTM primitive for dtypes that the processor does not support; these are its messages.
void check_has_lstm(ScalarType dtype) {
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
              "get_mkldnn_dtype: unsupported data type");
  TORCH_CHECK(mkldnn_supports(dtype, device_profile().cpu),
              "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload with "
              "environment variable ONEDNN_VERBOSE=all to get additional diagnostic information.");
}

FourTensors mkldnn_rnn_layer(const Tensor& input, const Tensor& hx, const Tensor& cx, int64_t hidden_size) {
  TORCH_CHECK(input.dim() == 3, "mkldnn_rnn_layer: expected input of 3 dimensions, but got ", input.dim());
  check_has_lstm(input.scalar_type());
  // The input is always [steps, batch, features] here, regardless of batch_first.
  Tensor workspace;
  if (at::GradMode::is_enabled()) {
    workspace = rules::empty({mkldnn_workspace(input.size(0), input.size(1), input.size(2), hidden_size,
                                               static_cast<int64_t>(input.element_size()))},
                             at::kByte);
  }
  return {rules::empty({input.size(0), input.size(1), hidden_size}, input), empty_contiguous_like(hx),
          empty_contiguous_like(cx), workspace};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> mkldnn_rnn_layer_backward(
    const Tensor& input, const Tensor& weight_ih, const Tensor& weight_hh, const Tensor& bias_ih, const Tensor& hx,
    const Tensor& cx, const OptionalTensor& grad_output, const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
    int64_t mode, int64_t hidden_size) {
  if (!given(grad_output) && !given(grad_hy) && !given(grad_cy)) return {};
  check_has_lstm(input.scalar_type());
  // Always float32. The second bias's gradient is a clone of the first's.
  const auto gradient = [](const Tensor& of) { return rules::empty(of.sizes(), at::kFloat); };
  const int64_t bias_size = static_cast<RnnMode>(mode) == RnnMode::kGru ? 4 * hidden_size : bias_ih.size(0);
  const auto bias = [&] { return rules::empty({bias_size}, at::kFloat); };
  return {gradient(input), gradient(weight_ih), gradient(weight_hh), bias(), bias(), gradient(hx), gradient(cx)};
}

// ---- cuDNN (native/cudnn/RNN.cpp)

int64_t gate_count(RnnMode mode) { return mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1; }

int64_t flat_size(TensorList weights) {
  int64_t total = 0;
  for (const Tensor& weight : weights) total += weight.numel();
  return total;
}

Tensor flatten_weight(TensorList weights) {
  TORCH_CHECK(!weights.empty(), "_cudnn_rnn_flatten_weight_: cannot flatten empty weight list");
  int64_t total = 0;
  const auto offsets = flat_offsets(weights, &total);
  const Tensor buffer = rules::empty({total}, weights[0]);
  // The parameters become views of the buffer, which the schema does not declare.
  for (size_t i = 0; i < weights.size(); ++i) {
    c10::TensorImpl* weight = weights[i].unsafeGetTensorImpl();
    const DimVector sizes(weight->sizes());
    weight->set_storage_keep_dtype(buffer.storage());
    weight->set_sizes_and_strides(sizes, c10::contiguous_strides(sizes), offsets[i]);
  }
  return buffer;
}

// An estimate: per step, layer and direction cuDNN must keep the activated gates and the resulting states, and one bit
// per element for dropout between layers.
int64_t cudnn_reserve(RnnMode mode, int64_t steps, int64_t batch, int64_t hidden, int64_t layers, int64_t directions,
                      double dropout, int64_t element_size) {
  const int64_t kept = gate_count(mode) + (mode == RnnMode::kLstm || mode == RnnMode::kGru ? 2 : 0);
  const int64_t cells = steps * batch * hidden * directions;
  return cells * layers * kept * element_size + (dropout > 0.0 ? (layers - 1) * cells / 8 : 0);
}

FiveTensors cudnn_rnn(const Tensor& input, TensorList weights, int64_t weight_stride0,
                      const OptionalTensor& weight_buffer, const Tensor& hx, const OptionalTensor& cx, int64_t mode,
                      int64_t hidden_size, int64_t proj_size, int64_t num_layers, bool batch_first, double dropout,
                      bool train, bool bidirectional, IntArrayRef batch_sizes, const OptionalTensor& dropout_state) {
  const bool packed = !batch_sizes.empty();
  const bool transposed = batch_first && !packed;
  const int64_t steps = packed ? static_cast<int64_t>(batch_sizes.size()) : input.size(transposed ? 1 : 0);
  const int64_t batch = packed ? batch_sizes[0] : input.size(transposed ? 0 : 1);
  const int64_t directions = bidirectional ? 2 : 1;
  const int64_t output_size = proj_size != 0 ? proj_size : hidden_size;
  const DimVector hidden_sizes{num_layers * directions, batch, output_size};
  const DimVector cell_sizes{num_layers * directions, batch, hidden_size};
  TORCH_CHECK(hx.sizes().equals(hidden_sizes), "Expected hidden size ", IntArrayRef(hidden_sizes), ", got ",
              hx.sizes());
  TORCH_CHECK(hx.is_contiguous(), "rnn: hx is not contiguous");
  TORCH_CHECK(!given(cx) || cx->sizes().equals(cell_sizes), "Expected cell size ", IntArrayRef(cell_sizes), ", got ",
              given(cx) ? cx->sizes() : hx.sizes());
  TORCH_CHECK(!given(cx) || cx->is_contiguous(), "rnn: cx is not contiguous");

  Tensor output = packed ? rules::empty({input.size(0), output_size * directions}, input)
                         : rules::empty({steps, batch, output_size * directions}, input);
  if (transposed) output = output.transpose(0, 1);
  const int64_t reserve = train ? cudnn_reserve(static_cast<RnnMode>(mode), steps, batch, hidden_size, num_layers,
                                                directions, dropout, static_cast<int64_t>(input.element_size()))
                                : 0;
  return {output, rules::empty(hidden_sizes, hx), given(cx) ? rules::empty(cell_sizes, *cx) : rules::empty({0}, hx),
          rules::empty({reserve}, at::kByte),
          given(weight_buffer) ? *weight_buffer : rules::empty({flat_size(weights)}, weights[0])};
}

std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>> cudnn_rnn_backward(
    const Tensor& input, TensorList weights, const Tensor& hx, const OptionalTensor& cx,
    const OptionalTensor& grad_output, const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, bool batch_first,
    IntArrayRef batch_sizes, std::array<bool, 4> output_mask) {
  if (!given(grad_output) && !given(grad_hy) && !given(grad_cy)) {
    return {Tensor(), Tensor(), Tensor(), std::vector<Tensor>(weights.size())};
  }
  Tensor grad_input;
  if (batch_first && batch_sizes.empty()) {
    grad_input = rules::empty({input.size(1), input.size(0), input.size(2)}, input).transpose(0, 1);
  } else {
    grad_input = empty_contiguous_like(input);
  }
  std::vector<Tensor> grad_weights;
  if (output_mask[3]) {
    // Views of one buffer, like the parameters.
    int64_t total = 0;
    const auto offsets = flat_offsets(weights, &total);
    const Tensor buffer = rules::empty({total}, weights[0]);
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto sizes = weights[i].sizes();
      grad_weights.push_back(buffer.as_strided(sizes, c10::contiguous_strides(sizes), offsets[i]));
    }
  }
  // The gradients of the input and of the states are always computed.
  return {grad_input, empty_contiguous_like(hx), given(cx) ? empty_contiguous_like(*cx) : Tensor(), grad_weights};
}

// An estimate ("slightly over 2MB", native/cudnn/RNN.cpp).
constexpr int64_t kDropoutStateBytes = 2 << 20;

Tensor cudnn_init_dropout_state() { return rules::empty({kDropoutStateBytes}, at::kByte); }

// ---- Fused cells on CUDA (native/cuda/RNN.cu)

ThreeTensors fused_lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx) {
  TORCH_CHECK(input_gates.dim() == 2 && input_gates.sizes() == hidden_gates.sizes(),
              "_thnn_fused_lstm_cell: expected gates of equal, 2-dimensional sizes, but got ", input_gates.sizes(),
              " and ", hidden_gates.sizes());
  TORCH_CHECK(cx.numel() * 4 == input_gates.numel(),
              "_thnn_fused_lstm_cell: expected a cell state with a quarter of the gates' elements ",
              input_gates.sizes(), ", but got ", cx.sizes());
  return {empty_contiguous_like(cx), empty_contiguous_like(cx), empty_contiguous_like(input_gates)};
}

ThreeTensors fused_lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const Tensor& cx,
                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) return {};
  return {empty_contiguous_like(workspace), empty_contiguous_like(cx),
          has_bias ? rules::empty({workspace.size(1)}, workspace) : Tensor()};
}

constexpr int64_t kGruWorkspacePerState = 5;

TwoTensors fused_gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx) {
  TORCH_CHECK(input_gates.dim() == 2 && input_gates.sizes() == hidden_gates.sizes(),
              "_thnn_fused_gru_cell: expected gates of equal, 2-dimensional sizes, but got ", input_gates.sizes(),
              " and ", hidden_gates.sizes());
  return {empty_contiguous_like(hx), rules::empty({hx.size(0), hx.size(1) * kGruWorkspacePerState}, hx)};
}

FiveTensors fused_gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const int64_t gates = workspace.size(1) / kGruWorkspacePerState * 3;
  const auto gate_gradient = [&] { return rules::empty({workspace.size(0), gates}, workspace); };
  const auto bias_gradient = [&] { return has_bias ? rules::empty({gates}, workspace) : Tensor(); };
  return {gate_gradient(), gate_gradient(), empty_contiguous_like(grad_hy), bias_gradient(), bias_gradient()};
}

// ---- Recurrent layers
//
// On CUDA the composites call cuDNN in libtorch_cuda, which may be missing. The overrides make the same call as
// native/cudnn/RNN.cpp, above autograd. Parameters that were flattened into one buffer (_cudnn_rnn_flatten_weight) are
// recognized and passed as that buffer. Otherwise cuDNN copies them into a new one at each call, as in eager. Note that
// flatten_parameters() of C++ modules does nothing for fakes: it compares data pointers, which they do not have.

// use_cudnn (native/RNN.cpp)
bool uses_cudnn(const Tensor& input) {
  if (!input.is_cuda() || !device_profile().cudnn || !at::globalContext().userEnabledCuDNN() || input.numel() == 0)
    return false;
  const ScalarType dtype = input.scalar_type();
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         (dtype == at::kBFloat16 && device_profile().sm_major >= 8);
}

// Returns the buffer that all parameters are views of; undefined if they do not have cuDNN's layout.
Tensor shared_buffer(TensorList weights) {
  int64_t total = 0;
  const auto offsets = flat_offsets(weights, &total);
  const c10::StorageImpl* storage = weights[0].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (size_t i = 0; i < weights.size(); ++i) {
    const c10::TensorImpl* weight = weights[i].unsafeGetTensorImpl();
    if (weight->unsafe_storage().unsafeGetStorageImpl() != storage || weight->storage_offset() != offsets[i] ||
        !weight->is_contiguous() || weight->dtype() != weights[0].dtype()) {
      return {};
    }
  }
  // With autograd the result would be a view of a weight that requires grad, which _cudnn_rnn rejects.
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return weights[0].as_strided({total}, {1}, 0);
}

// Autocast runs cuDNN's layers in float16, regardless of its dtype. The weights are copied into a buffer for the call
// (autocast::_cudnn_rnn_cast_reflatten), and gradients flow through the copies.
struct HalfWeights {
  Tensor buffer;
  std::vector<Tensor> copies;  // in it
};
HalfWeights weights_in_half(TensorList weights) {
  int64_t total = 0;
  const auto offsets = flat_offsets(weights, &total);
  const auto options = weights[0].options().dtype(at::kHalf);
  HalfWeights half{.buffer = at::zeros({total}, options), .copies = {}};
  for (size_t i = 0; i < weights.size(); ++i) {
    Tensor copy = at::empty({0}, options);
    copy.set_(half.buffer.storage(), offsets[i], weights[i].sizes());
    half.copies.push_back(copy.copy_(weights[i]));
  }
  return half;
}

bool is_cast(const Tensor& input, TensorList weights) {
  return is_autocast_enabled(input.device().type()) && weights[0].scalar_type() != at::kDouble;
}

// Returns the output and the final states.
std::vector<Tensor> call_cudnn(RnnMode mode, const Tensor& input, const Tensor& hx, const Tensor& cx,
                               TensorList weights, bool has_biases, int64_t num_layers, double dropout, bool train,
                               bool bidirectional, bool batch_first, IntArrayRef batch_sizes = {}) {
  const bool projected = cx.defined() && cx.size(2) != hx.size(2);
  const int64_t hidden_size = projected ? cx.size(2) : hx.size(2);
  const int64_t proj_size = projected ? hx.size(2) : 0;
  const auto optional = [](const Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; };
  Tensor dropout_state;
  if (train && dropout > 0.0) {
    dropout_state = at::_cudnn_init_dropout_state(dropout, train, /*dropout_seed=*/0, input.options().dtype(at::kByte));
  }
  const bool casts = is_cast(input, weights);
  std::optional<AutocastScope> off;
  if (casts) off.emplace(input.device().type(), std::nullopt, /*enabled=*/false);
  const auto operand = [&](const Tensor& tensor) { return casts && tensor.defined() ? tensor.to(at::kHalf) : tensor; };
  const HalfWeights own = casts && weights[0].scalar_type() != at::kHalf
                              ? weights_in_half(weights)
                              : HalfWeights{.buffer = shared_buffer(weights), .copies = weights.vec()};
  const auto [output, hidden, cell, reserve, buffer] =
      at::_cudnn_rnn(operand(input), own.copies, has_biases ? 4 : 2, optional(own.buffer), operand(hx),
                     optional(operand(cx)), static_cast<int64_t>(mode), hidden_size, proj_size, num_layers, batch_first,
                     dropout, train, bidirectional, batch_sizes, optional(dropout_state));
  return {output, hidden, cell};
}

// Runs the composite's own decomposition, for inputs where it does not use cuDNN and oneDNN behaves as on this machine.
std::vector<Tensor> decomposed(const char* name, torch::jit::Stack stack, const char* overload = "input") {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  std::vector<Tensor> results;
  for (auto& result : stack) results.push_back(std::move(result).toTensor());
  return results;
}

// ---- The composite on a simulated CPU

struct LstmWeights {
  Tensor input, hidden, input_bias, hidden_bias, projection;
};

// Runs one layer in one direction, step by step, like LSTMCell and FullLayer in native/RNN.cpp on a CPU. Maps
// [T, B, features] to [T, B, H] and leaves the final state in `h` and `c`.
Tensor lstm_of_cells(const Tensor& input, const LstmWeights& weights, bool reverse, Tensor& h, Tensor& c) {
  const auto linear = [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return at::linear(x, weight, bias.defined() ? OptionalTensor(bias) : std::nullopt);
  };
  std::vector<Tensor> steps = linear(input, weights.input, weights.input_bias).unbind(0);
  TORCH_CHECK(!steps.empty(), "Expected sequence length to be larger than 0 in RNN");
  if (reverse) std::reverse(steps.begin(), steps.end());
  for (Tensor& step : steps) {
    const Tensor gates = linear(h, weights.hidden, weights.hidden_bias).add_(step);
    const auto parts = gates.unsafe_chunk(4, 1);
    const Tensor in = parts[0].sigmoid_();
    const Tensor forget = parts[1].sigmoid_();
    const Tensor cell = parts[2].tanh_();
    const Tensor out = parts[3].sigmoid_();
    c = (forget * c).add_(in * cell);
    h = out * c.tanh();
    if (weights.projection.defined()) h = at::matmul(h, weights.projection.t());
    step = h;
  }
  if (reverse) std::reverse(steps.begin(), steps.end());
  return at::stack(steps, 0);
}

ThreeTensors lstm_without_onednn(const Tensor& given_input, TensorList hx, TensorList weights, bool has_biases,
                                 int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  at::native::check_attributes(given_input, weights, hx);
  const bool projected = hx[0].size(2) != hx[1].size(2);
  const size_t each = 2 + (has_biases ? 2 : 0) + (projected ? 1 : 0);
  const size_t directions = bidirectional ? 2 : 1;
  const size_t layers = static_cast<size_t>(num_layers);
  TORCH_CHECK(weights.size() % each == 0, "got an incorrect number of RNN parameters");
  Tensor input = batch_first ? given_input.transpose(0, 1) : given_input;
  std::vector<Tensor> h = hx[0].unbind(0);
  std::vector<Tensor> c = hx[1].unbind(0);
  TORCH_CHECK(h.size() == layers * directions, "Expected more hidden states in stacked_rnn");
  TORCH_CHECK(weights.size() == layers * directions * each, "Expected more weights in stacked_rnn");
  for (size_t layer = 0; layer < layers; ++layer) {
    std::vector<Tensor> outputs;
    for (size_t direction = 0; direction < directions; ++direction) {
      const size_t i = layer * directions + direction;
      const TensorList own = weights.slice(i * each, each);
      outputs.push_back(lstm_of_cells(input,
                                      {.input = own[0],
                                       .hidden = own[1],
                                       .input_bias = has_biases ? own[2] : Tensor(),
                                       .hidden_bias = has_biases ? own[3] : Tensor(),
                                       .projection = projected ? own.back() : Tensor()},
                                      direction == 1, h[i], c[i]));
    }
    input = bidirectional ? at::cat(outputs, outputs[0].dim() - 1) : outputs[0];
    if (dropout != 0 && train && layer + 1 < layers) input = at::dropout(input, dropout, /*train=*/true);
  }
  // In this order: eager's compiler evaluates arguments from last to first.
  const Tensor last_c = at::stack(c, 0);
  const Tensor last_h = at::stack(h, 0);
  return {batch_first ? input.transpose(0, 1) : input, last_h, last_c};
}

// use_mkldnn (native/RNN.cpp), for the simulated processor.
ThreeTensors lstm_on_cpu(const Tensor& input, TensorList hx, TensorList weights, bool has_biases, int64_t num_layers,
                         double dropout, bool train, bool bidirectional, bool batch_first) {
  const auto on_cpu = [](const Tensor& tensor) { return tensor.is_cpu(); };
  const ScalarType dtype = input.scalar_type();
  const bool projected = hx[0].size(2) != hx[1].size(2);
  if (at::globalContext().userEnabledMkldnn() && mkldnn_supports(dtype, device_profile().cpu) &&
      (dtype != at::kHalf || !at::GradMode::is_enabled()) && input.numel() != 0 && !projected &&
      std::all_of(weights.begin(), weights.end(), on_cpu) && std::all_of(hx.begin(), hx.end(), on_cpu)) {
    ThreeTensors results;
    // There is one function for all processors. Calling the stub would select by the macros that libtorch was built
    // with.
    const auto kernel = std::remove_reference_t<decltype(at::native::lstm_mkldnn_stub)>::DEFAULT;
    kernel(std::get<0>(results), std::get<1>(results), std::get<2>(results), input, hx, weights, has_biases, num_layers,
           dropout, train, bidirectional, batch_first);
    return results;
  }
  return lstm_without_onednn(input, hx, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first);
}

ThreeTensors lstm(const Tensor& input, TensorList hx, TensorList weights, bool has_biases, int64_t num_layers,
                  double dropout, bool train, bool bidirectional, bool batch_first) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  if (input.is_cpu() && !mkldnn_matches_this_machine(input.scalar_type(), device_profile().cpu)) {
    return lstm_on_cpu(input, hx, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  const auto r = uses_cudnn(input) ? call_cudnn(RnnMode::kLstm, input, hx[0], hx[1], weights, has_biases, num_layers,
                                                dropout, train, bidirectional, batch_first)
                                   : decomposed("aten::lstm", {input, hx.vec(), weights.vec(), has_biases, num_layers,
                                                               dropout, train, bidirectional, batch_first});
  return {r[0], r[1], r[2]};
}

constexpr const char* name_of(RnnMode mode) {
  return mode == RnnMode::kGru ? "aten::gru" : mode == RnnMode::kTanh ? "aten::rnn_tanh" : "aten::rnn_relu";
}

template <RnnMode mode>
TwoTensors one_state(const Tensor& input, const Tensor& hx, TensorList weights, bool has_biases, int64_t num_layers,
                     double dropout, bool train, bool bidirectional, bool batch_first) {
  const auto r =
      uses_cudnn(input)
          ? call_cudnn(mode, input, hx, {}, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first)
          : decomposed(name_of(mode),
                       {input, hx, weights.vec(), has_biases, num_layers, dropout, train, bidirectional, batch_first});
  return {r[0], r[1]};
}

// ---- Packed sequences: the batch size of each step is known on the host

IntArrayRef steps_of(const Tensor& batch_sizes) {
  return {batch_sizes.const_data_ptr<int64_t>(), static_cast<size_t>(batch_sizes.size(0))};
}

ThreeTensors packed_lstm(const Tensor& data, const Tensor& batch_sizes, TensorList hx, TensorList weights,
                         bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  const auto r = uses_cudnn(data)
                     ? call_cudnn(RnnMode::kLstm, data, hx[0], hx[1], weights, has_biases, num_layers, dropout, train,
                                  bidirectional, /*batch_first=*/false, steps_of(batch_sizes))
                     : decomposed("aten::lstm",
                                  {data, batch_sizes, hx.vec(), weights.vec(), has_biases, num_layers, dropout, train,
                                   bidirectional},
                                  "data");
  return {r[0], r[1], r[2]};
}

template <RnnMode mode>
TwoTensors packed(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx, TensorList weights, bool has_biases,
                  int64_t num_layers, double dropout, bool train, bool bidirectional) {
  const auto r =
      uses_cudnn(data)
          ? call_cudnn(mode, data, hx, {}, weights, has_biases, num_layers, dropout, train, bidirectional,
                       /*batch_first=*/false, steps_of(batch_sizes))
          : decomposed(name_of(mode),
                       {data, batch_sizes, hx, weights.vec(), has_biases, num_layers, dropout, train, bidirectional},
                       "data");
  return {r[0], r[1]};
}

}  // namespace

void register_recurrent(RuleRegistry& registry) {
  registry.add_partial({"aten::mkldnn_rnn_layer"}, &mkldnn_rnn_layer, {"input", "hx_", "cx_", "hidden_size"});
  registry.add_partial({"aten::mkldnn_rnn_layer_backward"}, &mkldnn_rnn_layer_backward,
                       {"input", "weight1", "weight2", "weight3", "hx_", "cx_tmp", "grad_output", "grad_hy", "grad_cy",
                        "mode", "hidden_size"});
  registry.add_partial({"aten::_cudnn_rnn_flatten_weight"}, &flatten_weight);
  registry.add("aten::_cudnn_rnn", &cudnn_rnn);
  registry.add_partial({"aten::_cudnn_rnn_backward"}, &cudnn_rnn_backward,
                       {"input", "weight", "hx", "cx", "grad_output", "grad_hy", "grad_cy", "batch_first",
                        "batch_sizes", "output_mask"});
  registry.add_partial({"aten::_cudnn_init_dropout_state"}, &cudnn_init_dropout_state);
  registry.add_partial({"aten::_thnn_fused_lstm_cell"}, &fused_lstm_cell);
  registry.add("aten::_thnn_fused_lstm_cell_backward_impl", &fused_lstm_cell_backward);
  registry.add_partial({"aten::_thnn_fused_gru_cell"}, &fused_gru_cell);
  registry.add("aten::_thnn_fused_gru_cell_backward", &fused_gru_cell_backward);
  registry.add_composite("aten::lstm.input", &lstm);
  registry.add_composite("aten::lstm.data", &packed_lstm);
  registry.add_composite("aten::gru.data", &packed<RnnMode::kGru>);
  registry.add_composite("aten::rnn_tanh.data", &packed<RnnMode::kTanh>);
  registry.add_composite("aten::rnn_relu.data", &packed<RnnMode::kRelu>);
  registry.add_composite("aten::gru.input", &one_state<RnnMode::kGru>);
  registry.add_composite("aten::rnn_tanh.input", &one_state<RnnMode::kTanh>);
  registry.add_composite("aten::rnn_relu.input", &one_state<RnnMode::kRelu>);
}

}  // namespace shadowgraph::rules
