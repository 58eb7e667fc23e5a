// What to do about ranks that wait for ever, for errors.
#pragma once

namespace shadowgraph {

constexpr const char* kHowToMeet =
    ". Every send needs a receive at its other rank, in the same order, and every collective a call at each rank of "
    "its "
    "group. Two ranks that wait for each other first issue what they send: batch_isend_irecv, or isend before recv";

}  // namespace shadowgraph
