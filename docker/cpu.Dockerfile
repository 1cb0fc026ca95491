# docker build -f docker/cpu.Dockerfile -t manyeyes . && docker run --rm -v "$PWD/runs:/runs" manyeyes run rounds=20
# --build-arg PIP_EXTRA_INDEX_URL=... : the index of PyTorch's CPU builds; without it pip takes the larger CUDA build.
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL
ARG VERSION=0.1.0
COPY . /src
RUN SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MANYEYES=$VERSION pip install --no-cache-dir -c /src/constraints.txt '/src[all]' && rm -r /src
WORKDIR /
ENTRYPOINT ["manyeyes"]
