#!/bin/bash
# kill_drill.sh resume_kills MPI_RANK MPIRUN [KILLS] [SEED]: SIGKILL at random moments of transfers into a file. Each job
# ends within its time-out and 3.5 s, no output is there unless it is complete, and what the next job goes on with gives
# the state of an unbroken transfer.
set -u
rank=$2 mpirun=$3 kills=${4:-20} RANDOM=${5:-1}
[ -z "${HETERO_SMALL:-}" ] || kills=6
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
timeout_s=4
mkdir "$work/files"
target=$work/files/received.h5
no() { echo "FAILED in round $round ($victim, recovery '$recovery', after $ms ms): $*"; cat "$work/err"; ls -lA "$work/files"; exit 1; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }

# A transfer of about a second.
start() {
  rm -f "$work/0" "$work/1"
  timeout -k 5 60 "$mpirun" --oversubscribe $recovery \
    -n 1 "$rank" --out mpi:1 --seed 9 --timeout $timeout_s --max-rate 40000000 --pid "$work/0" : \
    -n 1 "$rank" --in mpi:0 --out "$target" --resume --timeout $timeout_s --pid "$work/1" \
    </dev/null >"$work/out" 2>"$work/err" &
  job=$!
}
check_output() {
  [ -e "$target" ] || return 0
  # The link decides on the chunks, so that files of two transfers may differ in their checksums.
  "$rank" --in "$target" --mib 32 --seed 9 --compare | grep -qx identical || no "an output with another state"
  rm "$target"
  finished=$((finished + 1))
}

finished=0 resumed=0 killed=0 slowest=0
for ((round = 1; killed < kills; ++round)); do  # one that goes on may be done before it is killed
  victim=$((RANDOM % 3)) ms=$((RANDOM % 1000)) recovery=
  [ $((RANDOM % 2)) = 0 ] || recovery=--enable-recovery
  start
  until [ -s "$work/0" ] && [ -s "$work/1" ]; do
    kill -0 $job 2>/dev/null || no "it did not start"
    sleep 0.02
  done
  sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
  case $victim in 0) pids=$(cat "$work/0") ;; 1) pids=$(cat "$work/1") ;; 2) pids=$(cat "$work/0" "$work/1") ;; esac
  begin=$(now_ms)
  kill -KILL $pids 2>/dev/null && killed=$((killed + 1))
  wait $job
  status=$?
  took=$(($(now_ms) - begin))
  [ "$status" -ne 124 ] || no "it did not end"
  [ $took -le $((1000 * timeout_s + 3500)) ] || no "it ended after $took ms"
  [ $took -le $slowest ] || slowest=$took
  grep -q '^resumed [1-9]' "$work/out" && resumed=$((resumed + 1))
  check_output
  [ "$(ls -A "$work/files" | wc -l)" -le 6 ] || no "too much is left behind"
done
victim=none ms=0 recovery=
start
wait $job || no "the last transfer failed"
[ -e "$target" ] || no "no output"
check_output
left=$(ls -A "$work/files" | grep -c 'journal$')
[ "$left" = 0 ] || no "journals are left"
echo "$((round - 1)) rounds, $killed with a kill; $finished transfers ended with the right bytes, $resumed of them resumed;" \
  "slowest end after a kill $slowest ms"
