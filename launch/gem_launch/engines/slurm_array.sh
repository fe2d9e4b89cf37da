export GEMPS_WORKER_NAME="slurm-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID"
restart "${worker[@]}" &
worker_pid=$!
trap 'caught=1; kill -- "-$worker_pid"' USR1
await "$worker_pid"
exit "$code"
