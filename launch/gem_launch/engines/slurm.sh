export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

# Repeat a command until it exits with 0 (done), 2, 4 or 127 (repeating is useless), or SIGTERM arrives (143).
restart() {
  trap 'ending=1' TERM
  for _ in {1..100}; do
    "$@"
    code=$?
    if [ "$ending" ]; then exit 143; fi
    case $code in 0 | 2 | 4 | 127) exit "$code" ;; esac
    echo "${*:1:2} exited with $code: restarting" >&2
    export GEMPS_RESUME=true # for the server
    sleep 1
    if [ "$ending" ]; then exit 143; fi
  done
  exit "$code"
}

# Wait for a process, also across signals; set code.
await() {
  while
    caught=
    wait "$1"
    code=$?
    [ "$caught" ]
  do :; done
}
trap 'caught=1' TERM # of scancel, which the processes that this script started get, too

set -m # a process group for each background command
