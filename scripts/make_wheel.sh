#!/usr/bin/env bash
# The wheel of the Python package from what a build folder holds already, in seconds: BUILD/wheel/shadowgraph-*.whl.
#
#   scripts/make_wheel.sh BUILD            the wheel
#   scripts/make_wheel.sh BUILD --install  and a clean virtual environment BUILD/wheel/venv with nothing in it but the
#                                          wheel; torch and what else tests import are seen in .venv (a .pth file)
#   PYTHON=python3.12 scripts/make_wheel.sh BUILD
#                                          for another CPython than .venv's, for which the folder is configured
#
# With LOCAL_VERSION=yes the version says the torch that it is for, 0.1.0+torch2.13.0, so that the wheels for several can
# lie in one folder and pip takes the one for the torch that is installed.
#
# `pip install .` needs none of this: it builds all in a folder of its own, with scikit-build-core and torch from PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1")
wheels=$build/wheel
# scikit-build-core is .venv's, whichever CPython runs it.
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python=${PYTHON:-.venv/bin/python}
pip=("$python" -m pip --quiet --disable-pip-version-check --no-input)

rm -rf "$wheels"/*.whl
SHADOWGRAPH_FOR_TORCH=$(sed -n 's/^TORCH_VERSION = "\(.*\)"/\1/p' "$build/python/_shadowgraph_build.py")
export SHADOWGRAPH_FOR_TORCH SHADOWGRAPH_LOCAL_VERSION=${LOCAL_VERSION:-}
PYTHONPATH=${PYTHON:+$site} "${pip[@]}" wheel . --wheel-dir "$wheels" --no-deps --no-index --no-build-isolation \
  -C build-dir="$wheels/cmake" -C cmake.source-dir=python/prebuilt -C cmake.define.SHADOWGRAPH_BUILD="$build"
ls "$wheels"/*.whl

if [[ ${2:-} == --install ]]; then
  "$python" -m venv --clear --without-pip "$wheels/venv"
  echo "$site" >"$(echo "$wheels"/venv/lib/python3*/site-packages)/torch_of_the_checkout.pth"
  "${pip[@]}" --python "$wheels/venv/bin/python" install --no-deps --no-index "$wheels"/*.whl
fi
