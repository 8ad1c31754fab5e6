#!/bin/bash
# streaming.sh SCENARIO BIN_DIR MPIRUN TESTDATA: states that are sent while they are computed.
. "$(dirname "$0")/job.bash" || exit 1
llama=$testdata/golden/tiny/gguf/llama-q8_0.gguf
make_gemma3
awk 'BEGIN { for (i = 0; i < 90; ++i) printf "%d ", (i * i * 13 + i * 5 + 97) % 500 }' >ids

field() { tr -d ' \n' <"$1" | grep -oE "\"$2\":[^,}]*" | head -1 | cut -d: -f2; }
same_state() {  # numbers, logits and pending tokens
  kv-verify "$1" "$2" --eps 0 --json -q >compared || no "$1 and $2 differ"
  [ "$(field compared logits_max_abs)" = 0.0 ] || no "the logits of $1 and $2 differ"
}
# What goes to a file, and the same over a link to kv-send, which stores it. Arguments of hetero-prefill.
same_as_file() {
  rm -f direct.h5 streamed.h5
  hetero-prefill "$@" -o direct.h5 -q -t 2 || no "prefill to a file: $*"
  runs -n 1 hetero-prefill "$@" -o mpi:1 -q -t 2 : -n 1 kv-send mpi:0 -o streamed.h5 -q
  same_state direct.h5 streamed.h5
  # The root covers the header and all bytes.
  [ "$(strings -n 64 direct.h5 | grep -oE '^[0-9a-f]{64}' | sort)" = "$(strings -n 64 streamed.h5 | grep -oE '^[0-9a-f]{64}' | sort)" ] ||
    no "other digests: $*"
}

case $scenario in
  same_state)
    for model in "$llama" gemma3; do
      for chunk in $(few && echo 7 || echo 7 512); do
        same_as_file -m "$model" --tokens @ids --chunk $chunk
        same_as_file -m "$model" --tokens @ids --chunk $chunk --logits none
      done
    done
    same_as_file -m "$llama" --tokens @ids --chunk 16 --kv-dtype int8-channel
    same_as_file -m "$llama" --tokens @ids --chunk 16 --precise --kv-dtype bf16 --first-token prefill
    printf '{"id": "%s", "tokens": [%s]}\n' x "$(sed 's/ $//; s/ /,/g' ids)" y 5,6,7 z "$(sed 's/ $//; s/ /,/g' ids)" >three.jsonl
    same_as_file -m "$llama" --jsonl three.jsonl --chunk 16
    cut -d' ' -f1-40 ids >begin.ids
    hetero-prefill -m "$llama" --tokens @begin.ids -o begin.h5 -q || no "prefix"
    same_as_file -m "$llama" --tokens @ids --prefix begin.h5 --chunk 16
    same_as_file -m "$llama" --tokens @begin.ids --prefix begin.h5 --chunk 16 ;;
  wire_dtype)
    hetero-prefill -m "$llama" --tokens @ids -o plain.h5 -q || no "prefill"
    kv-quantize plain.h5 --dtype int8 -o direct.h5 -q || no "kv-quantize"
    runs -n 1 hetero-prefill -m "$llama" --tokens @ids --chunk 16 --wire-dtype int8 -o mpi:1 -q : \
      -n 1 kv-send mpi:0 -o streamed.h5 -q
    same_state direct.h5 streamed.h5
    runs -n 1 hetero-prefill -m "$llama" --tokens @ids --chunk 16 -o mpi:1 -q : \
      -n 1 kv-quantize mpi:0 --dtype int8 -o mpi:2 -q : -n 1 kv-send mpi:1 -o through.h5 -q
    same_state direct.h5 through.h5
    runs -n 1 hetero-prefill -m "$llama" --tokens @ids --chunk 16 -o mpi:1 -q : \
      -n 1 bash -c 'kv-send mpi:0 -o - -q >pipe'
    kv-verify plain.h5 - --eps 0 -q <pipe >/dev/null || no "through a pipe" ;;
  tokens)
    models=("$llama" gemma3)
    few && models=(gemma3)
    for model in "${models[@]}"; do
      hetero-prefill -m "$model" --tokens @ids -o direct.h5 -q -t 1 --force || no "prefill"
      hetero-decode -m "$model" direct.h5 -n 12 --ignore-eos --json -q -t 1 >whole.json || no "decode"
      hetero-decode -m "$model" direct.h5 -n 12 --ignore-eos -q -t 1 >whole.txt || no "decode"
      for n in $(few && echo 2 || echo 1 2); do
        runs -n $n hetero-prefill --tp $n -m "$model" --tokens @ids --chunk 16 -o mpi:$n -q -t 1 : \
          -n 1 hetero-decode -m "$model" mpi:0 -n 12 --ignore-eos --json -q -t 1
        [ "$(ids out)" = "$(ids whole.json)" ] || no "$n ranks: other tokens"
        # Each rank's own text: mpirun hands on that of several in any order, and through a terminal.
        runs -n $n bash -c '"$@" >text.$OMPI_COMM_WORLD_RANK' - hetero-prefill --tp $n -m "$model" --tokens @ids \
          --chunk 16 --first-token prefill -o mpi:$n -q -t 1 : \
          -n 2 bash -c '"$@" >text.$OMPI_COMM_WORLD_RANK' - hetero-decode --tp 2 -m "$model" mpi:0 -n 11 --ignore-eos -q -t 1
        cat text.0 text.$n | cmp - whole.txt || no "$n ranks, first token by prefill: another text"
      done
    done
    hetero-prefill -m "$llama" --tokens @ids --first-token prefill -o first.h5 --json -q -t 1 >first.json || no "prefill"
    hetero-decode -m "$llama" first.h5 -n 11 --ignore-eos --json -q -t 1 >rest.json || no "decode"
    first=$(tr -d ' \n' <first.json | grep -oE '"first_token":\{"id":[0-9]+' | grep -oE '[0-9]+$')
    hetero-prefill -m "$llama" --tokens @ids -o direct.h5 -q -t 1 --force || no "prefill"
    hetero-decode -m "$llama" direct.h5 -n 12 --ignore-eos --json -q -t 1 >whole.json || no "decode"
    [ "\"token_ids\":[$first,$(ids rest.json | cut -d'[' -f2)" = "$(ids whole.json)" ] || no "other tokens in files" ;;
  reports)
    runs -n 1 hetero-prefill -m "$llama" --tokens @ids --chunk 16 --report p.json --trace p.trace -o mpi:1 -q : \
      -n 1 kv-quantize mpi:0 --dtype int8 --trace q.trace -o mpi:2 -q : \
      -n 1 hetero-decode -m "$llama" mpi:1 -n 5 --ignore-eos --report d.json --trace d.trace -q
    [ "$(field p.json kv_bytes)" -lt "$(field p.json bytes)" ] || no "fewer bytes on the wire than in the state"
    [ "$(field p.json bytes)" -gt "$(field d.json bytes)" ] || no "codes take more bytes on the wire than what they are of"
    awk -v o="$(field p.json overlap)" -v v="$(field p.json visible_ms)" -v t="$(field p.json ms)" \
      'BEGIN { e = 1 - v / t; e = e < 0 ? 0 : e; exit !(v >= 0 && t > 0 && o - e < 1e-6 && e - o < 1e-6) }' ||
      no "the overlap is not 1 - visible / transfer time"
    layers=$(hetero-prefill -m "$llama" --tokens 1 -o x.h5 -q && kv-verify x.h5 --json -q | tr -d ' \n' | grep -oE '"gqa":[0-9]+' | cut -d: -f2)
    for track in p:prefill 'p:send to mpi:1' 'q:receive from mpi:0' q:convert 'q:send to mpi:2' 'd:receive from mpi:1' d:import; do
      n=$(grep -cF "\"name\":\"layer " <(grep -F "\"cat\":\"${track#*:}\"" "${track%%:*}.trace"))
      [ "$n" -eq "$layers" ] || no "$n of $layers layers on track ${track#*:}"
    done
    [ "$(grep -cF '"cat":"decode"' d.trace)" -eq 5 ] || no "not five tokens in the trace" ;;
  killed)  # in the middle; mpirun lets the other one live, which has to find out by itself
    for victim in sender receiver; do
      one='' two=''
      [ $victim = sender ] && one='--fault die=9' || two='--fault die=3'
      job --enable-recovery -n 1 bash -c 'hetero-prefill "$@"; echo $? >sent' - -m "$llama" --tokens @ids --chunk 16 \
        --max-rate 100Ki --timeout 4 -o mpi:1 $one : \
        -n 1 bash -c 'kv-send "$@"; echo $? >received' - mpi:0 -o received.h5 --timeout 4 $two
      [ $victim = sender ] && who='rank 0' dead=sent alive=received || { who='rank 1' dead=received alive=sent; }
      [ "$(cat $dead)" -eq 137 ] || no "the $victim was not killed"
      [ "$(cat $alive)" -eq 5 ] || no "the survivor ended with $(cat $alive)"
      grep -qE "^(hetero-prefill|kv-send): .*$who: (no sign of life|stalled)" err || no "no message of the survivor"
      [ ! -e received.h5 ] || no "there is an output"
      [ "$took" -lt 30 ] || no "it took $took s"
    done
    job -n 1 hetero-prefill -m "$llama" --tokens @ids --chunk 16 -o mpi:1 -q : -n 1 hetero-decode -m gemma3 mpi:0 -q
    [ "$status" -ne 0 ] && grep -q 'rejected the state: the state belongs to another model' err ||
      no "the sender does not say why the state was rejected" ;;
  *) no "no such scenario" ;;
esac
