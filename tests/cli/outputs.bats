#!/usr/bin/env bats
# Outputs are complete or absent, whatever happens to the writer.
load helper

@test "a writer that is killed leaves nothing, or all" {
  yes 9 | head -n 500 | paste -sd, >ids
  killed_at 20 a.h5 hetero-prefill -m "$tiny" --tokens @ids -o a.h5 -q --force
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o before -q
  killed_at 20 a.h5 hetero-prefill -m "$tiny" --tokens @ids -o a.h5 -q --force
  rm before
  cp a.h5 in.h5
  killed_at 20 q.h5 kv-quantize in.h5 --dtype int8 -o q.h5 -q --force
  kv-quantize in.h5 --dtype bf16 -o before -q
  killed_at 20 q.h5 kv-quantize in.h5 --dtype int8 -o q.h5 -q --force
}

@test "a signal that can be caught leaves no temporary, and is seen by the parent" {
  hetero-prefill -m "$tiny" -p Hello -o a.h5 -q
  mkfifo in
  for signal in TERM INT HUP; do
    # bash lets background jobs ignore SIGINT; env undoes that.
    env --default-signal=INT kv-quantize - --dtype int8 -o q.h5 <in &
    pid=$!
    exec 7>in
    head -c 4096 a.h5 >&7
    sleep 0.3
    kill -$signal $pid
    code=0
    wait $pid || code=$?
    exec 7>&-
    [ "$code" -eq $((128 + $(kill -l $signal))) ]
    [ ! -e q.h5 ]
    no_temporaries
  done
}

@test "two writers of one name: one of the two, complete" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o one.h5 -q
  hetero-prefill -m "$tiny" --tokens 8,9,10,11 -o two.h5 -q
  for ((i = 0; i < 20; ++i)); do
    hetero-prefill -m "$tiny" --tokens 5,6,7 -o out.h5 --force -q &
    first=$!
    hetero-prefill -m "$tiny" --tokens 8,9,10,11 -o out.h5 --force -q &
    second=$!
    wait $first
    wait $second
    kv-verify out.h5 one.h5 --epsilon 0 >/dev/null 2>&1 || kv-verify out.h5 two.h5 --epsilon 0 >/dev/null
  done
  no_temporaries
}

@test "missing and unwritable directories are found before the model is loaded" {
  refuses 4 'no directory nowhere' hetero-prefill -m missing.gguf -p x -o nowhere/a.h5
  hetero-prefill -m "$tiny" --tokens 5 -o a.h5 -q
  refuses 4 'no directory nowhere' kv-send a.h5 -o nowhere/a.h5
}

@test "a lock that somebody holds is not waited for" {
  hetero-prefill -m "$tiny" -p Hello -o a.h5 -q
  flock -x a.h5 sleep 20 &
  holder=$!
  sleep 0.2
  timeout 10 kv-verify a.h5
  timeout 10 hetero-decode -m "$tiny" a.h5 -n 2 --ignore-eos -q
  kill $holder
}

@test "file systems whose locks fail" {
  command -v cc >/dev/null || skip "no C compiler"
  [ -z "${HETERO_SANITIZE:-}" ] || skip "the sanitizer must be the first library that is loaded"
  cat >locks.c <<'END'
#include <errno.h>
#include <stdlib.h>
int flock(int fd, int operation) {
    (void)fd; (void)operation;
    errno = atoi(getenv("LOCK_ERRNO"));
    return -1;
}
END
  cc -shared -fPIC -o locks.so locks.c
  hetero-prefill -m "$tiny" -p Hello -o a.h5 -q
  for number in 37 38 11 524; do
    export LOCK_ERRNO=$number LD_PRELOAD=$PWD/locks.so
    kv-verify a.h5
    hetero-decode -m "$tiny" a.h5 -n 2 --ignore-eos -q
    hetero-prefill -m "$tiny" -p Hello -o "new$number.h5" -q
    unset LD_PRELOAD
    kv-verify a.h5 "new$number.h5" --epsilon 0
  done
}

@test "a report is an output like the others" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 -q --report report
  grep -q '"n_tokens": 3' report
  echo precious >there
  refuses 3 'there' kv-verify a.h5 --report there
  refuses 3 'there' hw-probe --describe --report there
  [ "$(cat there)" = precious ]
  kv-verify a.h5 --report there --force
  grep -q '"pass": true' there
  cp a.h5 before.h5
  refuses 2 'two outputs' kv-send a.h5 -o x --report x
  refuses 2 'two outputs' kv-send a.h5 -o x --report ./x
  refuses 2 'is the input' kv-verify a.h5 --report a.h5 --force
  refuses 2 'two outputs' hetero-prefill -m "$tiny" --tokens 5 -o x --logits all --logits-out ./x
  [ ! -e x ]
  cmp a.h5 before.h5
}

@test "nothing that is read is replaced, whatever it is called" {
  cp "$tiny" m.gguf
  ln -s m.gguf link.gguf
  echo 'Hello there' >text
  echo '{"tokens": [5, 6]}' >lines
  echo '5,6,7' >ids
  echo 'threads = 1' >settings.toml
  mkdir sums && sha256sum m.gguf text lines ids settings.toml >sums/before
  refuses 2 'is the input' hetero-prefill -m m.gguf -p hi -o m.gguf --force
  refuses 2 'is the input' hetero-prefill -m link.gguf -p hi -o ./m.gguf --force
  refuses 2 'is the input' hetero-prefill -m m.gguf -p hi -o a.h5 --report m.gguf --force
  refuses 2 'is the input' hetero-prefill -m m.gguf -p hi -o a.h5 --trace m.gguf --force
  refuses 2 'two outputs' hetero-prefill -m m.gguf -p hi -o same.h5 --trace same.h5
  [ ! -e same.h5 ]
  refuses 2 'is the input' hetero-prefill -m m.gguf -f text -o text --force
  refuses 2 'is the input' hetero-prefill -m m.gguf --jsonl lines -o lines --force
  refuses 2 'is the input' hetero-prefill -m m.gguf --tokens @ids -o ids --force
  refuses 2 'is the input' hetero-prefill -m m.gguf --tokens 5 -o a.h5 --logits all --logits-out m.gguf --force
  refuses 2 'is the input' hetero-prefill -m m.gguf --score text --report text --force
  refuses 2 'is the input' hetero-prefill -m m.gguf -p hi -o settings.toml --config settings.toml --force
  hetero-prefill -m m.gguf --tokens 5,6 -o a.h5 -q
  refuses 2 'is the input' hetero-decode -m m.gguf a.h5 -n 1 -o m.gguf --force
  refuses 2 'is the input' hetero-decode -m m.gguf a.h5 -n 1 --report a.h5 --force
  refuses 2 'is the input' kv-verify a.h5 a.h5 --epsilon 1 -m m.gguf --text text --report text --force
  sha256sum --quiet -c sums/before
}
