#!/usr/bin/env bats
# hetero-convert: the whole tool on tiny models.
load helper

folder=$HETERO_TESTDATA/golden/tiny/llama/bf16

@test "a GGUF in every type runs, and says where it comes from" {
  for dtype in f32 f16 bf16 q8_0 q4_0 q4_1 q4_k; do
    hetero-convert "$tiny" -o $dtype.gguf --dtype $dtype -q
    [ "$(head -c 4 $dtype.gguf)" = GGUF ]
    hetero-prefill -m $dtype.gguf --tokens 5,6,7 -o $dtype.h5 -q
    # A state of these weights continues with those that they were made of, and the other way round.
    hetero-decode -m "$tiny" $dtype.h5 -n 2 -q >/dev/null
  done
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o f.h5 -q
  run --separate-stderr hetero-decode -m q4_0.gguf f.h5 -n 2
  [ "$status" -eq 0 ]
  grep -q 'another precision of the weights' <<<"$stderr"
  refuses 3 'lineage' hetero-decode -m "$HETERO_TESTDATA/golden/tiny/gguf/llama-q8_0.gguf" f.h5 -n 2
  no_temporaries
}

@test "a folder in every type runs, with its tokenizer" {
  for dtype in f32 f16 bf16 int8-channel; do
    hetero-convert "$folder" -o $dtype --dtype $dtype -q
    hetero-prefill -m $dtype -p "Hello there" -o $dtype.h5 -q
    hetero-decode -m "$folder" $dtype.h5 -n 2 -q >/dev/null
    cmp "$folder/tokenizer.json" $dtype/tokenizer.json
  done
  grep -q '"float16"' f16/config.json
  grep -q '"compressed-tensors"' int8-channel/config.json
  ! grep -q quantization_config f16/config.json
  # bf16 was bf16: the same tensors.
  run --separate-stderr hetero-convert "$folder" -o again --dtype bf16 --json -q
  ! grep -q '"exact": false' <<<"$output"
  # Back from int8 to floats, the description goes.
  hetero-convert int8-channel -o wide --dtype f32 -q
  ! grep -q quantization_config wide/config.json
  hetero-decode -m wide int8-channel.h5 -n 2 -q >/dev/null
  no_temporaries
}

@test "shards" {
  hetero-convert "$folder" -o model --dtype f32 --max-shard-size 200K -q
  [ "$(find model -name 'model-*-of-*.safetensors' | wc -l)" -gt 2 ]
  [ ! -e model/model.safetensors ]
  grep -q weight_map model/model.safetensors.index.json
  hetero-convert "$folder" -o single --dtype f32 -q
  hetero-prefill -m model --tokens 5,6,7 --kv-dtype f32 -o a.h5 -q
  hetero-prefill -m single --tokens 5,6,7 --kv-dtype f32 -o b.h5 -q
  kv-verify a.h5 b.h5 --epsilon 0 -q
}

@test "the report names every tensor, its loss, and why it has another type" {
  run --separate-stderr hetero-convert "$tiny" -o out.gguf --dtype q4_0 --json
  [ "$status" -eq 0 ]
  [ "$(grep -c '"relative_l2"' <<<"$output")" -eq "$(grep -c '"name"' <<<"$output")" ]
  grep -q '"reason": "output matrix: kept at 8 bits"' <<<"$output"
  [ "$(json_value bytes_in <<<"$output")" -gt "$(json_value bytes_out <<<"$output")" ]
  [[ $(json_value lineage <<<"$output") =~ ^\"[0-9a-f]{64}\"$ ]]
  run --separate-stderr hetero-convert "$tiny" -o out2.gguf --dtype q4_0 -v
  [ -z "$output" ]
  grep -q 'blk.0.attn_q.weight \[64, 64\]: f32 -> q4_0' <<<"$stderr"
  cmp out.gguf out2.gguf
}

@test "a dry run tells the plan and the bytes, and writes nothing" {
  run --separate-stderr hetero-convert "$tiny" --dtype q4_0 --dry-run
  [ "$status" -eq 0 ]
  grep -q 'blk.0.attn_q.weight .* f32 -> q4_0' <<<"$output"
  planned=$(tail -n 1 <<<"$output" | sed 's/.*-> \([0-9]*\) bytes/\1/')
  hetero-convert "$tiny" -o out.gguf --dtype q4_0 --report report.json -q
  [ "$planned" = "$(json_value bytes_out <report.json)" ]
  hetero-convert "$tiny" -o dry.gguf --dtype q4_0 --dry-run -q >/dev/null
  [ ! -e dry.gguf ]
  no_temporaries
}

@test "other types for some tensors" {
  hetero-convert "$tiny" -o out.gguf --dtype q4_0 --keep 'blk.*=q8_0' --keep '*norm*=f32' --keep 'blk.1.*_q.*=bf16' \
    --report report.json -q
  type_of() { grep -A 8 "\"name\": \"$1\"" report.json | json_value to; }
  [ "$(type_of blk.0.attn_q.weight)" = '"q8_0"' ]
  [ "$(type_of blk.1.attn_q.weight)" = '"bf16"' ]
  [ "$(type_of blk.1.attn_norm.weight)" = '"f32"' ]
  [ "$(type_of token_embd.weight)" = '"q4_0"' ]
  refuses 2 'nearest is blk.0.attn_k.weight' hetero-convert "$tiny" -o x.gguf --dtype f16 --keep 'blk.0.attn_kq.weight=q8_0'
  refuses 2 'PATTERN=TYPE' hetero-convert "$tiny" -o x.gguf --dtype f16 --keep 'blk.0'
  refuses 2 "'q9' is not one of" hetero-convert "$tiny" -o x.gguf --dtype f16 --keep 'blk.0*=q9'
  refuses 2 'no matrix' hetero-convert "$tiny" -o x.gguf --dtype f16 --keep '*_norm.weight=q8_0'
  [ ! -e x.gguf ]
}

@test "types that the container does not have" {
  refuses 2 'int8-channel.*folder.*q8_0' hetero-convert "$tiny" -o x.gguf --dtype int8-channel
  refuses 2 'q4_0.*GGUF.*int8-channel' hetero-convert "$folder" -o x --dtype q4_0
  refuses 2 "'q5_1' is not one of f32" hetero-convert "$tiny" -o x.gguf --dtype q5_1
  refuses 2 'no type' hetero-convert "$tiny" -o x.gguf
  refuses 2 'no output' hetero-convert "$tiny" --dtype f16
  refuses 2 'name the folder' hetero-convert "$folder" -o x.safetensors --dtype f16
  refuses 2 'dry-run' hetero-convert "$tiny" --dtype f16 --dry-run --check "$tiny"
}

@test "what it costs on a text" {
  head -c 2000 "$HETERO_TESTDATA/text/gpl-3.0.txt" >text
  run --separate-stderr hetero-convert "$tiny" -o same.gguf --dtype f32 --check text --json
  [ "$status" -eq 0 ]
  [ "$(json_value kl_mean <<<"$output")" = 0.0 ]
  [ "$(json_value top1_agreement <<<"$output")" = 1.0 ]
  [ "$(json_value perplexity_in <<<"$output")" = "$(json_value perplexity_out <<<"$output")" ]
  perplexity=$(json_value perplexity_in <<<"$output")
  run --separate-stderr hetero-prefill -m "$tiny" --score text --kv-dtype f32 --precise --json
  awk -v a="$perplexity" -v b="$(json_value perplexity <<<"$output")" 'BEGIN { d = a / b - 1; exit !(d * d < 1e-12) }'
  run --separate-stderr hetero-convert "$tiny" -o small.gguf --dtype q4_0 --check text
  [[ $output =~ ^perplexity\ [0-9.]+\ -\>\ [0-9.]+\ over\ [0-9]+\ tokens ]]
  # A text that cannot be read is noticed before the work, and nothing is left.
  refuses 3 'missing' hetero-convert "$tiny" -o x.gguf --dtype q4_0 --check missing
  : >empty
  refuses 3 'nothing to score' hetero-convert "$tiny" -o x.gguf --dtype q4_0 --check empty --bos off
  [ ! -e x.gguf ]
}

@test "outputs that are there, and inputs" {
  hetero-convert "$tiny" -o out.gguf --dtype f16 -q
  cp out.gguf before
  refuses 3 'exists already' hetero-convert "$tiny" -o out.gguf --dtype q8_0
  cmp out.gguf before
  hetero-convert "$tiny" -o out.gguf --dtype q8_0 --force -q
  ! cmp -s out.gguf before
  refuses 2 'is the input' hetero-convert out.gguf -o out.gguf --dtype f16 --force
  ln -s out.gguf link.gguf
  refuses 2 'is the input' hetero-convert link.gguf -o out.gguf --dtype f16 --force

  hetero-convert "$folder" -o model --dtype f16 -q
  refuses 3 'exists already' hetero-convert "$folder" -o model --dtype f32
  refuses 2 'is the input' hetero-convert model -o model/ --dtype f32 --force
  refuses 3 'not a folder' hetero-convert "$folder" -o before --dtype f32 --force
  hetero-convert "$folder" -o model --dtype f32 --force -q
  grep -q '"float32"' model/config.json
  echo 'my notes' >model/notes.tex
  refuses 3 'notes.tex' hetero-convert "$folder" -o model --dtype f16 --force
  [ "$(cat model/notes.tex)" = 'my notes' ]
  grep -q '"float32"' model/config.json
  refuses 4 'no directory' hetero-convert "$folder" -o none/model --dtype f16
  no_temporaries
}

@test "weights that cannot be converted" {
  # The first weight of a matrix becomes NaN, infinity, or too large for f16.
  offset=$(($(stat -c %s "$tiny") - 4096))
  for bytes in '\x00\x00\xc0\x7f' '\x00\x00\x80\x7f'; do
    cp "$tiny" bad.gguf
    chmod u+w bad.gguf
    printf "$bytes" | dd of=bad.gguf bs=1 seek=$offset conv=notrunc status=none
    for dtype in f32 f16 q8_0; do
      refuses 3 'bad.gguf: tensor .* row [0-9]+, column [0-9]+ is' hetero-convert bad.gguf -o x.gguf --dtype $dtype
    done
  done
  cp "$tiny" bad.gguf
  chmod u+w bad.gguf
  printf '\x00\x00\x80\x47' | dd of=bad.gguf bs=1 seek=$offset conv=notrunc status=none # 65536
  refuses 3 'is 65536, too large for f16.*bf16' hetero-convert bad.gguf -o x.gguf --dtype f16
  hetero-convert bad.gguf -o large.gguf --dtype bf16 -q
  for cut in 3 1000 $((offset - 7)); do
    head -c "$cut" "$tiny" >cut.gguf
    refuses 3 'cut.gguf' hetero-convert cut.gguf -o x.gguf --dtype f16
  done
  [ ! -e x.gguf ]
  no_temporaries
}

@test "models that are refused by name" {
  mkdir adapter
  echo '{"peft_type": "LORA"}' >adapter/adapter_config.json
  refuses 3 'LoRA adapter' hetero-convert adapter -o x --dtype f16
  cp -r "$folder" multi
  chmod -R u+w multi
  sed -i '0,/{/s//{ "vision_config": {"hidden_size": 8},/' multi/config.json
  refuses 3 'multimodal' hetero-convert multi -o x --dtype f16
  [ ! -e x ]
}

@test "a full disk and a signal leave nothing" {
  # As if the disk were full after 64 KiB.
  run --separate-stderr bash -c "ulimit -f 64; hetero-convert '$tiny' -o x.gguf --dtype f32"
  [ "$status" -eq 4 ]
  grep -q 'x.gguf: cannot be written' <<<"$stderr"
  run --separate-stderr bash -c "ulimit -f 64; hetero-convert '$folder' -o x --dtype f32"
  [ "$status" -eq 4 ]
  # by the name that was asked for
  grep -q ' x/model.safetensors: cannot be written' <<<"$stderr"
  ! grep -q '\.part' <<<"$stderr"
  [ ! -e x.gguf ] && [ ! -e x ]
  no_temporaries
  # The output is complete, but has no name before the check is done.
  for i in 1 2 3 4; do cat "$HETERO_TESTDATA/text/gpl-3.0.txt"; done >../text
  for from in "$tiny" "$folder"; do
    [ "$from" = "$tiny" ] && out=y.gguf || out=y
    hetero-convert "$from" -o $out --dtype f32 --check ../text -q &
    pid=$!
    for _ in $(seq 200); do
      [ -n "$(find . -name '.y*.part')" ] && break
      sleep 0.05
    done
    [ -n "$(find . -name '.y*.part')" ]
    kill -TERM $pid
    wait $pid && status=0 || status=$?
    [ "$status" -eq 143 ]
    [ ! -e $out ]
    no_temporaries
  done
}

@test "a folder's files hold something" {
  refuses 2 '--max-shard-size' hetero-convert "$tiny" -o x --dtype f32 --max-shard-size 0
  [ ! -e x ]
}
