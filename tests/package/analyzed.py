"""Checks that ColossalAI's analyzer tests make for every model of a zoo."""

import torch


def check(report):
    """Raises AssertionError unless nodes have shapes, and costs and saved tensors are those of a training step."""
    graph, figures = report.graph, report.dict()
    for node in graph:
        for value in torch.utils._pytree.tree_leaves(node.results):
            assert value is None or value.shape is not None, node
    assert 0 < figures["flops"]["forward"] < figures["flops"]["backward"]
    assert figures["peak"]["bytes"] > figures["parameter_bytes"] > 0
    assert sum(len(node.saved) for node in graph) > 10
