# docker build -f docker/cuda.Dockerfile -t manyeyes:cuda .
# docker run --rm --gpus all --shm-size 8g -v "$PWD/runs:/runs" manyeyes:cuda run rounds=20
# PyTorch's wheels for Linux bring CUDA's libraries; the driver comes from the host (NVIDIA Container Toolkit).
FROM python:3.12-slim
ARG VERSION=0.1.0
# Triton compiles a small C module when it is first used.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MANYEYES=$VERSION pip install --no-cache-dir -c /src/constraints.txt '/src[all]' && rm -r /src
WORKDIR /
ENTRYPOINT ["manyeyes"]
