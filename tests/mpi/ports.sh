#!/bin/bash
# ports.sh SCENARIO BIN MPIRUN TESTDATA: two jobs that meet by mpi-port:FILE; checks status, message, and what is left.
set -u
scenario=$1 bin=$2 mpirun=$3 testdata=$4
work=$(mktemp -d) || exit 1
started=()
cleanup() {
  for one in ${started[@]+"${started[@]}"}; do kill "$one" 2>/dev/null; done
  rm -rf "$work"
}
trap cleanup EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 HETERO_PROGRESS=never
cd "$work" || exit 1
command -v ompi-server >/dev/null || { echo "no ompi-server here"; exit 77; }
if "$mpirun" --version | grep -q "Open MPI) 5"; then
  "$bin/kv-send" mpi-port:a.port -o b.h5 2>err
  [ $? -eq 2 ] && grep -q "Open MPI 5, which does not join jobs" err || { echo "FAILED: not refused"; cat err; exit 1; }
  echo "this MPI does not join jobs"
  exit 77
fi
limit_s=100  # a guard against hanging
model=$testdata/golden/tiny/gguf/llama-f32.gguf
declare -A pid  # [NAME] of begin

no() {
  echo "FAILED: $*"
  for log in *.err *.out; do [ -s "$log" ] && { echo "--- $log"; cat "$log"; }; done
  exit 1
}
begin() {  # NAME COMMAND...: in the background; its status by the end of finish NAME
  local name=$1
  shift
  timeout -k 5 $limit_s "$@" </dev/null >"$name.out" 2>"$name.err" &
  started+=($!)
  pid[$name]=$!
}
finish() {  # NAME STATUS
  wait "${pid[$1]}" 2>/dev/null
  local status=$?
  [ $status -eq "$2" ] || no "$1 ended with status $status, not $2"
}
says() { grep -qE -- "$2" "$1.err" || no "$1 does not say: $2"; }
published() {
  for ((i = 0; i < 600; ++i)); do [ -e a.port ] && return; sleep 0.1; done
  no "nothing was published"
}
tokens_of_one_process() {  # IDS N: onto what is expected
  state one.h5 "$1"
  "$bin/hetero-decode" -m "$model" one.h5 -n "$2" --ignore-eos >>expected || no "no tokens"
}
same_text() {  # mpirun gives a rank a terminal, on which the text ends with its line
  local bytes
  bytes=$(stat -c %s expected)
  cmp -n "$bytes" expected decode.out && [ "$(stat -c %s decode.out)" -le $((bytes + 2)) ] || no "other tokens"
}
clean() {
  local left
  left=$(find . -name '*port*' -o -name '.*.part')
  [ -z "$left" ] || no "left behind: $left"
}
no_server() {  # NAME: the process has ended, and with it the ompi-server that it started
  for ((i = 0; i < 50; ++i)); do pgrep -P "${pid[$1]}" >/dev/null || return 0; sleep 0.1; done
  no "$1 left a process"
}
state() {  # FILE [IDS]
  "$bin/hetero-prefill" -m "$model" --tokens "${2:-5,17,301,44,8,90}" -o "$1" --force 2>/dev/null || no "no state"
}

case $scenario in
  tokens)  # two singletons, and two mpiruns which were told of no server: the tokens of one process
    tokens_of_one_process 5,17,301,44,8 16
    for launcher in "" "$mpirun --oversubscribe -n 1"; do
      begin decode $launcher "$bin/hetero-decode" -m "$model" mpi-port:a.port -n 16 --ignore-eos
      begin prefill $launcher "$bin/hetero-prefill" -m "$model" --tokens 5,17,301,44,8 -o mpi-port:a.port
      finish prefill 0; finish decode 0
      same_text
      clean
    done ;;
  group)  # both sides compute with several ranks; mpirun has to know the server then
    tokens_of_one_process 5,17,301,44,8 16
    ompi-server --no-daemonize -r "$work/uri" >/dev/null 2>&1 &
    started+=($!)
    for ((i = 0; i < 300; ++i)); do [ -s uri ] && break; sleep 0.1; done
    server=$(cat uri)
    begin decode "$mpirun" --oversubscribe --ompi-server "$server" -n 2 "$bin/hetero-decode" --tp 2 -m "$model" mpi-port:a.port -n 16 --ignore-eos
    begin prefill "$mpirun" --oversubscribe --ompi-server "$server" -n 2 "$bin/hetero-prefill" --tp 2 -m "$model" --tokens 5,17,301,44,8 -o mpi-port:a.port
    finish prefill 0; finish decode 0
    same_text
    begin decode "$mpirun" --oversubscribe -n 2 "$bin/hetero-decode" --tp 2 -m "$model" mpi-port:a.port -n 16
    finish decode 2
    says decode "mpirun --ompi-server"
    clean ;;
  in_turn)  # senders that die, stall, or send what is damaged: the receiver waits for the next one
    state a.h5
    begin receive "$bin/kv-send" mpi-port:a.port -o out-%n.h5 --count 3 --timeout 5
    send() {  # STATUS [OPTION...]
      begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --wait 60 --timeout 5 "${@:2}"
      finish send "$1"
    }
    send 0; send 137 --fault die=2; send 0; send 5 --fault stall=2; send 0
    finish receive 0
    for i in 1 2 3; do cmp a.h5 out-$i.h5 || no "state $i differs"; done
    [ "$(ls out-*)" = "$(printf 'out-%d.h5\n' 1 2 3)" ] || no "other files: $(ls out-*)"
    [ "$(grep -c 'did not arrive; waiting for another sender' receive.err)" -eq 2 ] || no "not two that failed"
    clean; no_server receive ;;
  killed_at_random)  # also while MPI joins the two, from which the receiving process does not come back
    state a.h5
    RANDOM=7
    begin receive "$bin/kv-send" mpi-port:a.port -o out-%n.h5 --count 1000 --timeout 2
    for i in 1 2 3 4 5 6 7 8; do
      published
      begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --wait 60 --timeout 2
      for ((j = 0; j < 2000; ++j)); do [ -e a.port ] || break; sleep 0.005; done
      sleep "0.0$((RANDOM % 40 + 10))"
      kill -9 $(pgrep -P "${pid[send]}") 2>/dev/null
      wait "${pid[send]}" 2>/dev/null
    done
    begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --wait 60
    finish send 0
    for file in out-*.h5; do cmp a.h5 "$file" || no "$file differs"; done
    kill "$(pgrep -P "${pid[receive]}")"
    wait "${pid[receive]}" 2>/dev/null
    clean; no_server receive ;;
  ended_by_mpi)  # as Open MPI does where the sender dies while the two are joined: the next one finds a receiver
    command -v cc >/dev/null || { echo "no C compiler"; exit 77; }
    ! ldd "$bin/kv-send" | grep -q libasan || { echo "the sanitizer must be the first library that is loaded"; exit 77; }
    cat >ends.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
/* The first calls, as many as ENDS, end the process. */
int MPI_Comm_accept(const char *port, void *info, int root, void *comm, void *joined) {
    int (*real)(const char *, void *, int, void *, void *) = dlsym(RTLD_NEXT, "MPI_Comm_accept");
    const int calls = open("calls", O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(calls, "x", 1) != 1 || lseek(calls, 0, SEEK_END) <= atoi(getenv("ENDS")))
        _exit(255);
    return real(port, info, root, comm, joined);
}
C
    cc -shared -fPIC -o ends.so ends.c -ldl || no "ends.c does not compile"
    state a.h5
    begin receive env LD_PRELOAD="$work/ends.so" ENDS=2 "$bin/kv-send" mpi-port:a.port -o out-%n.h5 --count 2
    for i in 1 2; do  # nobody answers them
      begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --wait 60 --timeout 1
      finish send 5
    done
    for i in 1 2; do
      begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --wait 60
      finish send 0
    done
    finish receive 0
    [ "$(grep -c 'did not arrive; waiting for another sender' receive.err)" -eq 2 ] || no "not two that failed"
    for i in 1 2; do cmp a.h5 out-$i.h5 || no "state $i differs"; done
    clean; no_server receive ;;
  decode_in_turn)
    begin decode "$bin/hetero-decode" -m "$model" mpi-port:a.port -n 8 --ignore-eos --count 2
    for ids in 5,17,301 44,8,90; do
      tokens_of_one_process "$ids" 8
      begin prefill "$bin/hetero-prefill" -m "$model" --tokens "$ids" -o mpi-port:a.port --wait 60
      finish prefill 0
    done
    finish decode 0
    same_text
    begin decode "$bin/hetero-decode" -m nothing mpi-port:a.port --count 0
    finish decode 3  # no sender could mend it
    clean ;;
  nobody)
    state a.h5
    begin receive "$bin/kv-send" mpi-port:a.port -o b.h5 --wait 1
    finish receive 5
    says receive "a.port: no sender came within 1 s"
    begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --wait 1
    finish send 5
    says send "a.port: no receiver has published this file within 1 s"
    [ ! -e b.h5 ] || no "an output"
    clean; no_server receive ;;
  stale)  # what a killed receiver left is no receiver, and the next one replaces it
    state a.h5
    begin receive "$bin/kv-send" mpi-port:a.port -o b.h5 --wait 60
    published
    kill -9 "$(pgrep -P "${pid[receive]}")"
    wait "${pid[receive]}" 2>/dev/null
    [ -e a.port ] || no "the file should be there"
    begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --wait 1
    finish send 5
    says send "the receiver that left this file has ended"
    begin receive "$bin/kv-send" mpi-port:a.port -o b.h5 --wait 60
    begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --wait 60
    finish send 0; finish receive 0
    cmp a.h5 b.h5 || no "another state"
    # One of another machine, of which nobody knows whether it lives.
    printf 'hetero mpi-port 1\nserver 1.0;tcp://127.0.0.1:9\nport 1.0:2\nhost elsewhere x\nprocess 1 2\n' >a.port
    begin receive "$bin/kv-send" mpi-port:a.port -o c.h5
    finish receive 3
    says receive "process 1 of elsewhere waits there"
    begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --timeout 5
    finish send 5
    [ ! -s send.out ] || no "Open MPI writes to stdout"
    clean ;;
  wrong_file)
    state a.h5
    cp a.h5 not-a.port
    begin receive "$bin/kv-send" mpi-port:not-a.port -o b.h5 --force
    finish receive 3
    says receive "not-a.port: this file is not a port that a hetero tool has published"
    begin send "$bin/kv-send" a.h5 -o mpi-port:not-a.port
    finish send 3
    says send "not-a.port: this file is not a port that a hetero tool has published"
    cmp a.h5 not-a.port || no "the file was touched"
    begin send "$bin/kv-send" a.h5 -o mpi-port:no/such/folder --wait 0.2s
    finish send 5
    begin receive "$bin/kv-send" mpi-port:no/such/folder -o b.h5
    finish receive 4
    says receive "there is no directory no/such" ;;
  stopped)  # by SIGTERM while it waits: nothing is left
    for options in "--wait 60" "--count 0"; do
      begin receive "$bin/kv-send" mpi-port:a.port -o out-%n.h5 $options
      published
      child=$(pgrep -P "${pid[receive]}")
      kill "$child"
      wait "${pid[receive]}" 2>/dev/null
      for ((i = 0; i < 50; ++i)); do [ -e a.port ] || break; sleep 0.1; done
      clean
      for ((i = 0; i < 50; ++i)); do pgrep -P "$child" >/dev/null || break; sleep 0.1; done
      ! pgrep -P "$child" >/dev/null || no "a process is left"
    done ;;
  rejected)  # a state of another model: the sender hears why, the receiver goes on
    state a.h5
    begin decode "$bin/hetero-decode" -m "$testdata/golden/tiny/gguf/qwen2-q8_0.gguf" mpi-port:a.port -n 4 --ignore-eos --count 2
    begin send "$bin/kv-send" a.h5 -o mpi-port:a.port --wait 60
    finish send 3
    says send "rejected the state"
    for i in 1 2; do
      begin prefill "$bin/hetero-prefill" -m "$testdata/golden/tiny/gguf/qwen2-q8_0.gguf" --tokens 5,17 -o mpi-port:a.port --wait 60
      finish prefill 0
    done
    finish decode 0
    clean ;;
  *) echo "unknown scenario $scenario"; exit 2 ;;
esac
echo "ok: $scenario"
