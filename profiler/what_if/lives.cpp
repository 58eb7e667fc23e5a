#include "profiler/what_if/lives.h"

namespace shadowgraph::step_lives {

Most most_of(const Lives& lives) {
  std::vector<BytesByKind> change(size_t{lives.steps} + 1);
  for (const Life& life : lives.all) {
    change[life.born][static_cast<size_t>(life.kind)] += life.bytes;
    if (life.last < lives.steps) change[life.last + 1][static_cast<size_t>(life.kind)] -= life.bytes;
  }
  Most most;
  BytesByKind now{};
  for (uint32_t step = 0; step < lives.steps; ++step) {
    int64_t total = 0;
    for (size_t kind = 0; kind < now.size(); ++kind) total += now[kind] += change[step][kind];
    if (total > most.bytes) most = {total, step, now};
  }
  return most;
}

BytesByKind held_at_end(const Lives& lives) {
  BytesByKind held{};
  for (const Life& life : lives.all) {
    if (life.last >= lives.steps) held[static_cast<size_t>(life.kind)] += life.bytes;
  }
  return held;
}

}  // namespace shadowgraph::step_lives
