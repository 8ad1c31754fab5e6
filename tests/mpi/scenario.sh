#!/bin/bash
# scenario.sh SCENARIO MPI_RANK MPIRUN: runs one job and checks status, message, time and what was left behind.
set -u
scenario=$1 rank=$2 mpirun=$3
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
limit_s=50   # the tools promise 10 s; five times that guards against a hang without judging a busy machine

job() {
  local begin=$SECONDS
  timeout -k 5 $limit_s "$mpirun" --oversubscribe "$@" </dev/null >"$work/out" 2>"$work/err"
  status=$?
  took=$((SECONDS - begin))
}
no() { echo "FAILED: $*"; echo "status $status after $took s; stdout:"; cat "$work/out"; echo "stderr:"; cat "$work/err"; exit 1; }
succeeds() { [ "$status" -eq 0 ] || no "the job should succeed"; }
fails() {  # REGEX: a non-zero status, in time, a match on stderr, and no output file
  [ "$status" -ne 124 ] && [ "$status" -ne 137 -o -n "${killed:-}" ] || no "the job did not end by itself"
  [ "$status" -ne 0 ] || no "the job should fail"
  grep -qE -- "$1" "$work/err" || no "stderr lacks: $1"
  # A rank that gets SIGKILL cannot remove its temporary; it has another name and is never taken for the result.
  left=$(find "$work/files" -type f ${killed:+-name received.h5})
  [ -z "$left" ] || no "left behind: $left"
}
mkdir "$work/files"
target=$work/files/received.h5

case $scenario in
  two_ranks)
    job -n 1 "$rank" --out mpi:1 --seed 7 : -n 1 "$rank" --in mpi:0 --seed 7 --compare
    succeeds; grep -qx identical "$work/out" || no "not identical" ;;
  three_ranks)
    job -n 1 "$rank" --out mpi:1 --seed 8 : -n 1 "$rank" --in mpi:0 --out mpi:2 : -n 1 "$rank" --in mpi:1 --seed 8 --compare
    succeeds; grep -qx identical "$work/out" || no "not identical" ;;
  large_message)  # more than the send window and the layers granted ahead
    job -n 1 "$rank" --out mpi:1 --mib 192 : -n 1 "$rank" --in mpi:0 --mib 192 --compare
    succeeds; grep -qx identical "$work/out" || no "not identical" ;;
  slow_prefill)  # computes for longer than the time-out before the first byte
    job -n 1 "$rank" --out mpi:1 --compute 8 --timeout 4 : -n 1 "$rank" --in mpi:0 --compare --timeout 4
    succeeds; grep -qx identical "$work/out" || no "not identical" ;;
  polite_exit)
    job -n 1 "$rank" --out mpi:1 --polite-exit : -n 1 "$rank" --in mpi:0 --out "$target"
    fails "rank 0 gave up: it ended without sending a state" ;;
  error_before_sending)
    job -n 1 "$rank" --out mpi:1 --fail "a.h5: truncated" : -n 1 "$rank" --in mpi:0 --out mpi:2 : -n 1 "$rank" --in mpi:1 --out "$target"
    fails "rank 0 gave up: a.h5: truncated"
    grep -qF "rank 1 gave up: rank 0 gave up: a.h5: truncated" "$work/err" || no "rank 2 does not say why"
    [ "$status" -eq 3 ] || no "the status should be the origin's, 3" ;;
  error_in_receiver)
    job -n 1 "$rank" --out mpi:1 --mib 256 : -n 1 "$rank" --in mpi:0 --fail "b.h5: No space left on device"
    fails "rank 1 gave up: b.h5: No space left on device" ;;
  kill_sender)
    killed=1
    job -n 1 "$rank" --out mpi:1 --die-after-layers 4 : -n 1 "$rank" --in mpi:0 --out "$target"
    fails "signal 9" ;;
  kill_receiver)
    killed=1
    job -n 1 "$rank" --out mpi:1 --mib 256 : -n 1 "$rank" --in mpi:0 --out "$target" --die-after-layers 3
    fails "signal 9" ;;
  kill_sender_recovery)  # mpirun lets the receiver live: it has to find out by itself
    job --enable-recovery -n 1 "$rank" --out mpi:1 --die-after-layers 4 --timeout 4 : -n 1 "$rank" --in mpi:0 --out "$target" --timeout 4
    [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || no "the receiver waited for ever"
    grep -qF "rank 0: no sign of life" "$work/err" || no "the receiver does not say why"
    [ -z "$(ls -A "$work/files")" ] || no "left behind: $(ls -A "$work/files")" ;;
  suspended)  # as Slurm suspends a job: all ranks stop, for longer than the time-out, and go on
    { job -n 1 "$rank" --out mpi:1 --done "$work/0" --timeout 4 : \
      -n 1 "$rank" --in mpi:0 --done "$work/1" --linger 4 --timeout 4; succeeds; } &
    for ((i = 0; i < 200; ++i)); do [ -s "$work/0" ] && [ -s "$work/1" ] && break; sleep 0.1; done
    [ -s "$work/0" ] && [ -s "$work/1" ] || no "the transfer did not end"
    sleep 1
    kill -STOP $(cat "$work/0" "$work/1")
    sleep 6
    kill -CONT $(cat "$work/0" "$work/1")
    wait $! || exit 1
    status=0 took=0 ;;
  receiver_lost_later)  # it has confirmed the state, and dies while it computes
    killed=1
    job --enable-recovery -n 1 "$rank" --out mpi:1 --timeout 4 : -n 1 "$rank" --in mpi:0 --linger 2 --die-at-end --timeout 4
    [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || no "the sender waited for ever"
    grep -qF "rank 1: no sign of life" "$work/err" || no "the sender does not say why" ;;
  ulfm)  # the pair that has lost nobody goes on, and the rank that has lost its peer knows it at once
    "$mpirun" --version | grep -q "Open MPI) 5" || { echo "this mpirun has no --with-ft"; exit 77; }
    killed=1
    job --with-ft ulfm -n 1 "$rank" --out mpi:1 --die-after-layers 4 : -n 1 "$rank" --in mpi:0 --out "$target" : \
      -n 1 "$rank" --out mpi:3 --compute 5 --seed 7 : -n 1 "$rank" --in mpi:2 --seed 7 --compare
    fails "rank 0: .*MPI_ERR_PROC_FAILED"
    grep -qx identical "$work/out" || no "the others did not go on" ;;
  tiny_shm)
    for size in 64k 1m; do
      unshare -m sh -c "mount -t tmpfs -o size=$size tmpfs /dev/shm" 2>/dev/null || { echo "no private mounts here"; exit 77; }
      begin=$SECONDS
      timeout -k 5 $limit_s unshare -m sh -c 'mount -t tmpfs -o size=$1 tmpfs /dev/shm && shift && exec "$@"' sh $size \
        "$mpirun" --oversubscribe -n 1 "$rank" --out mpi:1 --mib 16 : -n 1 "$rank" --in mpi:0 --mib 16 --compare \
        </dev/null >"$work/out" 2>"$work/err"
      status=$? took=$((SECONDS - begin))
      # Right or refused; stdout holds our own words alone.
      if [ "$status" -eq 0 ]; then [ "$(cat "$work/out")" = identical ] || no "stdout"; else [ ! -s "$work/out" ] || no "stdout"; fi
      [ "$status" -ne 124 ] || no "it hung"
    done ;;
  empty_stdin)  # only rank 0 has one
    job -n 1 "$rank" --out mpi:1 : -n 1 "$rank" --in - --out mpi:0
    fails "rank 0 writes mpi:1, but rank 1 reads no mpi: endpoint"
    job -n 1 "$rank" --in mpi:1 --compare : -n 1 "$rank" --in - --out mpi:0
    fails "rank 1 gave up: stdin: empty" ;;
  garbage_sender)
    job -n 1 "$rank" --out mpi:1 --garbage : -n 1 "$rank" --in mpi:0 --out "$target"
    fails "rank 0 sent something that is not hkv-mpi" ;;
  wrong_peers)
    job -n 1 "$rank" --out mpi:1 : -n 1 "$rank" --in mpi:2 : -n 1 "$rank" --out mpi:1
    fails "rank 0 writes mpi:1, but rank 1 reads mpi:2" ;;
  ring)
    job -n 1 "$rank" --in mpi:2 --out mpi:1 : -n 1 "$rank" --in mpi:0 --out mpi:2 : -n 1 "$rank" --in mpi:1 --out mpi:0
    fails "a ring of ranks" ;;
  no_such_rank)
    job -n 1 "$rank" --out mpi:5 : -n 1 "$rank" --in mpi:0
    fails "rank 0 writes mpi:5, but this job has ranks 0 to 1" ;;
  itself)
    job -n 1 "$rank" --in mpi:0
    fails "which is itself" ;;
  without_mpi_exits)  # mpirun itself notices, or the waiting rank does: a matter of who is first
    job -n 1 "$rank" --no-mpi : -n 1 "$rank" --in mpi:0 --out "$target"
    fails "every rank of the job has to use an mpi: endpoint|exiting improperly" ;;
  without_mpi_runs)
    job -n 1 "$rank" --no-mpi --compute 60 : -n 1 "$rank" --in mpi:0 --out "$target"
    fails "every rank of the job has to use an mpi: endpoint" ;;
  hung_sender)
    job -n 1 "$rank" --out mpi:1 --hang : -n 1 "$rank" --in mpi:0 --out "$target"
    fails "rank 0: no sign of life" ;;
  not_under_mpirun)
    begin=$SECONDS
    env -i PATH="$PATH" timeout $limit_s "$rank" --in mpi:0 </dev/null >"$work/out" 2>"$work/err"
    status=$?; took=$((SECONDS - begin))
    fails "was not started by mpirun"
    [ "$status" -eq 2 ] || no "a usage error is status 2" ;;
  fault_flip)  # chunks that arrive damaged are sent again: the same bits
    job -n 1 "$rank" --out mpi:1 --mib 64 --debug --fault flip=0.1,seed=3 : -n 1 "$rank" --in mpi:0 --mib 64 --compare
    succeeds; grep -qx identical "$work/out" || no "not identical"
    grep -qE "[1-9][0-9]* of them again" "$work/err" || no "nothing was sent again" ;;
  fault_mixed)
    mixed=drop=0.05,dup=0.1,reorder=0.1,flip=0.03,delay=20
    for seed in 1 2 3; do
      job -n 1 "$rank" --out mpi:1 --mib 64 --debug --fault $mixed,seed=$seed : \
          -n 1 "$rank" --in mpi:0 --mib 64 --compare --debug --fault $mixed,seed=$seed
      succeeds; grep -qx identical "$work/out" || no "not identical"
      grep -qE "[1-9][0-9]* of them again" "$work/err" || no "nothing was sent again"
      grep -qE "[1-9][0-9]* twice" "$work/err" || no "nothing came twice"
    done ;;
  fault_die)
    job --enable-recovery -n 1 "$rank" --out mpi:1 --timeout 4 --fault die=20 : \
        -n 1 sh -c '"$@"; echo $? >"$0"' "$work/status" "$rank" --in mpi:0 --out "$target" --timeout 4
    [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || no "the receiver waited for ever"
    [ "$(cat "$work/status")" = 5 ] || no "the receiver's status is $(cat "$work/status"), not 5"
    grep -qF "rank 0: no sign of life" "$work/err" || no "the receiver does not say why"
    [ -z "$(ls -A "$work/files")" ] || no "left behind: $(ls -A "$work/files")" ;;
  fault_stall)
    job -n 1 "$rank" --out mpi:1 --timeout 4 --fault stall=20 : -n 1 "$rank" --in mpi:0 --out "$target" --timeout 4
    fails "stalled"
    [ "$status" -eq 5 ] || no "the status should be 5" ;;
  max_rate)  # 33.6 MB at 20 MB/s: never faster, on whatever machine
    begin=$(date +%s%N)
    job -n 1 "$rank" --out mpi:1 --mib 32 --max-rate 20000000 : -n 1 "$rank" --in mpi:0 --mib 32 --compare
    ms=$((($(date +%s%N) - begin) / 1000000))
    succeeds; grep -qx identical "$work/out" || no "not identical"
    [ $ms -ge 1600 ] || no "it took $ms ms" ;;
  measure_link)  # while the other side computes
    job -n 1 "$rank" --out mpi:1 --measure : -n 1 "$rank" --in mpi:0 --compute 2 --compare
    succeeds; grep -qx "measured a link" "$work/out" || no "no rate"
    grep -qx identical "$work/out" || no "not identical" ;;
  measure_stalled)  # signs of life arrive, probes do not
    job -n 1 "$rank" --out mpi:1 --measure --timeout 4 --fault stall=0 : -n 1 "$rank" --in mpi:0 --out "$target" --timeout 4
    fails "rank 1: stalled: no probe has been answered"
    [ "$status" -eq 5 ] || no "the status should be 5" ;;
  resume_sender_dies)  # what had arrived when it died is not sent again: all but its window and a layer
    killed=1
    job --enable-recovery -n 1 "$rank" --out mpi:1 --mib 128 --seed 4 --die-after-layers 6 --timeout 4 : \
        -n 1 "$rank" --in mpi:0 --out "$target" --resume --timeout 4
    [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || no "the receiver waited for ever"
    [ ! -e "$target" ] || no "an unfinished output"
    ls -A "$work/files" | grep -q 'journal$' || no "nothing was kept"
    job -n 1 "$rank" --out mpi:1 --mib 128 --seed 4 : -n 1 "$rank" --in mpi:0 --out "$target" --resume
    succeeds
    # The link decides on the chunks, so that files of two transfers may differ in their checksums.
    "$rank" --in "$target" --mib 128 --seed 4 --compare | grep -qx identical || no "another state"
    [ "$(ls -A "$work/files")" = received.h5 ] || no "left behind: $(ls -A "$work/files")"
    resumed=$(sed -n 's/^resumed \([0-9]*\) of .*/\1/p' "$work/out")
    [ "$resumed" -ge $((64 << 20)) ] || no "resumed $resumed bytes" ;;
  resume_other_state)
    killed=1
    job --enable-recovery -n 1 "$rank" --out mpi:1 --seed 4 --die-after-layers 7 --timeout 4 : \
        -n 1 "$rank" --in mpi:0 --out "$target" --resume --timeout 4
    ls -A "$work/files" | grep -q 'journal$' || no "nothing was kept"
    job -n 1 "$rank" --out mpi:1 --seed 5 : -n 1 "$rank" --in mpi:0 --out "$target" --resume --debug
    succeeds
    grep -qF "received.h5: an unfinished transfer is discarded: it is of another state" "$work/err" || no "no warning"
    grep -q "^resumed 0 of" "$work/out" || no "resumed"
    "$rank" --in "$target" --mib 32 --seed 5 --compare | grep -qx identical || no "another state"
    [ "$(ls -A "$work/files")" = received.h5 ] || no "left behind: $(ls -A "$work/files")" ;;
  *) echo "no scenario $scenario"; exit 1 ;;
esac
[ "$took" -le $limit_s ] || no "took too long"
echo "$scenario: status $status after $took s"
