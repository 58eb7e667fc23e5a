// Kernels that recurrent layers are made of: oneDNN's LSTM, cuDNN's layers and their parameters, fused cells on CUDA.
//
// Sizes that only cuDNN knows are estimates. These are the reserve of its forward and its dropout state (eager makes
// one per device and process, here each call makes its own). oneDNN's workspace is exact.
#include <c10/core/GradMode.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>

#include "core/rules/cudnn_rnn.h"
#include "core/rules/families.h"
#include "core/rules/onednn.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::ScalarType;
using at::TensorList;
using c10::IntArrayRef;

// ---- oneDNN (native/mkldnn/RNN.cpp)

// Returns the bytes of what oneDNN's LSTM keeps for backward (set_offsets in its cpu/rnn/rnn_utils.cpp). These are
// seven arrays, each starting on a page, with rows padded to cache lines and away from multiples of 256 elements. Equal
// to what the installed library asks for, compared on random sizes in float32 and bfloat16; the same with SSE 4.1, AVX2
// and AVX-512.
int64_t mkldnn_workspace(int64_t steps, int64_t batch, int64_t input_size, int64_t hidden, int64_t element_size) {
  constexpr int64_t kPage = 4096;
  constexpr int64_t kFloat = 4;
  const auto row_bytes = [](int64_t length, int64_t size) {
    const int64_t padded = rounded_up(length, 64 / size);
    return (padded % 256 == 0 ? padded + 64 / size : padded) * size;
  };
  const int64_t cells = steps * batch;
  const int64_t states = 2 * (steps + 1) * batch;  // of the layer below and of this one, before each step and after all
  const int64_t widest = std::max(input_size, hidden);
  return rounded_up(cells * row_bytes(4 * hidden, element_size), kPage) +  // gates
         rounded_up(cells * row_bytes(hidden, element_size), kPage) +      // h
         rounded_up(states * row_bytes(widest, element_size), kPage) +     // states
         2 * rounded_up(states * row_bytes(widest, kFloat), kPage) +       // their gradients over layers and over steps
         rounded_up(states * hidden * element_size, kPage) +               // cell states
         rounded_up(states * hidden * kFloat, kPage);                      // their gradients
}

// oneDNN has no description of an LSTM in a dtype that the processor does not compute in; its words.
void check_has_lstm(ScalarType dtype) {
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
              "get_mkldnn_dtype: unsupported data type");
  TORCH_CHECK(mkldnn_computes_in(dtype, device_profile().cpu),
              "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload with "
              "environment variable ONEDNN_VERBOSE=all to get additional diagnostic information.");
}

FourTensors mkldnn_rnn_layer(const at::Tensor& input, const at::Tensor& weight_ih, const at::Tensor& weight_hh,
                             const at::Tensor& bias_ih, const at::Tensor& bias_hh, const at::Tensor& hx,
                             const at::Tensor& cx, bool reverse, IntArrayRef batch_sizes, int64_t mode,
                             int64_t hidden_size, int64_t num_layers, bool has_biases, bool bidirectional,
                             bool batch_first, bool train) {
  TORCH_CHECK(input.dim() == 3, "mkldnn_rnn_layer: expected input of 3 dimensions, but got ", input.dim());
  check_has_lstm(input.scalar_type());
  // The input has been made [steps, batch, features] already, whatever batch_first says.
  at::Tensor workspace;
  if (at::GradMode::is_enabled()) {
    workspace = rules::empty({mkldnn_workspace(input.size(0), input.size(1), input.size(2), hidden_size,
                                               static_cast<int64_t>(input.element_size()))},
                             at::kByte);
  }
  return {rules::empty({input.size(0), input.size(1), hidden_size}, input), empty_contiguous_like(hx),
          empty_contiguous_like(cx), workspace};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
mkldnn_rnn_layer_backward(const at::Tensor& input, const at::Tensor& weight_ih, const at::Tensor& weight_hh,
                          const at::Tensor& bias_ih, const at::Tensor& bias_hh, const at::Tensor& hx,
                          const at::Tensor& cx, const at::Tensor& output, const at::Tensor& hy, const at::Tensor& cy,
                          const OptionalTensor& grad_output, const OptionalTensor& grad_hy,
                          const OptionalTensor& grad_cy, bool reverse, int64_t mode, int64_t hidden_size,
                          int64_t num_layers, bool has_biases, bool train, bool bidirectional, IntArrayRef batch_sizes,
                          bool batch_first, const at::Tensor& workspace) {
  if (!given(grad_output) && !given(grad_hy) && !given(grad_cy)) return {};
  check_has_lstm(input.scalar_type());
  // Always float32. The second bias' gradient is a clone of the first's.
  const auto gradient = [](const at::Tensor& of) { return rules::empty(of.sizes(), at::kFloat); };
  const int64_t bias_size = static_cast<RnnMode>(mode) == RnnMode::kGru ? 4 * hidden_size : bias_ih.size(0);
  const auto bias = [&] { return rules::empty({bias_size}, at::kFloat); };
  return {gradient(input), gradient(weight_ih), gradient(weight_hh), bias(), bias(), gradient(hx), gradient(cx)};
}

// ---- cuDNN (native/cudnn/RNN.cpp)

int64_t gate_count(RnnMode mode) { return mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1; }

int64_t flat_size(TensorList weights) {
  int64_t total = 0;
  for (const at::Tensor& weight : weights) total += weight.numel();
  return total;
}

at::Tensor flatten_weight(TensorList weights, int64_t weight_stride0, int64_t input_size, int64_t mode,
                          int64_t hidden_size, int64_t proj_size, int64_t num_layers, bool batch_first,
                          bool bidirectional) {
  TORCH_CHECK(!weights.empty(), "_cudnn_rnn_flatten_weight_: cannot flatten empty weight list");
  int64_t total = 0;
  const auto offsets = flat_offsets(weights, &total);
  const at::Tensor buffer = rules::empty({total}, weights[0]);
  // The parameters become views of the buffer, which the schema does not tell.
  for (size_t i = 0; i < weights.size(); ++i) {
    c10::TensorImpl* weight = weights[i].unsafeGetTensorImpl();
    const c10::DimVector sizes(weight->sizes());
    weight->set_storage_keep_dtype(buffer.storage());
    weight->set_sizes_and_strides(sizes, c10::contiguous_strides(sizes), offsets[i]);
  }
  return buffer;
}

// Estimate. Per step, layer and direction cuDNN must keep the activated gates and the states they produce; dropout
// between layers keeps one bit an element.
int64_t cudnn_reserve(RnnMode mode, int64_t steps, int64_t batch, int64_t hidden, int64_t layers, int64_t directions,
                      double dropout, int64_t element_size) {
  const int64_t kept = gate_count(mode) + (mode == RnnMode::kLstm ? 2 : mode == RnnMode::kGru ? 2 : 0);
  const int64_t cells = steps * batch * hidden * directions;
  return cells * layers * kept * element_size + (dropout > 0.0 ? (layers - 1) * cells / 8 : 0);
}

FiveTensors cudnn_rnn(const at::Tensor& input, TensorList weights, int64_t weight_stride0,
                      const OptionalTensor& weight_buffer, const at::Tensor& hx, const OptionalTensor& cx, int64_t mode,
                      int64_t hidden_size, int64_t proj_size, int64_t num_layers, bool batch_first, double dropout,
                      bool train, bool bidirectional, IntArrayRef batch_sizes, const OptionalTensor& dropout_state) {
  const bool packed = !batch_sizes.empty();
  const bool transposed = batch_first && !packed;
  const int64_t steps = packed ? static_cast<int64_t>(batch_sizes.size()) : input.size(transposed ? 1 : 0);
  const int64_t batch = packed ? batch_sizes[0] : input.size(transposed ? 0 : 1);
  const int64_t directions = bidirectional ? 2 : 1;
  const int64_t output_size = proj_size != 0 ? proj_size : hidden_size;
  const c10::DimVector hidden_sizes{num_layers * directions, batch, output_size};
  const c10::DimVector cell_sizes{num_layers * directions, batch, hidden_size};
  TORCH_CHECK(hx.sizes().equals(hidden_sizes), "Expected hidden size ", IntArrayRef(hidden_sizes), ", got ",
              hx.sizes());
  TORCH_CHECK(hx.is_contiguous(), "rnn: hx is not contiguous");
  TORCH_CHECK(!given(cx) || cx->sizes().equals(cell_sizes), "Expected cell size ", IntArrayRef(cell_sizes), ", got ",
              given(cx) ? cx->sizes() : hx.sizes());
  TORCH_CHECK(!given(cx) || cx->is_contiguous(), "rnn: cx is not contiguous");

  at::Tensor output = packed ? rules::empty({input.size(0), output_size * directions}, input)
                             : rules::empty({steps, batch, output_size * directions}, input);
  if (transposed) output = output.transpose(0, 1);
  const int64_t reserve = train ? cudnn_reserve(static_cast<RnnMode>(mode), steps, batch, hidden_size, num_layers,
                                                directions, dropout, static_cast<int64_t>(input.element_size()))
                                : 0;
  return {output, rules::empty(hidden_sizes, hx), given(cx) ? rules::empty(cell_sizes, *cx) : rules::empty({0}, hx),
          rules::empty({reserve}, at::kByte),
          given(weight_buffer) ? *weight_buffer : rules::empty({flat_size(weights)}, weights[0])};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> cudnn_rnn_backward(
    const at::Tensor& input, TensorList weights, int64_t weight_stride0, const at::Tensor& weight_buffer,
    const at::Tensor& hx, const OptionalTensor& cx, const at::Tensor& output, const OptionalTensor& grad_output,
    const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, int64_t mode, int64_t hidden_size, int64_t proj_size,
    int64_t num_layers, bool batch_first, double dropout, bool train, bool bidirectional, IntArrayRef batch_sizes,
    const OptionalTensor& dropout_state, const at::Tensor& reserve, std::array<bool, 4> output_mask) {
  if (!given(grad_output) && !given(grad_hy) && !given(grad_cy)) {
    return {at::Tensor(), at::Tensor(), at::Tensor(), std::vector<at::Tensor>(weights.size())};
  }
  at::Tensor grad_input;
  if (batch_first && batch_sizes.empty()) {
    grad_input = rules::empty({input.size(1), input.size(0), input.size(2)}, input).transpose(0, 1);
  } else {
    grad_input = empty_contiguous_like(input);
  }
  std::vector<at::Tensor> grad_weights;
  if (output_mask[3]) {
    // Views of one buffer, like the parameters.
    int64_t total = 0;
    const auto offsets = flat_offsets(weights, &total);
    const at::Tensor buffer = rules::empty({total}, weights[0]);
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto sizes = weights[i].sizes();
      grad_weights.push_back(buffer.as_strided(sizes, c10::contiguous_strides(sizes), offsets[i]));
    }
  }
  // The gradients of the input and of the states are computed whether or not they are wanted.
  return {grad_input, empty_contiguous_like(hx), given(cx) ? empty_contiguous_like(*cx) : at::Tensor(), grad_weights};
}

// Estimate ("slightly over 2MB", native/cudnn/RNN.cpp).
constexpr int64_t kDropoutStateBytes = 2 << 20;

at::Tensor cudnn_init_dropout_state(double dropout, bool train, int64_t seed, std::optional<ScalarType> dtype,
                                    std::optional<at::Layout> layout, std::optional<at::Device> device,
                                    std::optional<bool> pin_memory) {
  return rules::empty({kDropoutStateBytes}, at::kByte);
}

// ---- Fused cells on CUDA (native/cuda/RNN.cu)

ThreeTensors fused_lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  TORCH_CHECK(input_gates.dim() == 2 && input_gates.sizes() == hidden_gates.sizes(),
              "_thnn_fused_lstm_cell: expected gates of equal, 2-dimensional sizes, but got ", input_gates.sizes(),
              " and ", hidden_gates.sizes());
  TORCH_CHECK(cx.numel() * 4 == input_gates.numel(),
              "_thnn_fused_lstm_cell: expected a cell of a quarter of the gates' ", input_gates.sizes(), ", but got ",
              cx.sizes());
  return {empty_contiguous_like(cx), empty_contiguous_like(cx), empty_contiguous_like(input_gates)};
}

ThreeTensors fused_lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                      const at::Tensor& cx, const at::Tensor& cy, const at::Tensor& workspace,
                                      bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) return {};
  return {empty_contiguous_like(workspace), empty_contiguous_like(cx),
          has_bias ? rules::empty({workspace.size(1)}, workspace) : at::Tensor()};
}

constexpr int64_t kGruWorkspacePerState = 5;

TwoTensors fused_gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& hx,
                          const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  TORCH_CHECK(input_gates.dim() == 2 && input_gates.sizes() == hidden_gates.sizes(),
              "_thnn_fused_gru_cell: expected gates of equal, 2-dimensional sizes, but got ", input_gates.sizes(),
              " and ", hidden_gates.sizes());
  return {empty_contiguous_like(hx), rules::empty({hx.size(0), hx.size(1) * kGruWorkspacePerState}, hx)};
}

FiveTensors fused_gru_cell_backward(const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const int64_t gates = workspace.size(1) / kGruWorkspacePerState * 3;
  const auto gate_gradient = [&] { return rules::empty({workspace.size(0), gates}, workspace); };
  const auto bias_gradient = [&] { return has_bias ? rules::empty({gates}, workspace) : at::Tensor(); };
  return {gate_gradient(), gate_gradient(), empty_contiguous_like(grad_hy), bias_gradient(), bias_gradient()};
}

}  // namespace

void register_recurrent_kernels(RuleRegistry& registry) {
  registry.add("aten::mkldnn_rnn_layer", &mkldnn_rnn_layer);
  registry.add("aten::mkldnn_rnn_layer_backward", &mkldnn_rnn_layer_backward);
  registry.add("aten::_cudnn_rnn_flatten_weight", &flatten_weight);
  registry.add("aten::_cudnn_rnn", &cudnn_rnn);
  registry.add("aten::_cudnn_rnn_backward", &cudnn_rnn_backward);
  registry.add("aten::_cudnn_init_dropout_state", &cudnn_init_dropout_state);
  registry.add("aten::_thnn_fused_lstm_cell", &fused_lstm_cell);
  registry.add("aten::_thnn_fused_lstm_cell_backward_impl", &fused_lstm_cell_backward);
  registry.add("aten::_thnn_fused_gru_cell", &fused_gru_cell);
  registry.add("aten::_thnn_fused_gru_cell_backward", &fused_gru_cell_backward);
}

}  // namespace shadowgraph::rules
