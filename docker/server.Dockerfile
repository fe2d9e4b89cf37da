# The server, without PyTorch. From the repository's root: docker build -f docker/server.Dockerfile -t gemps-server .
#
# BASE_IMAGE: any Debian-like image with Python 3.11 or newer and its venv module.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS tools
RUN python3 -m venv /opt/pip
COPY docker/install.sh docker/requirements.py /opt/pip/bin/

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 gemps \
    && useradd --uid 10001 --gid gemps --no-create-home --home-dir /var/cache/gemps gemps \
    && install --directory --owner gemps --group gemps /data /run/gemps /run/gemps-shared /var/cache/gemps \
    && python3 -m venv --without-pip /opt/gemps
RUN --mount=type=bind,from=tools,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,source=pyproject.toml,target=/source/pyproject.toml \
    --mount=type=bind,source=constraints.txt,target=/source/constraints.txt \
    cd /source \
    && python3 /opt/pip/bin/requirements.py server > /tmp/requirements.txt \
    && /opt/pip/bin/install.sh --constraint constraints.txt --requirement /tmp/requirements.txt dumb-init \
    && rm /tmp/requirements.txt
RUN --mount=type=bind,from=tools,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,source=.,target=/source \
    /opt/pip/bin/install.sh --no-deps /source
COPY docker/healthy.sh /usr/local/bin/gemps-healthy

LABEL org.opencontainers.image.title="gemps server" \
    org.opencontainers.image.licenses="Apache-2.0"
# Kernels are compiled when the server starts, before it serves, and kept here for its next start.
ENV PATH=/opt/gemps/bin:$PATH \
    NUMBA_CACHE_DIR=/var/cache/gemps/kernels \
    PYTHONUNBUFFERED=1 \
    GEMPS_BIND=0.0.0.0:50051 \
    GEMPS_DATA_DIR=/data \
    GEMPS_RESUME=true \
    GEMPS_READY_FILE=/run/gemps/ready.json
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
WORKDIR /data
# gRPC, and the lane.
EXPOSE 50051 50052
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s CMD ["gemps-healthy"]
# dumb-init passes signals on and buries orphans, whether or not the engine was told --init.
ENTRYPOINT ["dumb-init", "--"]
CMD ["gemps", "serve"]
