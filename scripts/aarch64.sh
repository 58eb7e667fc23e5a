#!/usr/bin/env bash
# Cross-compiles the library and the tool for aarch64 in build-aarch64/, against the aarch64 wheel of torch on PyPI.
#
#   scripts/aarch64.sh 2.15.0          a version of cmake/torch_versions.txt
#   scripts/aarch64.sh 2.15.0 --run    also profiles a model in qemu-aarch64-static
#
# Requires Debian's g++-aarch64-linux-gnu, and qemu-user-static for --run. Installs nothing outside the build folder.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
build=$PWD/build-aarch64
root=$build/root
say() { echo "aarch64: $*" >&2; }
mkdir -p "$build"/{apt/lists/partial,apt/archives/partial,wheels}

# Uses a private apt state for arm64. Downloads libraries to link and to load at run time.
if [[ ! -e $root/usr/lib/aarch64-linux-gnu/libgvc.so ]]; then
  say "downloading Debian libraries for arm64"
  : >>"$build/apt/status"
  apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root
    -o Dir::State="$build/apt" -o Dir::State::status="$build/apt/status" -o Dir::Cache="$build/apt")
  "${apt[@]}" update
  (cd "$build/apt/archives" && "${apt[@]}" download libc6 libgcc-s1 libstdc++6 libgomp1 zlib1g zlib1g-dev libexpat1 \
    libltdl7 libgraphviz-dev libgvc6 libcgraph6 libcdt5 libpathplan4 libxdot4)
  for package in "$build"/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
fi

# unpack FOLDER PACKAGE...: unpacks aarch64 wheels without their dependencies.
unpack() {
  .venv/bin/python -m pip download --quiet --disable-pip-version-check --dest "$build/wheels" --no-deps \
    --only-binary=:all: --platform manylinux_2_28_aarch64 --platform manylinux_2_25_aarch64 \
    --platform manylinux2014_aarch64 "${@:2}"
  for wheel in "$build"/wheels/*.whl; do .venv/bin/python -m zipfile -e "$wheel" "$1"; done
  rm "$build"/wheels/*.whl
}
torch=$build/torch-$version/torch
if [[ ! -e $torch/lib/libtorch_cpu.so ]]; then
  say "downloading torch $version"
  unpack "$build/torch-$version" "torch==$version"
  rm -f "$torch"/lib/libtorch_cuda*.so # half of the size, and not linked
fi

cat >"$build/toolchain.cmake" <<EOF
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L$root/usr/lib/aarch64-linux-gnu -Wl,-rpath-link,$root/usr/lib/aarch64-linux-gnu -Wl,--allow-shlib-undefined")
EOF
PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root \
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHADOWGRAPH_BUILD_TESTS=OFF -DSHADOWGRAPH_BUILD_BENCH=OFF \
  -DCMAKE_TOOLCHAIN_FILE="$build/toolchain.cmake" -DTORCH_DIR="$torch" --log-level=WARNING
cmake --build "$build" -j "${JOBS:-1}" --target shadowgraph shadowgraph_tool
file -L "$build/libshadowgraph.so" "$build/bin/shadowgraph"

if [[ ${2:-} == --run ]]; then
  # CUDA libraries linked by libtorch_cpu.
  cuda=$build/torch-$version/nvidia/cu13/lib
  if [[ ! -e $cuda/libcupti.so.13 ]]; then
    minor=$(sed -n "s/^$version *\([0-9.]*\) .*/\1/p" cmake/torch_versions.txt)
    say "downloading CUDA runtime and CUPTI $minor"
    unpack "$build/torch-$version" "nvidia-cuda-runtime==$minor.*" "nvidia-cuda-cupti==$minor.*"
  fi
  "${QEMU:-qemu-aarch64-static}" -L "$root" -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu:$cuda" \
    "$build/bin/shadowgraph" profile resnet18 --mode train --device cuda --optimizer sgd
fi
