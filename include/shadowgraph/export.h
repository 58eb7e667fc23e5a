// Symbol visibility: only declarations in include/shadowgraph are exported (tests/python/check_exports.py).
#pragma once

#define SHADOWGRAPH_API [[gnu::visibility("default")]]
