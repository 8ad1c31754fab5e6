#!/usr/bin/env bats
# The programs that the manual prints, and the script beside it: run as they are, by a Python that has what they need.
load helper

# with_modules MODULE...: sets python to one that has them (HETERO_PYTHON, else python3), or the test is skipped.
with_modules() {
  local module
  for python in "${HETERO_PYTHON:-}" python3; do
    [ -n "$python" ] && command -v "$python" >/dev/null || continue
    for module in "$@"; do "$python" -c "import $module" 2>/dev/null || continue 2; done
    return 0
  done
  skip "no Python with $*"
}

# The literal blocks of hetero-kv(5) from the one that imports h5py on, as one program.
printed() {
  awk '/^\.Bd -literal/ { on = 1; block = ""; next }
       /^\.Ed/ { if (on && (started || block ~ /import h5py/)) { started = 1; printf "%s\n", block } on = 0; next }
       on { block = block $0 "\n" }' "$HETERO_MAN/hetero-kv.5" | sed 's/\\e/\\/g'
}

@test "the programs of hetero-kv(5) read states of every kind, and notice damage" {
  with_modules h5py numpy
  printed >read.py
  [ "$(grep -c '^assert' read.py)" -ge 3 ]
  lab=$HETERO_BIN/kv_lab
  hetero-prefill -m "$tiny" --tokens 5,6,7,8,9 -o plain.h5 -q
  kv-quantize plain.h5 --dtype int8 -o int8.h5 -q
  kv-quantize plain.h5 --k int8:channel:g32:asym --v int8:token:asym -o channel.h5 -q
  "$lab" make windows windows.h5
  "$lab" make latent latent.h5
  for state in plain int8 channel windows latent; do
    cp $state.h5 state.h5
    "$python" read.py || { echo "$state"; return 1; }
    rm state.h5
  done
  # What it computes is what the tools decode to.
  cp channel.h5 state.h5
  { cat read.py; echo 'print(*(float(x) for x in load(f["sequences/0000/layers/000"], "k").reshape(-1)[:32]))'; } >print.py
  "$python" print.py >quantized
  kv-quantize channel.h5 --dtype f32 -o state.h5 --force -q
  "$python" print.py >decoded
  paste -d ' ' <(tr ' ' '\n' <quantized) <(tr ' ' '\n' <decoded) | awk '($1 - $2) ^ 2 > 1e-10 { exit 1 } END { exit NR != 32 }'
  # A flipped bit of the values is noticed by the same program.
  cp plain.h5 state.h5
  "$python" - <<'FLIP'
import h5py
with h5py.File("state.h5") as f:
    at = f["sequences/0000/layers/000/k"].id.get_offset()
with open("state.h5", "r+b") as f:
    f.seek(at)
    byte = f.read(1)[0]
    f.seek(at)
    f.write(bytes([byte ^ 1]))
FLIP
  run "$python" read.py
  [ "$status" -ne 0 ]
  grep -q AssertionError <<<"$output"
}

@test "kv_to_transformers.py continues a state with the tokens of hetero-decode" {
  with_modules h5py numpy torch transformers
  script=$BATS_TEST_DIRNAME/../../scripts/examples/kv_to_transformers.py
  model=$HETERO_TESTDATA/golden/tiny/llama/f32
  [ -d "$model" ] || skip "the model is not there: $model"
  hetero-prefill -m "$model" --tokens 5,6,7,8,9,10,11 --precise --kv-dtype f32 -o a.h5 -q
  expected=$(hetero-decode -m "$model" a.h5 -n 12 --precise --ignore-eos --json -q | json_list token_ids | tr ',' ' ')
  [ "$("$python" "$script" "$model" a.h5 12 2>err)" = "$expected" ] || { cat err; return 1; }
  kv-quantize a.h5 --k int8:channel:g32:asym --v int8:token -o q.h5 -q
  "$python" "$script" "$model" q.h5 12 >tokens 2>err || { cat err; return 1; }
  [ "$(wc -w <tokens)" -eq 12 ]
  kv-quantize a.h5 --preset hk8 -o hk8.h5 -q
  run "$python" "$script" "$model" hk8.h5 12
  [ "$status" -ne 0 ]
  grep -q 'are read here' <<<"$output"
}

@test "Python reads pages as vLLM lays them out" {
  with_modules numpy safetensors h5py
  hetero-prefill -m "$tiny" -p "Hello world" -o a.h5 -q
  kv-send a.h5 --layout hnd --block 4 --rope interleaved -o pages.safetensors -q
  "$python" - <<'END'
import h5py, numpy as np
from safetensors.numpy import load_file
pages = load_file("pages.safetensors")
layers = h5py.File("a.h5")["sequences/0000/layers"]
for name in ("k", "v"):
    x = np.asarray(layers["001"][name])  # [token][head][dim]
    t, h, d = x.shape
    if name == "k":
        x = x.reshape(t, h, 2, d // 2).swapaxes(2, 3).reshape(t, h, d)
    x = np.pad(x, ((0, -t % 4), (0, 0), (0, 0))).reshape(-1, 4, h, d).transpose(0, 2, 1, 3)
    y = pages["sequences.0.layers.1." + name]
    assert y.shape == x.shape and np.array_equal(x.view(np.uint16), y.view(np.uint16)), name
END
}
