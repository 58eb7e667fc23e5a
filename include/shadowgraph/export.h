// What the shared library shows of itself: all that the headers in include/shadowgraph declare, and nothing else, since
// it is compiled with hidden symbols (tests/python/check_exports.py).
#pragma once

#define SHADOWGRAPH_API [[gnu::visibility("default")]]
