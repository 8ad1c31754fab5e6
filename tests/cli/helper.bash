# Shared by the .bats files. HETERO_BIN, HETERO_MAN and HETERO_TESTDATA come from ctest.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # used by the .bats files; set by bats
bats_require_minimum_version 1.5.0

here=$(dirname "${BASH_SOURCE[0]}")
: "${HETERO_TESTDATA:=$here/../../testdata}"
: "${HETERO_BIN:?directory of the tools}"
PATH=$HETERO_BIN:$PATH
tools=(hetero-prefill hetero-decode hetero-convert kv-quantize kv-send kv-verify kv-calibrate hw-probe hetero-plan)
tiny=$HETERO_TESTDATA/golden/tiny/gguf/llama-f32.gguf
export LC_ALL=C

# Settings of the caller's environment would change what the tools do.
for name in $(compgen -e | grep '^HETERO_'); do
  case $name in
    HETERO_BIN | HETERO_EMULATED_BIN | HETERO_MAN | HETERO_TESTDATA | HETERO_CACHE | HETERO_SANITIZE | HETERO_PYTHON) ;;
    *) unset "$name" ;;
  esac
done

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
}

# SmolLM2-135M-Instruct, or the test is skipped.
need_smollm2() {
  model=${HETERO_CACHE:-$HOME/.cache/hetero}/SmolLM2-135M-Instruct.Q4_1.gguf
  [ -r "$model" ] || skip "the model is not there: $model"
}

# Tests of tools under mpirun, also as root; or they are skipped.
need_mpi() {
  command -v mpirun >/dev/null || skip "mpirun is not installed"
  kv-send --version --json | grep -q '"mpi"' || skip "built without MPI"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export ASAN_OPTIONS=detect_leaks=0  # what Open MPI never frees
}

# refuses STATUS PATTERN COMMAND...: ends with STATUS, says nothing on stdout, and one line on stderr that matches.
refuses() {
  local expected=$1 pattern=$2
  shift 2
  run --separate-stderr "$@"
  if [ "$status" -ne "$expected" ]; then
    echo "status $status instead of $expected: $*"
    echo "$stderr"
    return 1
  fi
  if [ -n "$output" ]; then
    echo "stdout is not empty: $output"
    return 1
  fi
  if [ "$(grep -c . <<<"$stderr")" -ne 1 ]; then
    echo "stderr is not one line: $stderr"
    return 1
  fi
  if ! grep -qE -- "$pattern" <<<"$stderr"; then
    echo "no '$pattern' in: $stderr"
    return 1
  fi
}

# A model of the goldens in a folder of its name, with a tokenizer, which it comes without.
make_model() {
  mkdir "$1"
  ln -s "$HETERO_TESTDATA/golden/tiny/$1"/bf16/* "$HETERO_TESTDATA"/tokenizer/bytebpe512/* "$1"/
}

# The token ids that a prompt has, as 1,2,3.
token_ids() {
  hetero-prefill "$@" --dry-run --json -q | json_list token_ids
}

# json_list KEY: the numbers of the first list with this key in a document on stdin, as 1,2,3.
json_list() {
  tr -d ' \n' | sed -n "s/.*\"$1\":\[\([^]]*\)\].*/\1/p"
}

# json_value KEY: the first plain value with this key.
json_value() {
  sed -n "s/^ *\"$1\": \(.*[^,]\),\{0,1\}$/\1/p" | head -n 1
}

no_temporaries() {
  local left
  left=$(find . -name '*.part')
  [ -z "$left" ] || { echo "left behind: $left"; return 1; }
}

# killed_at COUNT OUT COMMAND...: SIGKILL at COUNT moments spread over the run (sanitized, at a third of them); OUT is then
# absent, or `before`, or complete.
killed_at() {
  local count=$1 out=$2 start end i pid
  shift 2
  [ -z "${HETERO_SANITIZE:-}" ] || count=$((count / 3))
  start=$(date +%s%N)
  "$@"
  end=$(date +%s%N)
  for ((i = 1; i <= count; ++i)); do
    if [ -e before ]; then cp before "$out"; else rm -f "$out"; fi
    "$@" 2>/dev/null &
    pid=$!
    sleep "$(awk -v t=$((end - start)) -v i="$i" -v n="$count" 'BEGIN { printf "%.4f", t / 1e9 * i / (n + 1) }')"
    kill -KILL $pid 2>/dev/null || true
    wait $pid || true
    if [ -e "$out" ]; then
      { [ -e before ] && cmp -s before "$out"; } || kv-verify "$out" >/dev/null
    fi
  done
  # What was left behind does not hinder the next run.
  "$@"
  kv-verify "$out" >/dev/null
}
