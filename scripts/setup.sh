#!/usr/bin/env bash
# Installs missing build dependencies. Fast and silent if nothing is missing.
#
#   scripts/setup.sh           compiler, libraries, libtorch: for `make build` and `make demo`
#   scripts/setup.sh --test    also Python packages for test fixtures, node, Chromium and Firefox
#   scripts/setup.sh --wheel   also scikit-build-core, for wheels of the Python package
#   scripts/setup.sh --lint    also clang-format, clang-tidy, ruff and mypy
#   scripts/setup.sh --fuzz    also clang and its sanitizers
#   scripts/setup.sh --published   also matplotlib, for `make published`
#   scripts/setup.sh --docs    only mkdocs-material, for the documentation site
#
# Installs Debian packages if run as root; otherwise prints the command and fails.
# libtorch is the torch wheel in .venv, unless TORCH_DIR or CMAKE_PREFIX_PATH contains one (cmake/FindLibtorch.cmake).
# PYTHON selects the interpreter for .venv, 3.10 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=$(sed -n 's/^\([0-9.]*\) .* default$/\1/p' cmake/torch_versions.txt)
clang_tidy_version=23.1.4
ruff_version=0.17.6
mypy_version=2.4.1
scikit_build_core_version=1.1.2
mkdocs_material_version=9.8.1
matplotlib_version=3.11.2
packages=(g++ make cmake ninja-build ccache pkg-config python3 python3-dev python3-venv
  libboost-graph-dev libgraphviz-dev zlib1g-dev nlohmann-json3-dev libcli11-dev
  libgtest-dev libgmock-dev libbenchmark-dev)
want_tests=
want_lint=
want_wheel=
want_docs=
want_plots=
want_libtorch=yes
[[ $* == --docs ]] && want_libtorch= # the site only needs Python
for argument in "$@"; do
  case $argument in
    --test)
      want_tests=yes
      want_wheel=yes
      # For tests/page/check.sh. A node from elsewhere has its own npm, and conflicts with that of Debian.
      command -v npm >/dev/null || packages+=(nodejs npm)
      command -v chromium >/dev/null || packages+=(chromium fonts-dejavu-core)
      # Packaged by Debian only; without it, the check skips the tests in Firefox.
      if grep -qs '^ID=debian' /etc/os-release; then
        command -v firefox-esr >/dev/null || packages+=(firefox-esr)
      fi
      ;;
    --wheel) want_wheel=yes ;;
    --lint) packages+=(clang-format); want_lint=yes ;;
    --fuzz) packages+=(clang libclang-rt-14-dev) ;;
    --docs) want_docs=yes ;;
    --published) want_plots=yes ;;
    *) echo "setup.sh: unknown argument $argument (known: --test, --wheel, --lint, --fuzz, --docs, --published)" >&2; exit 2 ;;
  esac
done
[[ -n $want_libtorch ]] || packages=(python3 python3-venv)
say() { echo "setup: $*" >&2; }

if command -v dpkg-query >/dev/null; then
  # dpkg-query fails if a package is unknown, but still prints the others.
  known=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  installed=" $(sed -n 's/^installed //p' <<<"$known" | tr '\n' ' ')"
  missing=()
  for package in "${packages[@]}"; do
    [[ $installed == *" $package "* ]] || missing+=("$package")
  done
  if ((${#missing[@]})); then
    if ((EUID == 0)); then
      say "installing ${missing[*]}"
      apt-get update -qq
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >&2
    else
      say "missing Debian packages, which only root can install; run:"
      echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
else
  for program in ${want_libtorch:+c++ cmake ninja pkg-config}; do
    command -v $program >/dev/null || { say "$program is missing; this is not a Debian system, so install the" \
      "equivalents of these Debian packages: ${packages[*]}"; exit 1; }
  done
fi

# Prints the torch folder below or above $1, searched like in cmake/FindLibtorch.cmake.
torch_folder() {
  local below
  for below in "" /torch /../.. /../../..; do
    if [[ -n $1 && -e $1$below/include/ATen/ATen.h && -e $1$below/lib/libtorch_cpu.so ]]; then
      realpath "$1$below"
      return
    fi
  done
  return 1
}

given=
if [[ -n ${TORCH_DIR:-} ]]; then
  given=$(torch_folder "$TORCH_DIR") || {
    say "TORCH_DIR=$TORCH_DIR contains no libtorch (include/ATen/ATen.h and lib/libtorch_cpu.so)"; exit 1; }
else
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    if [[ -z $given ]]; then given=$(torch_folder "$prefix") || given=; fi
  done
fi

# pip writes RECORD last, so it marks a complete installation.
has_package() { compgen -G ".venv/lib/python3*/site-packages/$1.dist-info/RECORD" >/dev/null; }

wanted=()
if [[ -n $want_libtorch && -z $given || -n $want_tests ]]; then
  has_package "torch-$torch_version*" || wanted+=("torch==$torch_version")
  has_package 'numpy-*' || wanted+=(numpy)
fi
if [[ -n $want_tests ]]; then
  while read -r requirement; do
    [[ -z $requirement || $requirement == \#* ]] && continue
    has_package "${requirement/==/-}*" || wanted+=("$requirement")
  done <tests/python/requirements.txt
fi
if [[ -n $want_wheel ]]; then
  has_package "scikit_build_core-$scikit_build_core_version*" ||
    wanted+=("scikit-build-core==$scikit_build_core_version")
  # Its dependencies on CPython 3.10, with which scripts/make_wheels.sh runs it from .venv.
  for package in tomli exceptiongroup; do has_package "$package-*" || wanted+=("$package"); done
fi
if [[ -n $want_lint ]]; then
  # Three times as fast as version 14 of Debian, because it skips declarations in system headers such as libtorch.
  has_package "clang_tidy-$clang_tidy_version*" || wanted+=("clang-tidy==$clang_tidy_version")
  has_package "ruff-$ruff_version*" || wanted+=("ruff==$ruff_version")
  has_package "mypy-$mypy_version*" || wanted+=("mypy==$mypy_version")
fi
if [[ -n $want_docs ]]; then
  has_package "mkdocs_material-$mkdocs_material_version*" || wanted+=("mkdocs-material==$mkdocs_material_version")
fi
if [[ -n $want_plots ]]; then
  has_package "matplotlib-$matplotlib_version*" || wanted+=("matplotlib==$matplotlib_version")
fi
((${#wanted[@]})) || exit 0

if [[ ! -x .venv/bin/python ]] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  python=
  for candidate in ${PYTHON:-} python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
      python=$candidate
      break
    fi
  done
  if [[ -z $python ]]; then
    say "no Python 3.10 or newer with venv and ensurepip; install one (Debian: python3-venv) or set PYTHON"
    exit 1
  fi
  say "creating .venv with $($python --version)"
  "$python" -m venv .venv
fi
say "pip install ${wanted[*]}"
# Repeat the version of torch, so that no dependency changes it.
if [[ -n $want_libtorch && ${wanted[*]} != clang-tidy* && ${wanted[*]} != ruff* && ${wanted[*]} != mypy* &&
  ${wanted[*]} != mkdocs* ]]; then wanted=("torch==$torch_version" "${wanted[@]}"); fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "${wanted[@]}" >&2
