restart "${worker[@]}" &
worker_pid=$!
trap 'caught=1; kill -- "-$worker_pid"' USR1
await "$worker_pid"
exit "$code"
