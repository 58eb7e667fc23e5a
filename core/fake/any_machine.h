// Makes the options of a mode for what a graph names, or a real program: devices of a machine that nobody described.
#pragma once

#include "shadowgraph/fake.h"

namespace shadowgraph {

// There are all devices that can be, whatever their profile.
FakeTensorOptions of_any_machine(FakeTensorOptions options = {});

}  // namespace shadowgraph
