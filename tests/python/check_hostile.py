#!/usr/bin/env python3
"""Checks that damaged and hostile files give exit code 0, 1 or 2 and a message, in bounded time and memory.

    check_hostile.py TOOL SERVER [--first N] [--count N] [--seed N] [--only NUMBER ...] [--reader NAME ...]
                     [--keep FOLDER] [--good FOLDER]

Every input is a seeded mutation of a valid file (hostile_inputs.py) and can be recreated by its number: --only 17.
Failing inputs are stored in the folder --keep.
"""

import argparse
import concurrent.futures
import pathlib
import shutil
import sys
import tempfile

import hostile_inputs
from limited_runs import Runs, problem_of


def check_one(number, options, readers, good, runs):
    rng = hostile_inputs.generator(options.seed, number)
    reader = readers[number % len(readers)]
    source = rng.choice(good[reader])
    words = hostile_inputs.command(reader, rng).split(" ")
    with tempfile.TemporaryDirectory(dir=runs.folder) as name:
        folder = pathlib.Path(name)
        file = folder / f"input{source.suffix}"
        file.write_bytes(hostile_inputs.mutate(source, rng))
        (folder / "out").mkdir()
        if reader == "manifest":
            place = folder / "cache" / "aten::add_Tensor"
            place.mkdir(parents=True)
            shutil.copy(file, place / "0001.json")
            (place / "0001.so").write_bytes(b"no library")
        replaced = {"FILE": str(file), "GOOD": str(good["graph"][0]), "OUT": str(folder / "out"),
                    "DIR": str(folder / "cache"), "INPUTS": str(good["graph"][0].parent)}
        for key, value in replaced.items():
            words = [word.replace(key, value) for word in words]
        code, out, err, resident = runs.run(*words, cwd=folder)
        # diff exits with 1 for differences, like diff(1).
        problem = problem_of(code, err or out if "--nodes" in words else err, resident)
        kept = pathlib.Path(options.keep) / f"{number}{source.suffix}"
        if problem or options.only:
            pathlib.Path(options.keep).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, kept)
    shown = " ".join(words).replace(str(file), str(kept))
    said = f"{number} {reader}: {problem or code}\n  {shown}\n  {err[-400:].strip()}"
    if options.only:
        print(said)
    return said if problem else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("server")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", type=int, nargs="*", default=[])
    parser.add_argument("--reader", nargs="*", default=[])
    parser.add_argument("--keep", default=str(pathlib.Path(tempfile.gettempdir()) / "hostile"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--good", help="folder of good inputs, made once and kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(options.tool, options.server, pathlib.Path(name), options.jobs)
        inputs = pathlib.Path(options.good or pathlib.Path(name) / "good")
        if inputs.is_dir():
            good = hostile_inputs.good_in(inputs)
        else:
            inputs.mkdir()
            good = hostile_inputs.make_good(inputs, runs.good)
        readers = sorted(good)
        numbers = options.only or range(options.first, options.first + options.count)
        if options.reader:
            numbers = [n for n in numbers if readers[n % len(readers)] in options.reader]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            failures = 0
            for said in pool.map(lambda number: check_one(number, options, readers, good, runs), numbers):
                failures += said != ""
                if said:
                    print(said, flush=True)
    print(f"{failures} failures of {len(numbers)}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
