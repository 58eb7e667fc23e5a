#!/usr/bin/env python3
"""Generates the text of a graph with many nodes in many modules, to test HTML pages (docs/figures.md).

    bench/million_nodes.py build/pages/graphs/million.sg [--nodes 1000001]
    build/bin/shadowgraph draw build/pages/graphs/million.sg -o build/pages/million.html

The graph has stages of layers like a transformer. Each layer differs slightly from the previous one, so that they are
not folded and the page shows all modules.
"""

import argparse
import os

LAYERS = 20  # per stage
MODULES = ("attention", "mlp")
OPERATORS = ("aten::relu", "aten::neg", "aten::exp", "aten::abs")


def lines(nodes):
    yield "shadowgraph 1 libtorch 2.13.0"
    yield 'meta "model" = "million"'
    for name in OPERATORS:
        yield f"operator {name}(Tensor self) -> Tensor"
    each = 45  # operators per module
    calls = nodes - 1
    modules = -(-calls // each)
    layers = -(-modules // len(MODULES))
    # Storages: the input and the result of each operator, which is freed three operators later.
    yield "s0 = 4096 cuda:0 input"
    for i in range(1, nodes):
        yield f"s{i} = {4096 + 512 * (i % 7)} cuda:0 temporary"
    region = 0
    of_module = []
    for layer in range(layers):
        stage, number = divmod(layer, LAYERS)
        if number == 0:
            region += 1
            outer = region
            yield f'r{region} = module "stage{stage}" "Stage" call 0 in r0'
        region += 1
        inner = region
        yield f'r{region} = module "stage{stage}.layers.{number}" "Layer" call 0 in r{outer}'
        for name in MODULES:
            region += 1
            of_module.append(region)
            yield f'r{region} = module "stage{stage}.layers.{number}.{name}" "{name.title()}" call 0 in r{inner}'
    shape = "f32[32,32]"
    yield f'n0: %0 = sg::input(name="x") : {shape} @s0'
    for i in range(1, nodes):
        at = (i - 1) // each
        operator = OPERATORS[(i + at * at) % len(OPERATORS)]
        free = f" free(s{i - 3})" if i > 3 else ""
        yield f"n{i}: %{i} = {operator}(self=%{i - 1}) : {shape} @s{i} | r{of_module[at]}{free}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output")
    parser.add_argument("--nodes", type=int, default=1_000_001)
    arguments = parser.parse_args()
    unfinished = arguments.output + ".tmp"
    with open(unfinished, "w") as file:
        for line in lines(arguments.nodes):
            file.write(line + "\n")
    os.replace(unfinished, arguments.output)


if __name__ == "__main__":
    main()
