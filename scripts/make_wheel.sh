#!/usr/bin/env bash
# The wheel of the Python package from what a build folder holds already, in seconds: BUILD/wheel/shadowgraph-*.whl.
#
#   scripts/make_wheel.sh BUILD            the wheel
#   scripts/make_wheel.sh BUILD --install  and a clean virtual environment BUILD/wheel/venv with nothing in it but the
#                                          wheel; torch and what else tests import are seen in .venv (a .pth file)
#
# `pip install .` needs none of this: it builds all in a folder of its own, with scikit-build-core and torch from PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1")
wheels=$build/wheel
python=.venv/bin/python
pip=("$python" -m pip --quiet --disable-pip-version-check --no-input)

rm -rf "$wheels"/*.whl
"${pip[@]}" wheel . --wheel-dir "$wheels" --no-deps --no-index --no-build-isolation \
  -C build-dir="$wheels/cmake" -C cmake.source-dir=python/prebuilt -C cmake.define.SHADOWGRAPH_BUILD="$build"
ls "$wheels"/*.whl

if [[ ${2:-} == --install ]]; then
  "$python" -m venv --clear --without-pip "$wheels/venv"
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$(echo "$wheels"/venv/lib/python3*/site-packages)/torch_of_the_checkout.pth"
  "${pip[@]}" --python "$wheels/venv/bin/python" install --no-deps --no-index "$wheels"/*.whl
fi
