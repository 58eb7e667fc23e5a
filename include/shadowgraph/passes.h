// Passes: functions that change graphs. shadowgraph/passes/pass.h has the table that text forms are run by.
#pragma once

#include "shadowgraph/passes/chain_solver.h"
#include "shadowgraph/passes/checkpoint.h"
#include "shadowgraph/passes/checkpoint_curve.h"
#include "shadowgraph/passes/decompose.h"
#include "shadowgraph/passes/float8.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/passes/options.h"
#include "shadowgraph/passes/pass.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/passes/polynomial.h"
#include "shadowgraph/passes/rewrite.h"
#include "shadowgraph/passes/shape_propagation.h"
#include "shadowgraph/passes/simplify.h"
#include "shadowgraph/passes/structure.h"
#include "shadowgraph/passes/symbolic_graph.h"
