#!/usr/bin/env bats
# kv-calibrate on a tiny model, and plans in kv-quantize.
load helper

# texts NAME SEED: token ids of a text
ids() {
  awk -v seed="$2" 'BEGIN { for (i = 0; i < 70; ++i) printf "%d ", (i * i * 13 + i * 5 + seed) % 512 }' >"$1.ids"
}

calibrate() {
  kv-calibrate -m "$tiny" --text @a.ids --text @b.ids --held-out @c.ids --prompt-tokens 50 --steps 20 --search-steps 10 \
    --k-options int3:channel:g32:asym,wf4,int8:channel:g32:asym --v-options had:int3,had:int4,int8,f16 "$@"
}

texts() {
  ids a 1
  ids b 77
  ids c 300
}

@test "formats are measured, at the bits that kv-quantize counts" {
  texts
  calibrate --formats int8,int4:channel:g32:asym/int4+s4 --json >report
  head -n 1 a.ids | tr ' ' '\n' | head -n 50 >prompt.ids
  hetero-prefill -m "$tiny" --tokens @prompt.ids -o a.h5
  kv-quantize a.h5 --k int4:channel:g32:asym --v int4 --sinks 4 --dry-run --json >quantized
  bits=$(tr -d '\n' <report | sed 's/.*"int4:channel[^}]*"bits_per_value": \([0-9.]*\).*/\1/')
  awk -v a="$bits" -v b="$(json_value bits_per_value <quantized)" 'BEGIN { exit !(a > 4 && (a - b) ^ 2 < 1e-18) }'
  calibrate --formats hk8 -q >table
  grep -q '^| hk8 | ' table
  [ "$(wc -l <table)" -eq 3 ]
}

@test "a plan is found, is within the bits, and is never worse than the uniform choices of its size" {
  texts
  calibrate --bits 8 -o plan.toml --csv t.csv --svg t.svg --json >report
  grep -q '^precision_plan = 1$' plan.toml
  [ "$(json_value plan <report)" = '"auto 8"' ]
  awk -v b="$(sed -n 's/^bits_per_value = //p' plan.toml)" 'BEGIN { exit !(b > 6 && b <= 8) }'
  plan_kl=$(awk '/^\[calibration\]/ { on = 1 } on && /^kl_mean/ { print $3; exit }' plan.toml)
  calibrate --formats wf4/had:int4+s4,int3:channel:g32:asym/int8+s4,wf4/had:int3+s4 --csv u.csv -q >/dev/null
  awk -F, -v kl="$plan_kl" 'NR > 1 && $3 <= 8 && $6 < kl * 0.999999 { print; bad = 1 } END { exit bad }' u.csv
  [ "$(awk -F, 'NR > 1 && $2 == 1' t.csv | wc -l)" -ge 3 ]
  grep -q '</svg>' t.svg
  no_temporaries
}

@test "kv-quantize stores a state as the plan says, and refuses a state of another model" {
  texts
  calibrate --bits 8 -o plan.toml -q >/dev/null
  hetero-prefill -m "$tiny" --tokens @a.ids -o a.h5
  kv-quantize a.h5 --plan plan.toml -o q.h5 --json >report
  [ "$(json_value plan <report)" = '"plan.toml"' ]
  [ "$(json_value same_weights <report)" = true ]
  kv-verify q.h5
  hetero-decode -m "$tiny" q.h5 -n 4
  hetero-prefill -m "$HETERO_TESTDATA/golden/tiny/gguf/qwen2-q8_0.gguf" --tokens @a.ids -o other.h5
  refuses 3 'plan is of another model' kv-quantize other.h5 --plan plan.toml -o x.h5
  [ ! -e x.h5 ]
  refuses 2 'exclude each other' kv-quantize a.h5 --plan plan.toml --preset hk8 -o x.h5
  refuses 2 'a plan says it itself' kv-quantize a.h5 --plan plan.toml --group 8 -o x.h5
  refuses 3 'nosuch.toml: cannot open plan' kv-quantize a.h5 --plan nosuch.toml -o x.h5
  sed 's/wf4:channel\|int[38]:channel:g32:asym/int9/' plan.toml >bad.toml
  refuses 3 "bad.toml:[0-9]+: 'k': .*unknown codec 'int9'" kv-quantize a.h5 --plan bad.toml -o x.h5
}

@test "a run killed at any moment goes on where it was and gives the same" {
  texts
  local began=${EPOCHREALTIME/[.,]/} took killed=0
  calibrate --bits 8 -o whole.toml --csv whole.csv -q >/dev/null
  took=$((${EPOCHREALTIME/[.,]/} - began))  # microseconds
  for i in 1 2 3 4 5 6; do
    calibrate --bits 8 -o plan.toml --csv plan.csv --resume work -q >/dev/null &
    pid=$!
    sleep "$(printf '%d.%06d' $((took * i / 8 / 1000000)) $((took * i / 8 % 1000000)))"
    if kill -KILL "$pid" 2>/dev/null; then killed=$((killed + 1)); fi
    wait "$pid" || true
    if [ -e plan.csv ]; then break; fi
  done
  [ "$killed" -ge 1 ]
  before=$(cat work/journal-run.txt | wc -l)
  calibrate --bits 8 -o plan.toml --csv plan.csv --resume work --force -q >/dev/null
  cmp whole.toml plan.toml
  cmp whole.csv plan.csv
  # All is known now: nothing is measured again.
  after=$(wc -l <work/journal-run.txt)
  [ "$after" -ge "$before" ]
  calibrate --bits 8 -o plan.toml --resume work --force -q >/dev/null
  [ "$(wc -l <work/journal-run.txt)" -eq "$after" ]
  cmp whole.toml plan.toml
}

@test "slices share a folder, and the last run finds their work" {
  texts
  calibrate --bits 8 --formats int8 -o whole.toml -q >/dev/null
  for i in 0 1 2; do calibrate --bits 8 --formats int8 -o plan.toml --resume work --slice "$i/3" -q; done
  [ ! -e plan.toml ]
  lines=$(cat work/journal-*.txt | wc -l) layers=$(grep -c '{k = ' whole.toml)
  # the floor and a format on three texts; each part alone and each option everywhere on two
  [ "$lines" -eq $((2 * 3 + (2 * layers + 3 + 4) * 2)) ] || { echo "$lines"; return 1; }
  calibrate --bits 8 --formats int8 -o plan.toml --resume work -q >/dev/null
  cmp whole.toml plan.toml
  # All of it is a slice too, and stops.
  calibrate --bits 8 --formats int8 -o one.toml --resume one --slice 0/1 -q >printed
  [ ! -s printed ]
  [ ! -e one.toml ]
  [ "$(cat one/journal-*.txt | wc -l)" -eq "$lines" ]
}

@test "an epsilon is kept, or the run says what is over it" {
  texts
  calibrate --epsilon 0.9 -o plan.toml -q >/dev/null
  grep -q '^passed = true' plan.toml
  run --separate-stderr calibrate --bits 8 --epsilon 0.01 -o tight.toml -q
  [ "$status" -eq 1 ]
  [[ $stderr == *'over epsilon'* ]]
  grep -q '^passed = false' tight.toml
  hetero-prefill -m "$tiny" --tokens @a.ids -o a.h5 -q
  kv-quantize a.h5 --plan tight.toml -o q.h5 2>err
  grep -q 'tight.toml: it did not pass its own gate of epsilon 0.01' err
  refuses 3 'below the noise of f16' calibrate --bits 8 --epsilon 1e-9 -o x.toml -q
}

@test "what makes no sense is refused before the model is loaded" {
  texts
  refuses 2 'no texts' kv-calibrate -m none.gguf --formats hk8
  refuses 2 'nothing to do' kv-calibrate -m none.gguf --text @a.ids
  refuses 2 'needs a goal' kv-calibrate -m none.gguf --text @a.ids --formats hk8 -o plan.toml
  refuses 2 '--slice' kv-calibrate -m none.gguf --text @a.ids --formats hk8 --slice 0/2
  refuses 2 "--slice '2/2'" calibrate --formats hk8 --slice 2/2 --resume work
  refuses 2 'unknown codec' calibrate --formats int9
  refuses 2 "'\+x4' is not" calibrate --formats int8+x4
  refuses 2 'held-out text a is text a' kv-calibrate -m "$tiny" --text @a.ids --held-out @a.ids --steps 5 --formats int8
  refuses 3 'need a prompt' kv-calibrate -m "$tiny" --text @a.ids --steps 70 --formats int8
  touch plan.toml
  refuses 3 'plan.toml' calibrate --bits 8 -o plan.toml
}

# The scripts over the tools, where a build leaves them, with a Slurm that runs copies, one task after the other.
@test "calibrate.sh and the Slurm array give the same plan" {
  texts
  scripts=$PWD/tree/scripts/calibrate
  mkdir -p tree/scripts tree/build/release
  cp -r "$BATS_TEST_DIRNAME/../../scripts/calibrate" tree/scripts
  ln -s "$HETERO_BIN" tree/build/release/bin
  unset HETERO_BIN
  export HETERO_STEPS=20 HETERO_PROMPT_TOKENS=50 HETERO_SEARCH_STEPS=10 HETERO_CALIBRATE_FORMATS=int8 \
    HETERO_K_OPTIONS=int3:channel:g32:asym,wf4,int8:channel:g32:asym HETERO_V_OPTIONS=had:int3,had:int4,int8,f16
  "$scripts/calibrate.sh" "$tiny" 8 alone @a.ids @b.ids @c.ids >/dev/null 2>&1
  cat >sbatch <<'STUB'
#!/usr/bin/env bash
last=0 array=
while [[ $1 == --* ]]; do
  case $1 in
    --parsable) shift ;;
    --array) last=${2#0-} array=1; shift 2 ;;
    *) shift 2 ;;
  esac
done
mkdir -p spool/job
cp "$1" spool/job/script
set -- "$PWD/spool/job/script" "${@:2}"
for ((i = 0; i <= last; ++i)); do
  if [ -n "$array" ]; then SLURM_ARRAY_TASK_ID=$i "$@" >>log 2>&1; else "$@" >>log 2>&1; fi
done
echo 42
STUB
  chmod +x sbatch
  run --separate-stderr env SBATCH=./sbatch "$scripts/slurm-array.sh" 3 "$tiny" 8 shared @a.ids @b.ids @c.ids
  [ "$status" -eq 0 ] || { cat log; return 1; }
  cmp alone/plan.toml shared/plan.toml
  cmp alone/table.csv shared/table.csv
  [ "$(ls shared/work/journal-?-of-3.txt | wc -l)" -eq 3 ]
  refuses 2 'TASKS' "$scripts/slurm-array.sh" many "$tiny" 8 shared
}

@test "names that are not UTF-8 stay out of plans, journals are regular files" {
  texts
  cp a.ids $'x\xff.ids'
  calibrate --text @$'x\xff.ids' --bits 8 -o plan.toml -q >/dev/null
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o s.h5 -q
  kv-quantize s.h5 --plan plan.toml -o q.h5 -q
  mkdir work
  mkfifo work/journal-other.txt
  refuses 3 'no regular file' calibrate --bits 8 -o b.toml --resume work
  mkdir own
  mkfifo own/journal-run.txt
  refuses 3 'no regular file' calibrate --bits 8 -o b.toml --resume own
}
