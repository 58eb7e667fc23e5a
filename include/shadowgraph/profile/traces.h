// A profile in other programs' formats.
//
//     write_file("nodes.csv", nodes_csv(costs));
//     write_file("trace.json", chrome_trace(costs).dump());           // ui.perfetto.dev, chrome://tracing
//     write_file("snapshot.pickle", memory_snapshot(costs));          // pytorch.org/memory_viz, torch.cuda._memory_viz
//     write_file("model_explorer.json", model_explorer(costs).dump());
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/device_memory.h"

namespace SHADOWGRAPH_API shadowgraph {

// Writes a line a node, after one of names:
//
//   - node, phase, module, op, source, forward (the node it differentiates);
//   - matmul_flops, elementwise_flops, transcendental, read_bytes, written_bytes, intensity (FLOPs a byte);
//   - allocated_bytes, freed_bytes, live_bytes (of the profile's device, while it runs), scratch_bytes and scratch
//     (where that is known from), seconds (empty without times);
//   - what the backward nodes of a forward node take: backward_matmul_flops, backward_elementwise_flops,
//     backward_moved_bytes, backward_seconds;
//   - wire_bytes and communication_seconds (of collectives).
//
// Fields with a comma, a quote or a line break are quoted as RFC 4180 has it.
std::string nodes_csv(const Profile& profile);
// Writes a line a storage:
//
//   - storage, kind, device, bytes;
//   - born, first_use, last_forward_use, first_backward_use, last_use, freed: nodes; empty if there is none, or if it
//     lives on;
//   - module, op and source of its maker, dtype, shape;
//   - kept_by, what kept it alive: "parameter", "autograd, saved at 12" (the first forward node that saved it),
//     "output" or nothing;
//   - at_peak: "yes" for all that is alive at the peak of the profile's device.
std::string storages_csv(const Profile& profile);

// Writes the Trace Event Format, in microseconds. If the profile has times, there are rows for the host's calls and the
// device's kernels. Otherwise every node takes one microsecond, and the trace says so. If it has times of collectives,
// too, they have a row, and each stands where OverlappedStep (shadowgraph/profile/overlapped_step.h) puts it. Modules are
// nested slices over the calls; counters show live bytes by kind, and scratch.
nlohmann::json chrome_trace(const Profile& profile);

// Writes what torch.cuda.memory._dump_snapshot writes, a pickle of protocol 2: segments, blocks and events of the
// simulated caching allocator. Modules and sources are frames, and each storage has one entry. It is about the
// profile's device.
std::string memory_snapshot(const Profile& profile, const DeviceMemoryOptions& options = {});

// Google's Model Explorer: the graph by modules, with shapes on edges, and bytes, FLOPs and seconds as attributes.
nlohmann::json model_explorer(const Profile& profile);

}  // namespace shadowgraph
