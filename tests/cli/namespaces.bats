#!/usr/bin/env bats
# Full and read-only disks, and writers with the same process id: in private namespaces.
load helper

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  unshare -m true 2>/dev/null || skip "private mount namespaces are not permitted here"
}

@test "a full disk: the system's reason, and nothing left" {
  yes 9 | head -n 500 | paste -sd, >ids
  mkdir small
  for command in "hetero-prefill -m $tiny --tokens @ids --kv-dtype f32 -o small/a.h5" "kv-send big.h5 -o small/a.h5"; do
    [ -e big.h5 ] || hetero-prefill -m "$tiny" --tokens @ids --kv-dtype f32 -o big.h5 -q
    run --separate-stderr unshare -m bash -c "mount -t tmpfs -o size=128k none small && { $command; code=\$?; ls -A small; exit \$code; }"
    [ "$status" -eq 4 ]
    grep -q 'No space left on device' <<<"$stderr"
    [ -z "$output" ]
  done
}

@test "a read-only disk is found before the model is loaded" {
  mkdir fixed
  run --separate-stderr unshare -m bash -c "mount -t tmpfs -o ro none fixed && hetero-prefill -m missing.gguf -p x -o fixed/a.h5"
  [ "$status" -eq 4 ]
  grep -q 'Read-only file system' <<<"$stderr"
}

@test "two writers with the same process id" {
  unshare -pf true 2>/dev/null || skip "private process id namespaces are not permitted here"
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o one.h5 -q
  hetero-prefill -m "$tiny" --tokens 8,9,10,11 -o two.h5 -q
  for ((i = 0; i < 20; ++i)); do
    unshare -pf "$HETERO_BIN/hetero-prefill" -m "$tiny" --tokens 5,6,7 -o out.h5 --force -q &
    first=$!
    unshare -pf "$HETERO_BIN/hetero-prefill" -m "$tiny" --tokens 8,9,10,11 -o out.h5 --force -q &
    second=$!
    wait $first
    wait $second
    kv-verify out.h5 one.h5 --epsilon 0 >/dev/null 2>&1 || kv-verify out.h5 two.h5 --epsilon 0 >/dev/null
  done
  no_temporaries
}
