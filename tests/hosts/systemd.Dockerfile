# A machine that runs systemd, with gemps for servers and workers in /opt/gemps: the worker's image, booted.
ARG SERVER_IMAGE=gemps-server
ARG WORKER_IMAGE=gemps-worker
FROM ${SERVER_IMAGE} AS server
FROM ${WORKER_IMAGE}
USER root
COPY --from=server /opt/gemps/lib /opt/gemps/lib
# The packages come from the folder that the test fills for an image without sources of its own, or else from these.
RUN --mount=type=bind,source=packages,target=/packages \
    if ls /packages/*.deb >/dev/null 2>&1; then set -- /packages/*.deb; else apt-get update; set -- systemd; fi; \
    apt-get install --yes --no-install-recommends "$@"
# The image's own user goes, as the page that is tested makes one; and these two would change the engine's machine.
RUN userdel gemps && systemctl mask systemd-sysctl.service systemd-modules-load.service
COPY deploy /srv/gemps/deploy
WORKDIR /srv/gemps
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT []
CMD ["/lib/systemd/systemd"]
