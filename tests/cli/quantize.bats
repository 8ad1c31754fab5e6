#!/usr/bin/env bats
# kv-quantize: inspection, and what it says about exactness.
load helper
lab=$HETERO_BIN/kv_lab

@test "--inspect reports every part, as text and as a document, and writes nothing" {
  hetero-prefill -m "$tiny" --tokens 5,6,7,8,9,10 -o a.h5 -q
  kv-quantize a.h5 --inspect -q >text
  grep -q '^sequence 0$' text
  grep -qE 'layer +kind +part +min +max +rms' text
  grep -qE 'int8:token +[0-9.]+ bits +relative rms' text
  kv-quantize a.h5 --inspect --json -q >report
  layers=$(grep -c '"part": "K"' report)
  [ "$layers" -ge 2 ]
  [ "$(grep -c '"part": "V"' report)" -eq "$layers" ]
  [ "$(json_value not_finite <report)" = 0 ]
  [ "$(ls)" = "$(printf '%s\n' a.h5 report text)" ]
  # f32 loses nothing, 4 bits lose more than 8
  kv-quantize a.h5 --inspect --codecs f32,int8,int4 --json -q | sed -n 's/.*"relative_rms": \([^,]*\).*/\1/p' | head -n 3 >rms
  awk 'NR == 1 { exit !($1 == 0) }' rms
  awk 'NR == 2 { a = $1 } NR == 3 { exit !(a > 0 && $1 > 8 * a) }' rms
  # a quantized state is inspected as what it decodes to, from a pipe too
  kv-quantize a.h5 --dtype int8 -o - -q | kv-quantize - --inspect -q | grep -q 'int8:token'
}

@test "--inspect names the place of what is not finite, and of windows and latents" {
  "$lab" make windows f32.h5
  kv-quantize f32.h5 --dtype f16 -o a.h5 -q
  "$lab" set a.h5 nan.h5 1 v 2 1 7 7E00
  kv-quantize nan.h5 --inspect -q >text
  grep -q '1 NaN, 0 infinite; the first at token 7, head 1 dim 7' text
  grep -qE '^ +1 +swa +V ' text
  "$lab" make latent latent.h5
  kv-quantize latent.h5 --inspect -q >text
  grep -qE '^ +0 +mla +latent ' text
  grep -qE '^ +0 +mla RoPE key ' text
  kv-quantize nan.h5 --inspect --json -q >report
  [ "$(json_value not_finite <report)" -ge 1 ]
}

@test "--inspect goes with no output and no codec" {
  hetero-prefill -m "$tiny" --tokens 5,6,7 -o a.h5 -q
  refuses 2 '--output' kv-quantize a.h5 --inspect -o b.h5
  refuses 2 '--dtype' kv-quantize a.h5 --inspect --dtype int8
  refuses 2 'goes with --inspect' kv-quantize a.h5 --codecs int8 --dtype int8 -o b.h5
  refuses 2 'in8' kv-quantize a.h5 --inspect --codecs in8
  [ ! -e b.h5 ]
}

@test "a conversion says whether it is exact, lossy, or quantizes again" {
  hetero-prefill -m "$tiny" --tokens 5,6,7,8 -o a.h5 -q
  conversion() { kv-quantize "$@" --json -q | json_value conversion | tr -d "\""; }
  [ "$(conversion a.h5 --dtype f16 -o same.h5)" = exact ]
  [ "$(conversion a.h5 --dtype f32 -o f32.h5)" = exact ]
  [ "$(conversion a.h5 --dtype int8 -o q.h5)" = lossy ]
  [ "$(conversion q.h5 --dtype int8 -o q2.h5)" = exact ]
  [ "$(conversion q.h5 --dtype f32 -o back.h5)" = exact ]
  [ "$(conversion q.h5 --dtype f16 -o half.h5)" = lossy ]
  refuses 2 'requantize' kv-quantize q.h5 --dtype int4 -o q4.h5
  [ ! -e q4.h5 ]
  [ "$(conversion q.h5 --dtype int4 --requantize -o q4.h5)" = requantized ]
  kv-quantize q.h5 --dtype int4 --requantize -o q4.h5 --force 2>&1 | grep -q 'requantized, max |error|'
}

@test "--max-memory below what a layer needs is refused with the least that is enough, which is" {
  "$lab" make windows a.h5
  refuses 4 'needs [0-9]+ bytes at once' kv-quantize a.h5 --dtype int8 -o b.h5 --threads 1 --max-memory 4Ki
  [ ! -e b.h5 ]
  least=$(sed -n 's/.*at least --max-memory \([0-9]*\)Ki.*/\1/p' <<<"$stderr")
  refuses 4 'needs' kv-quantize a.h5 --dtype int8 -o b.h5 --threads 1 --max-memory $((least - 1))Ki
  kv-quantize a.h5 --dtype int8 -o b.h5 --threads 1 --max-memory "${least}Ki" -q
  kv-quantize a.h5 --dtype int8 -o c.h5 -q
  kv-verify b.h5 c.h5 --epsilon 0 -q
}
