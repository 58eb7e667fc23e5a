// States of CPU generators. A capture and a deferred initialization leave the program a *ticket*, a state without draws
// that names a position in what they record.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>

#include <optional>

namespace at {
struct CPUGeneratorImpl;
}

namespace shadowgraph {

// `generator` must be of the CPU.
at::CPUGeneratorImpl& impl_of(const at::Generator& generator);

// The complete state of a CPU generator; 2.5 KB.
struct RandomState {
  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;  // the second half of the last Box-Muller pair

  static RandomState of(const at::Generator& generator);
  void put_into(const at::Generator& generator) const;
  friend bool operator==(const RandomState& a, const RandomState& b);
};

// Returns whether no number has been drawn since the state was set.
bool is_untouched(const at::mt19937_data_pod& engine);
// Returns whether numbers were drawn from the ticket, at most 2.5 million, so that the engine became `found`.
bool is_drawn_from(const at::mt19937_data_pod& ticket, const at::mt19937_data_pod& found);

}  // namespace shadowgraph
