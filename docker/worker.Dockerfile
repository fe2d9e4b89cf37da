# A worker, with PyTorch. From the repository's root: docker build -f docker/worker.Dockerfile -t gemps-worker .
#
# BASE_IMAGE:  any Debian-like image with Python 3.11 or newer and its venv module.
# TORCH:       what pip is asked for. On x86-64 Linux the ordinary index has PyTorch's CUDA build, which runs on CPUs, too.
# TORCH_INDEX: another index for these packages alone, such as the one for CPUs that pytorch.org shows under "Get started": the
#              image is then a fifth as large.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS tools
RUN python3 -m venv /opt/pip
COPY docker/install.sh docker/requirements.py /opt/pip/bin/

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 gemps \
    && useradd --uid 10001 --gid gemps --no-create-home --home-dir /var/cache/gemps gemps \
    && install --directory --owner gemps --group gemps /datasets /run/gemps-shared /var/cache/gemps \
    && python3 -m venv --without-pip /opt/gemps
RUN --mount=type=bind,from=tools,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,source=pyproject.toml,target=/source/pyproject.toml \
    --mount=type=bind,source=constraints.txt,target=/source/constraints.txt \
    cd /source \
    && python3 /opt/pip/bin/requirements.py worker --without torch torchvision > /tmp/requirements.txt \
    && /opt/pip/bin/install.sh --constraint constraints.txt --requirement /tmp/requirements.txt dumb-init \
    && rm /tmp/requirements.txt
ARG TORCH="torch torchvision"
ARG TORCH_INDEX=
RUN --mount=type=bind,from=tools,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    /opt/pip/bin/install.sh ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} ${TORCH}
RUN --mount=type=bind,from=tools,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,source=.,target=/source \
    /opt/pip/bin/install.sh --no-deps /source
COPY docker/worker.sh /usr/local/bin/gemps-worker

LABEL org.opencontainers.image.title="gemps worker" \
    org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/gemps/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GEMPS_SERVER=server:50051 \
    GEMPS_DATASET_DIR=/datasets
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
WORKDIR /datasets
# dumb-init passes signals on and buries orphans, whether or not the engine was told --init.
ENTRYPOINT ["dumb-init", "--", "gemps-worker"]
CMD ["gemps", "work"]
