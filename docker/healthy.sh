#!/bin/sh
# Exit code 0 while the server serves: it writes GEMPS_READY_FILE when it begins to, renews it every 5 seconds, and removes it
# when it stops. No Python, no connection: a check costs a process of a millisecond.
[ -n "$(find "${GEMPS_READY_FILE:?}" -newermt '20 seconds ago' 2>/dev/null)" ]
