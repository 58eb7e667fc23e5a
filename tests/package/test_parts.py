"""Splitting of the tests into parts (conftest.py), checked in separate processes."""

import os
import pathlib
import re
import subprocess
import sys

from conftest import ALL

SOME = pathlib.Path(__file__).parent / "test_deferred_reads.py"


def names_of(part, root):
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest, "--collect-only", "-q", "--part", part, SOME],
        cwd=root, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": part[0]})
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_every_test_is_in_one_part(pytestconfig):
    whole = names_of("0/1", pytestconfig.rootpath)
    parts = [name for part in ("0/3", "1/3", "2/3") for name in names_of(part, pytestconfig.rootpath)]
    assert len(whole) > 100 and sorted(parts) == sorted(whole)
    # Test ids are the same in every process, because none contains an address.
    names = pytestconfig.stash[ALL]
    assert len(set(names)) == len(names) and not [name for name in names if re.search("0x[0-9a-f]{6}", name)]
