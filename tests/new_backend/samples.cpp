// PyTorch's own samples on examples/new_backend's device and on the CPU: results and written arguments bit for bit.
//
//     new_backend_samples SAMPLES [EVERY]       every EVERYth sample (default 1), each in a child process
//
// Both sides may raise. Memory that nobody wrote (empty, resize_) is compared by geometry. Fails if a child crashes on
// the device, or an operator differs that kKnown does not have.
#include "tests/conformance/samples.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstring>
#include <iostream>
#include <map>

#include "examples/new_backend/host_device.h"
#include "shadowgraph/error.h"
#include "tests/conformance/workers.h"

namespace shadowgraph::conformance {
namespace {

const c10::Device kHost(c10::DeviceType::PrivateUse1, 0);

// What differs, and why.
const std::map<std::string, const char*> kKnown = {
    {"aten::_ctc_loss.Tensor", "a result that is not written whole"},
    {"aten::_ctc_loss.Tensor_out", "the same"},
    {"aten::_ctc_loss.out", "the same"},
    {"aten::_ctc_loss", "the same"},
    {"aten::native_batch_norm.out", "the same"},
    {"aten::linalg_lstsq", "the same"},
    {"aten::mkldnn_rnn_layer", "the same: its workspace"},
    {"aten::gru.input", "libtorch takes fused cells for granted on PrivateUse1 (_thnn_fused_gru_cell)"},
    {"aten::gru.data", "the same"},
    {"aten::gru_cell", "the same"},
    {"aten::lstm.input", "the same (_thnn_fused_lstm_cell)"},
    {"aten::lstm.data", "the same"},
    {"aten::lstm_cell", "the same"},
    {"aten::svd.U", "asks for a kernel of the device by its name"},
    {"aten::mode.values", "the same"},
    {"aten::tensor_split.tensor_indices_or_sections", "its indices must be on the CPU"},
    {"aten::addr_", "the CPU raises where the operator that it is made of here does not"},
    {"aten::scaled_dot_product_attention", "bf16: on the CPU one kernel, here the operators of the math path"},
    {"aten::pixel_unshuffle", "strides of dimensions of size 1"},
};

struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// The sample's tensors on the device, with geometry and gradients, and sharing what they share.
std::vector<at::Tensor> on_device(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::map<const c10::StorageImpl*, c10::Storage> storages;
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) {
      out.push_back(tensor);
      continue;
    }
    auto& storage = storages[tensor.storage().unsafeGetStorageImpl()];
    if (!storage) {
      const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
      const at::Tensor memory = at::empty({bytes}, at::TensorOptions(kHost).dtype(at::kByte));
      if (bytes > 0) std::memcpy(memory.mutable_data_ptr(), tensor.storage().data(), tensor.storage().nbytes());
      storage = memory.storage();
    }
    at::Tensor there = at::empty({0}, tensor.options().device(kHost));
    there.set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
    if (tensor.is_conj()) there._set_conj(true);
    if (tensor.is_neg()) there._set_neg(true);
    out.push_back(there.set_requires_grad(tensor.requires_grad()));
  }
  return out;
}

struct Outcome {
  bool raised = false;
  std::string message;
  std::vector<at::Tensor> tensors;
  std::string numbers;
};

void collect(const c10::IValue& result, Outcome& out) {
  if (result.isTensor()) {
    out.tensors.push_back(result.toTensor());
  } else if (result.isTensorList() || (result.isList() && !result.toListRef().empty())) {
    for (const c10::IValue& element : result.toListRef()) collect(element, out);
  } else {
    out.numbers += c10::str(result, ' ');
  }
}

Outcome run(const Samples& samples, size_t index, const c10::OperatorHandle& op, const std::vector<at::Tensor>& given,
            const std::vector<bool>& not_leaf, bool device) {
  Outcome out;
  at::manual_seed(0);
  std::vector<at::Tensor> passed = given;
  for (size_t i = 0; i < passed.size(); ++i) {
    if (not_leaf[i]) passed[i] = passed[i].clone();
  }
  torch::jit::Stack stack = *samples.stack(index, passed);
  for (c10::IValue& argument : stack) {
    if (device && argument.isDevice() && argument.toDevice().is_cpu()) argument = kHost;
  }
  try {
    op.callBoxed(stack);
    for (const c10::IValue& result : stack) collect(result, out);
    for (const at::Tensor& tensor : passed) out.tensors.push_back(tensor);
  } catch (const c10::Error& error) {
    out.raised = true;
    out.message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    out.raised = true;
    out.message = error.what();
  }
  return out;
}

bool unwritten(const std::string& op) {
  return op.find("empty") != op.npos || op.find("resize") != op.npos || op.find("set_.source") != op.npos;
}

std::string difference(const at::Tensor& cpu, const at::Tensor& device, bool values) {
  if (cpu.defined() != device.defined()) return "defined on one side";
  if (!cpu.defined()) return "";
  if (cpu.scalar_type() != device.scalar_type()) return c10::str("dtype ", cpu.dtype(), ", ", device.dtype());
  if (cpu.sizes() != device.sizes()) return c10::str("sizes ", cpu.sizes(), ", ", device.sizes());
  if (cpu.layout() != c10::kStrided || !cpu.has_storage() || !values) return "";
  if (cpu.strides() != device.strides()) return c10::str("strides ", cpu.strides(), ", ", device.strides());
  if (cpu.is_conj() != device.is_conj() || cpu.is_neg() != device.is_neg()) return "conjugate or negative bit";
  const at::Tensor a = at::empty(cpu.sizes(), cpu.options()).copy_(cpu.detach());
  const at::Tensor b = at::empty(cpu.sizes(), cpu.options()).copy_(device.detach());
  if (a.numel() > 0 && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) != 0) return "values";
  return "";
}

// "" if both sides agree, "both raise", "layout" for tensors that host memory does not hold, or what differs.
std::string judge(const Samples& samples, size_t index, const std::function<void(char)>& mark) {
  const Sample sample = samples.sample(index);
  const auto op = Samples::find(sample.op);
  if (!op) return "this libtorch has no such operator";
  mark('c');
  const Arguments mine = samples.arguments(index, Contents::kCopied);
  const Outcome cpu = run(samples, index, *op, mine.tensors, mine.not_leaf, false);
  mark('d');
  const Arguments theirs = samples.arguments(index, Contents::kCopied);
  const Outcome device = run(samples, index, *op, on_device(theirs.tensors), theirs.not_leaf, true);
  if (cpu.raised && device.raised) return "both raise";
  if (device.raised && device.message.find("host memory does not hold") != std::string::npos) return "layout";
  if (cpu.raised || device.raised) {
    return fmt::format("only {} raises: {}", cpu.raised ? "the CPU" : "the device", cpu.message + device.message);
  }
  if (cpu.numbers != device.numbers && !unwritten(sample.op)) {
    return fmt::format("numbers {} on the CPU, {}", cpu.numbers, device.numbers);
  }
  if (cpu.tensors.size() != device.tensors.size()) return "another number of results";
  for (size_t i = 0; i < cpu.tensors.size(); ++i) {
    const std::string text = difference(cpu.tensors[i], device.tensors[i], !unwritten(sample.op));
    if (!text.empty()) return fmt::format("tensor {}: {}", i, text);
  }
  return "";
}

int main_program(int argc, char** argv) {
  if (argc < 2) throw Error("usage: new_backend_samples SAMPLES [EVERY]");
  const size_t every = argc > 2 ? std::stoul(argv[2]) : 1;
  torch::set_num_threads(1);
  NoWarnings no_warnings;
  c10::WarningUtils::set_warning_handler(&no_warnings);
  host::register_device();
  const Samples samples(argv[1]);
  std::vector<size_t> indices;
  for (size_t i = 0; i < samples.size(); i += every) indices.push_back(i);
  std::map<std::string, size_t> counts;
  std::map<std::string, std::pair<size_t, std::string>> kinds;
  run_in_children(
      indices, 1, 60, [&](size_t index, const std::function<void(char)>& mark) { return judge(samples, index, mark); },
      [&](size_t index, bool died, char mark, const std::string& text) {
        const std::string verdict = died ? (mark == 'c' ? "the CPU crashes" : "the device crashes") : text;
        if (verdict.empty() || verdict == "both raise" || verdict == "layout" || verdict == "the CPU crashes") {
          ++counts[verdict.empty() ? "agree" : verdict];
          return;
        }
        const Sample sample = samples.sample(index);
        if (!died && kKnown.contains(sample.op)) {
          ++counts["differ as known"];
          return;
        }
        ++counts["differ"];
        auto& kind = kinds[sample.op];
        if (kind.first++ == 0) kind.second = fmt::format("#{} {}: {}", index, sample.dtype, verdict.substr(0, 200));
      });
  for (const auto& [op, kind] : kinds) fmt::print("{:5} x {} {}\n", kind.first, op, kind.second);
  for (const auto& [verdict, count] : counts) fmt::print("{:6} {}\n", count, verdict);
  fmt::print("{} samples\n", indices.size());
  return counts.contains("differ") ? 1 : 0;
}

}  // namespace
}  // namespace shadowgraph::conformance

int main(int argc, char** argv) {
  try {
    return shadowgraph::conformance::main_program(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "new_backend_samples: " << error.what() << '\n';
    return 2;
  }
}
