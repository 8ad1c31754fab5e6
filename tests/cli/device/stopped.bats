#!/usr/bin/env bats
# Tools that are ended while a device works for them.
load device

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  awk 'BEGIN { for (i = 0; i < 200; ++i) printf "%d ", (i * i * 13 + i * 5 + 97) % 500 }' >ids
}

@test "killed at any moment: no state, or all of it" {
  killed_at 6 a.h5 hetero-prefill -m "$coded" --tokens @ids --device cuda:0 -o a.h5 -q --force
  cp a.h5 before
  killed_at 6 b.h5 hetero-decode -m "$coded" before --device cuda:0 -n 8 --ignore-eos -o b.h5 -q --force >/dev/null
  rm before
  cp a.h5 in.h5
  killed_at 6 q.h5 kv-quantize in.h5 --dtype int8 --device cuda:0 -o q.h5 -q --force
}

@test "SIGTERM at any moment: no state and no temporary, or all of it" {
  for delay in 0.02 0.05 0.1 0.2 0.4; do
    rm -f a.h5
    hetero-prefill -m "$coded" --tokens @ids --device cuda:0 -o a.h5 -q &
    pid=$!
    sleep $delay
    kill -TERM $pid 2>/dev/null || true
    code=0
    wait $pid || code=$?
    case $code in
      0) kv-verify a.h5 ;;
      143) [ ! -e a.h5 ] ;;
      *) echo "status $code"; return 1 ;;
    esac
    no_temporaries
  done
  hetero-prefill -m "$coded" --tokens 5,6,7,8 -o in.h5 -q
  mkfifo in
  kv-quantize - --dtype int8 --device cuda:0 -o q.h5 <in &
  pid=$!
  exec 7>in
  head -c 4096 in.h5 >&7
  sleep 0.3
  kill -TERM $pid
  code=0
  wait $pid || code=$?
  exec 7>&-
  [ "$code" -eq 143 ]
  [ ! -e q.h5 ]
  no_temporaries
}
