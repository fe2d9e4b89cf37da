trap 'caught=1; requeue=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1 # to the workers

# The server runs here, on the first node. The port is below those that systems use for outgoing connections.
port=$((20000 + 2 * (SLURM_JOB_ID % 5000)))
GEMPS_SERVER="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$port"
export GEMPS_SERVER GEMPS_WORKERS
export GEMPS_RUN="${run:-$SLURM_JOB_ID}"
if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then export GEMPS_RESUME=true; fi
# squeue --format=%k shows it.
scontrol update JobId="$SLURM_JOB_ID" Comment="$GEMPS_SERVER"

restart "${server[@]}" --bind="0.0.0.0:$port" &
server_pid=$!

shard_pids=()
for ((index = 1; index < shards; index++)); do
  declare -n command="shard_$index"
  {
    # Like the server above, it does not take resources from the workers' step.
    srun --ntasks=1 --nodes=1 --relative="$((index % SLURM_NNODES))" --overlap --mem=0 \
      --cpus-per-task="$OMP_NUM_THREADS" \
      bash -c "$(declare -f restart)"'; restart "$@"' bash "${command[@]}" --primary="$GEMPS_SERVER"
    code=$?
    case $code in 0 | 143) ;; *) kill -- "-$server_pid" 2>/dev/null ;; esac # it would wait for this shard
    exit "$code"
  } &
  shard_pids+=($!)
done

{
  srun --ntasks="$GEMPS_WORKERS" --cpus-per-task="$OMP_NUM_THREADS" --kill-on-bad-exit=0 --wait=0 \
    bash -c "$(declare -f restart)"'; GEMPS_WORKER_NAME="slurm-$SLURM_JOB_ID-0-$SLURM_PROCID" restart "$@"' \
    bash "${worker[@]}" # whatever the number of the step: shards have steps, too
  code=$?
  # A server whose run is finished ends by itself.
  for _ in {1..60}; do
    if [ "$code" != 0 ] || ! kill -0 "$server_pid" 2>/dev/null; then break; fi
    sleep 1
  done
  if [ "$shards" -gt 1 ]; then scancel --signal=TERM "$SLURM_JOB_ID" && sleep 1; fi # the first ends the others
  kill -- "-$server_pid" 2>/dev/null
  exit "$code"
} &
workers_pid=$!

await "$server_pid"
server_code=$code
{ sleep 30 && scancel --signal=TERM "$SLURM_JOB_ID"; } & # workers that the server could not dismiss
timer_pid=$!
await "$workers_pid"
workers_code=$code
kill -- "-$timer_pid" 2>/dev/null
for pid in "${shard_pids[@]}"; do
  await "$pid"
  case $code in 0 | 143) ;; *) server_code=$code ;; esac
done
code=$workers_code

if [ "$server_code" = 0 ]; then exit 0; fi
if [ "$requeue" ]; then exec scontrol requeue "$SLURM_JOB_ID"; fi
if [ "$code" = 143 ]; then exit "$server_code"; fi
exit "$code"
