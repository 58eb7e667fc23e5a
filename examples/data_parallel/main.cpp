// Data parallel training like DistributedDataParallel: each rank has the full model and a shard of the batch. Gradients
// are collected in buckets of 25 MiB, and each bucket is all-reduced as soon as backward has filled it. One of 16 ranks
// is captured and profiled, without GPUs and without a network.
#include <shadowgraph/capture/capture.h>
#include <shadowgraph/capture/process_group.h>
#include <shadowgraph/profile/communication.h>
#include <shadowgraph/profile/device_spec.h>
#include <shadowgraph/profile/profile.h>
#include <shadowgraph/profile/step_time.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <deque>
#include <iostream>

namespace sg = shadowgraph;

constexpr int64_t kProcesses = 16;
constexpr int64_t kBlocks = 4, kWidth = 1024, kInner = 4096, kBatch = 64;
constexpr int64_t kBucketBytes = 25 * 1024 * 1024;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int64_t i = 0; i < kBlocks; ++i) {
      const std::string name = std::to_string(i);
      up.push_back(register_module("up" + name, torch::nn::Linear(kWidth, kInner)));
      down.push_back(register_module("down" + name, torch::nn::Linear(kInner, kWidth)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    const sg::ModuleScope scope(*this);
    for (int64_t i = 0; i < kBlocks; ++i) {
      const auto at = static_cast<size_t>(i);
      x = x + down[at](torch::relu(up[at](x)));
    }
    return x;
  }
  std::vector<torch::nn::Linear> up, down;
};
TORCH_MODULE(Net);

// Averages gradients over a process group, overlapped with backward.
class Reducer {
 public:
  Reducer(const std::vector<at::Tensor>& parameters, c10d::ProcessGroup& group) : group_(group) {
    // Backward computes gradients of the last parameters first.
    for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
      if (buckets_.empty() || buckets_.back().bytes >= kBucketBytes) buckets_.emplace_back();
      Bucket& bucket = buckets_.back();
      bucket.parameters.push_back(*parameter);
      bucket.offsets.push_back(bucket.elements);
      bucket.elements += parameter->numel();
      bucket.bytes += static_cast<int64_t>(parameter->nbytes());
    }
    for (Bucket& bucket : buckets_) {
      bucket.flat = at::empty({bucket.elements}, bucket.parameters[0].options().requires_grad(false));
      for (size_t i = 0; i < bucket.parameters.size(); ++i) {
        bucket.parameters[i].register_hook(
            [this, &bucket, i](const at::Tensor& gradient) { take(bucket, i, gradient); });
      }
    }
  }

  // Waits for all buckets and writes the averages to .grad. Call after backward.
  void finish() {
    for (Bucket& bucket : buckets_) {
      bucket.work->wait();
      for (size_t i = 0; i < bucket.parameters.size(); ++i) bucket.parameters[i].mutable_grad().copy_(part(bucket, i));
      bucket.filled = 0;
    }
  }
  size_t buckets() const { return buckets_.size(); }

 private:
  struct Bucket {
    std::vector<at::Tensor> parameters;
    std::vector<int64_t> offsets;
    int64_t elements = 0;
    int64_t bytes = 0;
    at::Tensor flat;
    size_t filled = 0;
    c10::intrusive_ptr<c10d::Work> work;
  };

  static at::Tensor part(const Bucket& bucket, size_t i) {
    const at::Tensor& parameter = bucket.parameters[i];
    return bucket.flat.narrow(0, bucket.offsets[i], parameter.numel()).view(parameter.sizes());
  }
  void take(Bucket& bucket, size_t i, const at::Tensor& gradient) {
    part(bucket, i).copy_(gradient);
    if (++bucket.filled < bucket.parameters.size()) return;
    std::vector<at::Tensor> tensors{bucket.flat};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    options.asyncOp = true;
    bucket.work = group_.allreduce(tensors, options);
  }

  c10d::ProcessGroup& group_;
  std::deque<Bucket> buckets_;
};

int main() {
  const sg::FakeMesh mesh({{"dp", kProcesses}});
  sg::FakeTensorMode mode({.device = at::kCUDA});
  Net net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Reducer reducer(net->parameters(), *mesh.group("dp"));
  const at::Tensor batch = at::empty({kBatch, kWidth});

  sg::Capture session(*net);
  session.name_input(batch, "batch");
  const at::Tensor loss = net->forward(batch).square().mean();
  loss.backward();
  reducer.finish();
  {
    const sg::PhaseScope phase("optimizer");
    optimizer.step();
  }
  const sg::Graph graph = session.finish({loss});

  const sg::DeviceSpec device = sg::DeviceSpec::named("h100");
  const sg::Interconnect links = sg::Interconnect::named("h100");
  const sg::Profile profile = sg::profile(graph, {.spec = &device, .interconnect = &links});
  std::cout << sg::to_text(profile);

  // Expected values. A block has 2 x 1024 x 4096 weights and 4096 + 1024 biases in float32: 32 MiB + 20 KiB, a bucket.
  const int64_t bytes = kBlocks * (2 * kWidth * kInner + kInner + kWidth) * 4;
  const sg::CommunicationSum sent = profile.communication()->total();
  // A ring of 16 ranks over two nodes of 8: 30 hops, 2 of them between nodes at 8 x 50 GB/s > 370.8 GB/s of NVLink.
  // Filling the pipeline costs a quarter of the bytes of a hop.
  const double wire = 2.0 * 15 / 16 * static_cast<double>(bytes);
  const double ring = kBlocks * (6.6e-6 + 28 * 0.6e-6 + 2 * 2.7e-6) + (1 + 0.25 / 30) * wire / 370.8e9;
  const bool right = reducer.buckets() == kBlocks && sent.calls == kBlocks && sent.payload == bytes &&
                     std::abs(static_cast<double>(sent.wire) - wire) <= 2 * kBlocks &&
                     std::abs(sent.seconds - ring) < 1e-3 * ring &&
                     // parameters, gradients and buckets are live at the peak, plus a few activations
                     profile.peak.bytes >= 3 * bytes && profile.peak.bytes < 3 * bytes + (64 << 20) &&
                     profile.overlap()->seconds() < profile.overlap()->at_most();
  std::cout << "\npeak of a process " << profile.peak.bytes << " bytes, sends " << sent.wire << " bytes in "
            << sent.seconds * 1e3 << " ms; a step takes " << profile.overlap()->seconds() * 1e3 << " ms\n"
            << (right ? "as expected\n" : "not as expected\n");
  return right ? 0 : 1;
}
