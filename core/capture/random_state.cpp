#include "core/capture/random_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace shadowgraph {

static constexpr int kForeignBlocks = 4096;  // of 624 words

at::CPUGeneratorImpl& impl_of(const at::Generator& generator) {
  return *static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

RandomState RandomState::of(const at::Generator& generator) {
  at::CPUGeneratorImpl& impl = impl_of(generator);
  const std::lock_guard lock(impl.mutex_);
  return {impl.engine().data(), impl.next_float_normal_sample(), impl.next_double_normal_sample()};
}

void RandomState::put_into(const at::Generator& generator) const {
  at::CPUGeneratorImpl& impl = impl_of(generator);
  const std::lock_guard lock(impl.mutex_);
  at::mt19937 moved = impl.engine();  // a copy: constructing one seeds it, which is slow
  moved.set_data(engine);
  impl.set_engine(moved);
  impl.set_next_float_normal_sample(next_float);
  impl.set_next_double_normal_sample(next_double);
}

bool operator==(const RandomState& a, const RandomState& b) {
  return a.engine.seed_ == b.engine.seed_ && a.engine.left_ == b.engine.left_ && a.engine.next_ == b.engine.next_ &&
         a.engine.state_ == b.engine.state_ && a.next_float == b.next_float && a.next_double == b.next_double;
}

bool is_untouched(const at::mt19937_data_pod& engine) { return engine.left_ == 1 && engine.next_ == 0; }

bool is_drawn_from(const at::mt19937_data_pod& ticket, const at::mt19937_data_pod& found) {
  at::mt19937 drawn_from;
  drawn_from.set_data(ticket);
  for (int block = 0; block < kForeignBlocks; ++block) {
    for (int i = 0; i < (block == 0 ? 1 : at::MERSENNE_STATE_N); ++i) drawn_from();
    if (drawn_from.data().state_ == found.state_) return true;
  }
  return false;
}

}  // namespace shadowgraph
