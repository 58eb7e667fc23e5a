// Fake tensors whose memory the host reaches by a pointer for a moment: literals that it writes, and tensors that it is
// about to print. Internal to core/.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "core/fake/thread_state.h"

namespace shadowgraph {

// at::tensor({...}) makes an empty tensor and writes the numbers through data_ptr. This lets a new one-dimensional
// tensor be written that way until the next call on this thread.
void open_for_literal(const at::Tensor& fake);
void close_literal();
inline void close_open_literal() {
  if (C10_UNLIKELY(thread_state.literal != nullptr)) close_literal();
}

// Printing a tensor converts it to a CPU tensor of doubles, which it reads through a pointer. After a conversion to
// exactly that, reading such a fake throws with words of ours, until the next call on this thread. Later libtorch's own
// words have to do. The same flag of a storage answers whoever asks where its data begins, to see whether tensors
// overlap.
void refuse_to_print(const at::Tensor& fake);
// Says whether `fake` was just refused: a copy that printing makes of it is to be refused, too.
bool is_refused_to_print(const at::Tensor& fake);
// How that error begins.
inline constexpr std::string_view kPrintedFake = "a fake tensor has no data to print or to read";

class CallObserver;
// Shows the observer what the host wrote into `fake`, through a pointer, since it was last shown.
void show_host_writes(const at::Tensor& fake, CallObserver& observer);

}  // namespace shadowgraph
