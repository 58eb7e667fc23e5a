"""Runs the parts of a check two at a time, each in a separate folder, and reports failures."""

import concurrent.futures
import pathlib
import sys
import tempfile


def run(parts, failures):
    """Calls each part with its folder, longest first. Parts append to `failures`, which are printed and set the exit
    code."""
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(2) as pool:
        folders = [pathlib.Path(name) / part.__name__ for part in parts]
        for folder in folders:
            folder.mkdir()
        for _ in pool.map(lambda part, folder: part(folder), parts, folders):
            pass  # re-raises an exception of the part
    for failure in failures:
        print(failure)
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)
