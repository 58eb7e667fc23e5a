// All of shadowgraph, but for bgl.h, which needs Boost. Programs that need one concept include its header alone.
#pragma once

#include "shadowgraph/analysis.h"
#include "shadowgraph/capture.h"
#include "shadowgraph/checkpoint.h"
#include "shadowgraph/codegen.h"
#include "shadowgraph/deferred.h"
#include "shadowgraph/draw.h"
#include "shadowgraph/edit.h"
#include "shadowgraph/error.h"
#include "shadowgraph/exported_program.h"
#include "shadowgraph/fake.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/operators.h"
#include "shadowgraph/passes.h"
#include "shadowgraph/process_group.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/device_memory.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/time.h"
#include "shadowgraph/profile/traces.h"
#include "shadowgraph/replay.h"
#include "shadowgraph/rules.h"
#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace sg = shadowgraph;
