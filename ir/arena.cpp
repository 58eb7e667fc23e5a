#include "shadowgraph/graph/arena.h"

#include <sys/mman.h>

#include <new>

namespace shadowgraph {

// Large blocks ask for large pages: a walk over a large graph then misses the TLB less.
void* allocate_arena_block(size_t bytes) {
  // The size of x86's large pages; where they are another size, this is only a matter of speed.
  constexpr size_t kLargePage = size_t{1} << 21;
  const bool large = bytes >= 2 * kLargePage;
  // std::aligned_alloc wants a multiple of the alignment.
  void* block =
      large ? std::aligned_alloc(kLargePage, (bytes + kLargePage - 1) / kLargePage * kLargePage) : std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // A refusal costs nothing but the speed.
  if (large) madvise(block, bytes, MADV_HUGEPAGE);
#endif
  return block;
}

}  // namespace shadowgraph
