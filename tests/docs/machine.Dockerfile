# A machine for the reader of the documentation: the base image with make and systemd, and nothing of gemps.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
# The packages come from the folder that the test fills for an image without sources of its own, or else from these.
ARG PACKAGES
RUN --mount=type=bind,source=packages,target=/packages \
    if ls /packages/*.deb >/dev/null 2>&1; then set -- /packages/*.deb; else apt-get update; set -- ${PACKAGES}; fi; \
    apt-get install --yes --no-install-recommends "$@"
# These two would change the kernel of the machine that this one runs on.
RUN systemctl mask systemd-sysctl.service systemd-modules-load.service
STOPSIGNAL SIGRTMIN+3
CMD ["/lib/systemd/systemd"]
