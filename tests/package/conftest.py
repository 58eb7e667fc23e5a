"""Splits the tests into parts, which ctest runs in parallel: `pytest --part 2/24` runs the third of 24 parts."""

import pytest

ALL = pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption("--part", default="0/1", metavar="I/N", help="the I-th of N parts, from 0 on")


def pytest_collection_modifyitems(config, items):
    # Neighboring tests stay together, since those of one file share imports, captures and compiled kernels. Sort by
    # name, because processes may collect in another order.
    part, parts = map(int, config.getoption("--part").split("/"))
    config.stash[ALL] = names = sorted(item.nodeid for item in items)
    mine = set(names[part * len(names) // parts : (part + 1) * len(names) // parts])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in mine])
    items[:] = [item for item in items if item.nodeid in mine]
