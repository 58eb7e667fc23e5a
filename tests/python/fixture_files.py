"""Shared by the programs that generate fixtures: the command line, and skipping of fixtures that are up to date."""

import argparse
import hashlib
import importlib.metadata
import os
import pathlib
import sys
import types
import warnings


def fingerprint_of(packages, *sources):
    """A hash that changes with the packages, the source files or this file."""
    digest = hashlib.sha256()
    for source in (__file__, *sources):
        digest.update(pathlib.Path(source).read_bytes())
    for package in packages:
        digest.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    return digest.hexdigest()


def stub_torchvision_operators():
    """A torchvision wheel of another build (CUDA with a CPU torch) cannot load its operators and then fails to
    register fake kernels for them. The models do not need them, so this module is stubbed."""
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))


def make_all(about, fixtures, endings, current, make):
    """Command line FOLDER [--only NAME ...] [--list]: makes every fixture whose files are missing or not `current`.

    make: a function of name and folder that writes NAME.ending for each ending and returns a message.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=fixtures, metavar="NAME")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(fixtures))
        return
    stamp = arguments.folder / "fingerprint"
    names = arguments.only or list(fixtures)
    made = all((arguments.folder / f"{name}.{end}").exists() for name in names for end in endings)
    if made and not arguments.only and stamp.exists() and stamp.read_text() == current:
        return
    warnings.simplefilter("ignore")
    os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")
    stub_torchvision_operators()
    import torch

    torch.set_num_threads(2)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        print(f"fixture {name}: {make(name, arguments.folder)}", flush=True)
    if not arguments.only:
        stamp.write_text(current)
