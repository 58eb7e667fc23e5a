// Leaves a rank its part under ZeRO (Rajbhandari et al. 2020): stage 1 divides optimizer state by the ranks, 2 also
// gradients, 3 also parameters. Parts are rounded up to whole bytes; collectives' buffers are not counted.
#include <algorithm>
#include <map>

#include "ir/analysis/module_tree.h"
#include "profiler/what_if/question.h"

namespace shadowgraph::step_lives {

// Stage 3 gathers the parameters of a module when it runs. One module is whole at any time, so the largest is counted.
int64_t Question::largest_module(const Lives& lives) const {
  std::map<std::string, int64_t> owned;
  int64_t most = 0;
  for (const Life& life : lives.all) {
    if (!life.storage.valid() || life.kind != StorageKind::kParameter) continue;
    const std::string name = placeholder_name(graph_, graph_.storage(life.storage).born);
    most = std::max(most, owned[name.substr(0, std::min(name.rfind('.'), name.size()))] += whole_bytes(life));
  }
  return most;
}

int64_t Question::whole_bytes(const Life& life) const {
  const int64_t bytes = graph_.storage(life.storage).bytes;
  const bool converted = change_.dtype && dtype_of(graph_, life.storage) == c10::ScalarType::Float;
  return converted ? bytes / 4 * static_cast<int64_t>(c10::elementSize(*change_.dtype)) : bytes;
}

void Question::spread(Lives& lives) const {
  const int64_t ranks = change_.ranks;
  const auto share = [&](int64_t bytes) { return (bytes + ranks - 1) / ranks; };
  std::vector<Life> more;
  for (Life& life : lives.all) {
    switch (life.kind) {
      case StorageKind::kOptimizerState:
        life.bytes = share(life.bytes);
        break;
      case StorageKind::kGradient:
        if (change_.zero_stage < 2) break;
        // The gradient is whole until its backward call has ended; then a rank keeps its part.
        if (life.born > 0 && life.born < lives.optimizer) {
          more.push_back(
              {life.born, end_of_call(life.born), life.bytes - share(life.bytes), StorageKind::kTemporary, {}});
        }
        life.bytes = share(life.bytes);
        break;
      case StorageKind::kParameter:
        if (change_.zero_stage == 3) life.bytes = share(life.bytes);
        break;
      default:
        // What the optimizer makes follows from parts of parameters.
        if (life.born >= lives.optimizer) life.bytes = share(life.bytes);
    }
  }
  if (change_.zero_stage == 3) {
    const int64_t whole = largest_module(lives);
    more.push_back(
        {0, lives.optimizer == 0 ? 0 : lives.optimizer - 1, whole - share(whole), StorageKind::kTemporary, {}});
  }
  lives.all.insert(lives.all.end(), more.begin(), more.end());
}

}  // namespace shadowgraph::step_lives
