#!/usr/bin/env bash
# Packages an existing build folder as a wheel, in seconds: BUILD/wheel/shadowgraph-*.whl.
#
#   scripts/make_wheel.sh BUILD            builds the wheel
#   scripts/make_wheel.sh BUILD --install  also installs it in a new virtual environment BUILD/wheel/venv, which only
#                                          contains the wheel; torch and test dependencies come from .venv (.pth file)
#   PYTHON=python3.12 scripts/make_wheel.sh BUILD
#                                          uses another CPython than .venv; the folder must be configured for it
#
# With LOCAL_VERSION=yes the version includes that of torch, 0.1.0+torch2.13.0, so that one folder can contain wheels
# for several versions and pip selects the one for the installed torch.
#
# Not used by `pip install .`, which builds from scratch with scikit-build-core and torch from PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1")
wheels=$build/wheel
# scikit-build-core is taken from .venv for every CPython.
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
