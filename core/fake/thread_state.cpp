#include "core/fake/thread_state.h"

namespace shadowgraph {

thread_local constinit ThreadState thread_state;

ThreadBelongings& thread_belongings() {
  thread_local ThreadBelongings belongings;
  return belongings;
}

}  // namespace shadowgraph
