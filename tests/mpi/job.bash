# The base of scripts that are called with SCENARIO BIN_DIR MPIRUN TESTDATA and whose scenarios run one job after the
# other, in a folder of their own.
set -u
scenario=$1 bin=$2 mpirun=$3 testdata=$4
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PATH=$bin:$PATH
limit_s=60

few() { [ -n "${HETERO_SMALL:-}" ]; }  # of what a scenario repeats, as under sanitizers
no() { echo "FAILED: $*"; [ ! -e err ] || { echo "stderr:"; cat err; }; exit 1; }
job() {
  local begin=$SECONDS
  rm -f code.*
  timeout -k 5 $limit_s "$mpirun" --oversubscribe "$@" </dev/null >out 2>err
  status=$?
  took=$((SECONDS - begin))
  [ "$status" -ne 124 ] && [ "$took" -lt $limit_s ] || no "the job did not end by itself: $*"
}
runs() { job "$@"; [ "$status" -eq 0 ] || no "status $status: $*"; }
same_state() { kv-verify "$1" "$2" --eps 0 -q >/dev/null || no "$1 and $2 differ"; }
ids() { tr -d ' \n' <"$1" | grep -o '"token_ids":\[[0-9,]*\]'; }
# A folder of the goldens with a tokenizer, which they come without.
make_gemma3() { mkdir gemma3 && ln -s "$testdata"/golden/tiny/gemma3_text/bf16/* "$testdata"/tokenizer/bytebpe512/* gemma3/; }
