#!/usr/bin/env bats
# stdin under mpirun: rank 0 gets all of it, the others get none and say so.
load helper

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  need_mpi
}

# rank_reads FILE ARGUMENT...: hetero-prefill as the only rank, with FILE on the stdin of mpirun. Where mpirun itself dies
# of SIGSEGV (Open MPI 4.1 may, above 64 KiB: open-mpi/ompi issue 7483) it is started again.
rank_reads() {
  local file=$1 status
  shift
  for _ in 1 2 3 4 5; do
    rm -f a.h5 rank.out
    status=0
    mpirun --oversubscribe -n 1 hetero-prefill -m "$tiny" -f - "$@" <"$file" >rank.out 2>rank.err || status=$?
    [ "$status" -eq 139 ] && grep -q 'orte_iof_hnp_read_local_handler' rank.err || break
  done
  return "$status"
}

@test "rank 0 reads all of a long prompt" {
  head -c 300000 /dev/zero | tr '\0' 'a' >prompt
  expected=$(hetero-prefill -m "$tiny" -f prompt --truncate end --dry-run --json -q 2>&1 | json_list token_ids)
  rank_reads prompt --truncate end --dry-run --json -q
  actual=$(json_list token_ids <rank.out)
  [ -n "$expected" ]
  [ "$actual" = "$expected" ]
  # Not cut off before the end: the whole length is in the message.
  tokens=$(hetero-prefill -m "$tiny" -f prompt -o a.h5 2>&1 | grep -o 'has [0-9]* tokens')
  [ -n "$tokens" ]
  run rank_reads prompt -o a.h5
  [ "$status" -eq 3 ]
  grep -q "$tokens" rank.err
  grep -q '300000 bytes of prompt came through mpirun' rank.err
}

@test "a rank that needs a prompt and gets none refuses" {
  echo hello >prompt
  run mpirun --oversubscribe -n 1 hw-probe --describe --json : -n 1 hetero-prefill -m "$tiny" -f - -o a.h5 <prompt
  [ "$status" -ne 0 ]
  grep -q 'prompt is empty' <<<"$output"
  [ ! -e a.h5 ]
}

@test "a loop over a list runs for every line when mpirun gets no stdin" {
  printf '5,6\n7,8\n9,10\n' >list
  count=0
  while read -r ids; do
    mpirun --oversubscribe -n 1 hetero-prefill -m "$tiny" --tokens "$ids" -o "out$count.h5" -q </dev/null
    count=$((count + 1))
  done <list
  [ "$count" -eq 3 ]
  [ -e out2.h5 ]
}

@test "a state through the stdout of a rank is refused for what it is" {
  run mpirun --oversubscribe -n 1 hetero-prefill -m "$tiny" --tokens 5,6,7 -o - </dev/null
  [ "$status" -ne 0 ]
  grep -q 'stdout of a rank goes through mpirun' <<<"$output"
  ! grep -q 'is a terminal' <<<"$output"
}
