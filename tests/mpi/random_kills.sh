#!/bin/bash
# random_kills.sh streaming|reshard BIN_DIR MPIRUN TESTDATA KILLS [SEED]: SIGKILL at random moments, of one rank or all of a
# side, while a state is sent as it is computed, or goes from the shards of two ranks to those of three. Each job ends
# within its time-out and 3.5 s, no output is there unless it is complete and right, and the next transfer succeeds.
. "$(dirname "$0")/job.bash" || exit 1
kills=$5 RANDOM=${6:-1}
timeout_s=4
llama=$testdata/golden/tiny/gguf/llama-f32.gguf
now_ms() { echo $(($(date +%s%N) / 1000000)); }
noted() { echo 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"'; }

hetero-prefill -m "$llama" --tokens "$(seq -s, 3 90)" -o whole.h5 -q -t 1 || no prefill
case $scenario in
  streaming) ranks=2 first_receiver=1 sides=(0 1) ;;
  reshard) ranks=5 first_receiver=2 sides=("0 1" "2 3 4") ;;
  *) no "no scenario $scenario" ;;
esac
start() {
  rm -f pid.*
  if [ $scenario = streaming ]; then
    set -- -n 1 bash -c "$(noted)" _ hetero-prefill -m "$llama" --tokens "$(seq -s, 3 90)" --chunk 8 -t 1 -q \
      --max-rate "$rate" --timeout $timeout_s -o mpi:1 : \
      -n 1 bash -c "$(noted)" _ kv-send mpi:0 -o out.h5 -q --timeout $timeout_s
  else
    set -- -n 2 bash -c "$(noted)" _ kv-send whole.h5 --tp 2 -q --max-rate "$rate" --timeout $timeout_s -o mpi:2-4 : \
      -n 3 bash -c "$(noted)" _ kv-send mpi:0-1 --tp 3 -o out.h5 -q --timeout $timeout_s
  fi
  timeout -k 5 $limit_s "$mpirun" --oversubscribe $recovery "$@" </dev/null >out 2>err &
  job=$!
}
failed() { no "round $round (rank $victim, recovery '$recovery', after $ms ms): $*"; }
# Shards of a transfer that only some receivers finished are those of the whole state.
check_outputs() {
  local file whole=0
  for file in out.h5 out.tp*of3.h5; do
    [ -e "$file" ] || continue
    # A shard alone is refused for the ones that are missing, and for nothing else.
    kv-verify "$file" -q >/dev/null 2>why || grep -q 'is missing: shard' why || { cat why; failed "$file is not complete"; }
    whole=$((whole + 1))
  done
  if [ -e out.h5 ] || [ $whole -eq 3 ]; then
    kv-verify whole.h5 out.h5 --eps 0 -q >/dev/null || failed "another state"
    finished=$((finished + 1))
  fi
  rm -f out.h5 out.tp*of3.h5
}

# What a later transfer cannot go on with: such a file has a journal, and stays.
unfinished() {
  local part count=0
  for part in .out*.part; do
    [ ! -e "$part" ] || [ -e "${part%.part}.journal" ] || count=$((count + 1))
  done
  echo $count
}

finished=0 killed=0 slowest=0 victims=0
for ((round = 1; killed < kills && round <= 3 * kills; ++round)); do  # one may be done before it is killed
  ms=$((RANDOM % 1000)) recovery='' victim=$((RANDOM % (ranks + 2))) rate=40Ki
  [ $((RANDOM % 2)) -eq 0 ] || recovery=--enable-recovery
  start
  until [ "$(ls pid.* 2>/dev/null | wc -l)" -eq $ranks ]; do
    kill -0 $job 2>/dev/null || failed "it did not start"
    sleep 0.02
  done
  sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
  if [ $victim -lt $ranks ]; then hit=$victim; else hit=${sides[$((victim - ranks))]}; fi
  pids=()
  for rank in $hit; do
    pids+=("$(cat pid.$rank)")
    [ $rank -lt $first_receiver ] || victims=$((victims + 1))
  done
  begin=$(now_ms)
  kill -KILL "${pids[@]}" 2>/dev/null && killed=$((killed + 1))
  wait $job
  status=$? took=$(($(now_ms) - begin))
  [ $status -ne 124 ] && [ $took -le $((1000 * timeout_s + 3500)) ] || failed "it ended after $took ms"
  [ $took -le $slowest ] || slowest=$took
  check_outputs
  # Who is killed cannot clean up; whoever lives on does.
  [ "$(unfinished)" -le $victims ] || failed "$(unfinished) unfinished files of $victims killed receivers"
done
[ $killed -eq "$kills" ] || failed "only $killed jobs were killed"
victim=none ms=0 recovery='' rate=0
start
wait $job || failed "an unbroken transfer failed"
before=$finished
check_outputs
[ $finished -gt $before ] || failed "no output"
[ $scenario = reshard ] || [ -z "$(ls -A | grep '^\.out')" ] || failed "unfinished files are left"
echo "$((round - 1)) rounds, $killed with a kill, $finished states arrived; slowest end after a kill $slowest ms"
