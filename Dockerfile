# docker build -t shadowgraph . && docker run --rm shadowgraph profile resnet50 --mode train --device cuda
#
# TORCH selects a version of cmake/torch_versions.txt. The default version is installed from PyPI with CUDA.
FROM debian:12 AS build
ARG TORCH=
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends make ca-certificates && rm -rf /var/lib/apt/lists/*
WORKDIR /shadowgraph
COPY cmake/torch_versions.txt cmake/
COPY scripts/setup.sh scripts/
RUN if [ -n "$TORCH" ]; then sed -i "s/ *default$//; s/^$TORCH .*/& default/" cmake/torch_versions.txt; fi && \
  scripts/setup.sh --wheel
COPY . .
RUN if [ -n "$TORCH" ]; then sed -i "s/ *default$//; s/^$TORCH .*/& default/" cmake/torch_versions.txt; fi && \
  make python && .venv/bin/pip install --no-deps build/wheel/*.whl && rm -rf build
ENTRYPOINT ["/shadowgraph/.venv/bin/shadowgraph"]
