#!/bin/sh
# Runs a worker under its container's host name: a restarted container keeps it, and so its worker keeps name and rank.
export GEMPS_WORKER_NAME="${GEMPS_WORKER_NAME:-$(cat /etc/hostname)}"
exec "$@"
