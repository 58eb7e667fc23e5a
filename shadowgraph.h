// All of shadowgraph's public headers. Programs that need one concept include its header alone.
#pragma once

#include "core/capture/capture.h"
#include "core/capture/module_scope.h"
#include "core/capture/torchscript.h"
#include "core/checkpoint/checkpoint.h"
#include "core/fake/errors.h"
#include "core/fake/fake_tensor_mode.h"
#include "core/rules/registry.h"
#include "core/rules/support.h"
#include "ir/effects.h"
#include "ir/equal.h"
#include "ir/graph.h"
#include "ir/parser.h"
#include "ir/printer.h"
#include "ir/verifier.h"
#include "passes/pass.h"
#include "passes/pipeline.h"
#include "profiler/report.h"
#include "profiler/summary_table.h"
#include "viz/dot_writer.h"
#include "viz/svg_writer.h"
#include "viz/view_model.h"

namespace sg = shadowgraph;
