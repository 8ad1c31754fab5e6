#!/usr/bin/env bats
# Options, help, manual, completion, settings: the same in every tool.
load helper

@test "--version is one line; with --json it describes the build" {
  for tool in "${tools[@]}"; do
    run --separate-stderr "$tool" --version
    [ "$status" -eq 0 ]
    [[ $output =~ ^$tool\ [0-9]+\.[0-9]+\.[0-9]+$ ]]
    [ -z "$stderr" ]
    run --separate-stderr "$tool" --version --json
    [ "$status" -eq 0 ]
    for key in tool version schema backends codecs families libraries; do
      grep -q "\"$key\":" <<<"$output"
    done
    grep -q '"int8"' <<<"$output"
    grep -q '"llama"' <<<"$output"
  done
}

@test "no tool needs a GPU library to start" {
  for tool in "${tools[@]}"; do
    run ldd "$HETERO_BIN/$tool"
    [ "$status" -eq 0 ]
    ! grep -qE 'libcuda|libnvidia-ml' <<<"$output"
  done
}

@test "help and manual page name the same options" {
  [ -n "$HETERO_MAN" ] || skip "HETERO_MAN is not set"
  for tool in "${tools[@]}"; do
    "$tool" --help >text
    [ "$(wc -L <text)" -le 80 ]
    sed -n 's/^  \( \{0,4\}--*[^ ].*\)$/\1/p' text | sed 's/^ *//; s/  .*//' |
      grep -oE -- '(^|[ ,])--?[a-zA-Z][a-zA-Z0-9-]*' | tr -d ' ,' | sort -u >help
    sed -n 's/^\.It Fl //p' "$HETERO_MAN/$tool.1" | sed 's/ Ar .*//; s/ Cm .*//' | tr -d ',' | tr ' ' '\n' |
      grep . | sed 's/^/-/' | sort -u >man
    [ "$(wc -l <help)" -gt 10 ]
    diff help man
  done
}

@test "manual pages are clean" {
  command -v mandoc >/dev/null || skip "mandoc is not installed"
  for page in "$HETERO_MAN"/*.[1-8]; do
    # References are looked up among the installed pages, where these are not yet.
    mandoc -Tlint "$page" | grep -v 'referenced manual not found' >lint || true
    [ ! -s lint ] || { cat lint; return 1; }
  done
}

@test "an unknown option is a usage error that names the nearest" {
  refuses 2 'unknown option --epsilom; the nearest is --epsilon' kv-verify --epsilom 1 a b
  refuses 2 'unknown option --kv-dtyp; the nearest is --kv-dtype' hetero-prefill --kv-dtyp f16
  refuses 2 'unknown option --layerwise; --help lists' hetero-prefill --layerwise  # near none
  refuses 2 'KV is missing' hetero-decode -m m
  refuses 2 'unexpected argument' kv-send a b -o c
  refuses 2 '--output is given more than once' kv-send a -o b -o c
  refuses 2 '--timeout is given more than once' kv-send a -o b --timeout 1s --timeout 2s
  refuses 2 '--threads' kv-quantize a -o b --dtype int8 -t many
  refuses 2 '--dtype' kv-quantize a -o b --dtype
}

@test "values that look like options or lists are taken as they are" {
  run --separate-stderr token_ids -m "$tiny" --bos off -p "--json"
  [ "$status" -eq 0 ]
  [ -n "$output" ]
  run --separate-stderr token_ids -m "$tiny" --bos off -p "[a,b]"
  [ "$status" -eq 0 ]
  [ -n "$output" ]
  bracket=$output
  run --separate-stderr token_ids -m "$tiny" --bos off -p "a"
  [ "$output" != "$bracket" ]
}

@test "bash completion offers options, choices and files" {
  for tool in "${tools[@]}"; do
    "$tool" --completion bash >completion
    bash -n completion
  done
  hetero-prefill --completion bash >completion
  touch some-file
  run bash -c 'source ./completion
    COMP_WORDS=(hetero-prefill --kv-d) COMP_CWORD=1; _hetero_prefill; echo "${COMPREPLY[*]}"
    COMP_WORDS=(hetero-prefill --kv-dtype b) COMP_CWORD=2; _hetero_prefill; echo "${COMPREPLY[*]}"
    COMP_WORDS=(hetero-prefill -f some) COMP_CWORD=2; _hetero_prefill; echo "${COMPREPLY[*]}"'
  [ "${lines[0]}" = "--kv-dtype" ]
  [ "${lines[1]}" = "bf16" ]
  [ "${lines[2]}" = "some-file" ]
}

@test "settings come from the command line, the environment, the file, in this order" {
  cat >settings.toml <<'END'
threads = 3
kv-dtype = "bf16"
[hetero-prefill]
chunk = 64
[kv-verify]
epsilon = 0.01
END
  run --separate-stderr env HETERO_KV_DTYPE=f32 hetero-prefill --config settings.toml -t 5 --dump-config
  [ "$status" -eq 0 ]
  grep -E '^threads = "?5"? .*--threads' <<<"$output"
  grep -E '^kv-dtype = "f32" .*HETERO_KV_DTYPE' <<<"$output"
  grep -E '^chunk = "?64"? .*settings.toml' <<<"$output"
  grep -E '^bos = "auto" .*default' <<<"$output"
  ! grep -q epsilon <<<"$output"
}

@test "an unknown key in the settings file is an error that names the nearest" {
  echo 'kv-dtyp = "bf16"' >settings.toml
  refuses 2 'kv-dtyp.*kv-dtype' hetero-prefill --config settings.toml -m m -p x -o y
  refuses 2 'HETERO_THREADS.*many' env HETERO_THREADS=many hetero-prefill -m m -p x -o y
  refuses 3 'missing.toml' hetero-prefill --config missing.toml -m m -p x -o y
}

@test "a full or closed stdout is noticed" {
  for tool in "${tools[@]}"; do
    run --separate-stderr bash -c "$tool --help >/dev/full"
    [ "$status" -eq 4 ]
    grep -q 'No space left on device' <<<"$stderr"
    run --separate-stderr bash -c "$tool --version >&-"
    [ "$status" -eq 4 ]
  done
}

@test "a reader that goes away ends a tool quietly" {
  hetero-prefill -m "$tiny" -p "Hello" -o a.h5 -q
  # A pipe whose reader closed before the first byte.
  run --separate-stderr bash -c "{ sleep 0.3; hetero-decode -m '$tiny' a.h5 -n 8 --ignore-eos -q; echo \$? >status; } | true"
  [ -z "$stderr" ]
  [ "$(cat status)" -eq 141 ]
}

@test "log lines as JSON, and nothing that a terminal would obey" {
  run --separate-stderr kv-verify --log-format json missing.h5
  [ "$status" -eq 3 ]
  [[ $stderr == '{"level":"error","tool":"kv-verify","message":'* ]]
  run --separate-stderr kv-verify $'bad\e[31mname\nx'
  [ "$status" -eq 3 ]
  ! grep -q $'\e' <<<"$stderr"
  [ "$(wc -l <<<"$stderr")" -eq 1 ]
}

@test "--device: one that is not there is refused, auto says what it came to" {
  hetero-prefill -m "$tiny" -p Hello -o a.h5 -q
  for tool in "hetero-prefill -m $tiny -p x -o b.h5" "hetero-decode -m $tiny a.h5"; do
    # shellcheck disable=SC2086
    refuses 4 'cuda:99' $tool --device cuda:99
    # shellcheck disable=SC2086
    refuses 2 'tpu' $tool --device tpu
    # shellcheck disable=SC2086
    refuses 2 '8-31=host' $tool --kv-tier ram
    # shellcheck disable=SC2086
    refuses 2 'kv-tier' $tool --device cpu --kv-tier host
  done
  refuses 4 'cuda:99' kv-quantize a.h5 --dtype int8 -o b.h5 --device cuda:99
  refuses 2 'tpu' kv-quantize a.h5 --dtype int8 -o b.h5 --device tpu
  refuses 2 'inspect' kv-quantize a.h5 --inspect --device cpu
  [ ! -e b.h5 ]
  kv-quantize a.h5 --dtype int8 -o q.h5 --json -q | grep -q '"device": "cpu"'
  run --separate-stderr hetero-prefill -m "$tiny" -p Hello -o b.h5 --device auto
  [ "$status" -eq 0 ]
  grep -q 'device: ' <<<"$stderr"
  run --separate-stderr hetero-prefill -m "$tiny" -p Hello -o c.h5
  ! grep -q 'device:' <<<"$stderr"
}

@test "a kernel backend that does not exist is refused" {
  refuses 4 'HETERO_BACKEND' env HETERO_BACKEND=abacus hetero-prefill -m "$tiny" -p x -o a.h5
}

@test "a switch that a setting turned on can be turned off" {
  run --separate-stderr env HETERO_IGNORE_EOS=1 hetero-decode --ignore-eos=false --dump-config
  [ "$status" -eq 0 ]
  grep -E '^ignore-eos = "?false"? .*--ignore-eos' <<<"$output"
  refuses 2 "--json: 'maybe' is not true or false" kv-verify --json=maybe a
}

@test "settings that do not belong to the command are ignored, and weaker ones give way" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 -q
  HETERO_ASYM=1 kv-quantize a.h5 --dtype int8 --sym -o sym.h5 -q
  kv-quantize a.h5 --dtype int8 -o default.h5 -q
  kv-verify sym.h5 default.h5 --epsilon 0
  HETERO_SYM=1 kv-quantize a.h5 --dtype int8 --asym -o asym.h5 --json -q | grep -q symmetric=0
  HETERO_AXIS=token HETERO_GROUP=32 kv-quantize a.h5 --dtype f32 -o f32.h5 -q
  refuses 2 'axis' kv-quantize a.h5 --dtype f32 --axis token -o x.h5
  refuses 2 'exclude each other' env HETERO_ASYM=1 HETERO_SYM=1 kv-quantize a.h5 --dtype int8 -o x.h5
  # A model in the environment does not change what is checked.
  export HETERO_MODEL=$tiny HETERO_STEPS=2
  kv-verify a.h5
  kv-verify a.h5 default.h5 --epsilon 1 --json >report
  [ "$(json_value metric <report)" = '"elem"' ]
  kv-verify a.h5 default.h5 --epsilon 1 --metric prob --json >report
  [ "$(json_value metric <report)" = '"prob"' ]
  refuses 2 'needs two states' kv-verify a.h5 -m "$tiny"
  unset HETERO_MODEL HETERO_STEPS
  refuses 2 'need a model' kv-verify a.h5 default.h5 --epsilon 1 --steps 4
  HETERO_STRICT=1 kv-verify a.h5 default.h5 --epsilon 1 --gate p99 --json >report
  [ "$(json_value gate <report)" = '"p99"' ]
  refuses 2 'strict' kv-verify a.h5 default.h5 --epsilon 1 --gate p99 --strict
}

@test "--progress always shows how far every long job is" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 --progress always 2>&1 | grep -q 'prefill: 3/3 tokens'
  kv-send a.h5 -o b.h5 --progress always 2>&1 | grep -qE 'send: ([0-9]+)/\1 layers'
  kv-quantize a.h5 -o q.h5 --dtype int8 --progress always 2>&1 | grep -qE 'quantize: ([0-9]+)/\1 layers'
  kv-verify a.h5 q.h5 --epsilon 1 --progress always 2>&1 | grep -qE 'verify: ([0-9]+)/\1 layers'
  hetero-decode -m "$tiny" a.h5 -n 1 --progress always 2>&1 | grep -qE 'read: ([0-9]+)/\1 layers'
  run --separate-stderr kv-send a.h5 -o c.h5 --progress never -q
  [ -z "$stderr" ]
}

@test "what --dump-config prints can be read by --config" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o state.h5 -q
  for tool in kv-quantize kv-verify kv-send; do
    "$tool" --dump-config >"$tool.toml"
  done
  kv-quantize --config kv-quantize.toml state.h5 --dtype int8 -o q.h5
  kv-verify --config kv-verify.toml state.h5
  kv-verify --config kv-verify.toml state.h5 q.h5 --epsilon 100
  kv-send --config kv-send.toml state.h5 -o sent.h5
  refuses 2 'group' kv-quantize state.h5 --dtype int8 --group 0 -o x.h5
}

@test "a settings file of endless keys is refused" {
  for text in '%s=1' '[%s]'; do
    # shellcheck disable=SC2059
    printf "$text\n" "$(printf 'a.%.0s' {1..50000})b" >deep.toml
    refuses 3 'deep.toml:1: a key of more than' hw-probe --config deep.toml
  done
  printf 'log_level = "%s"\n' "$(printf '.%.0s' {1..100})" >dots.toml
  refuses 2 'log' hw-probe --config dots.toml
}
