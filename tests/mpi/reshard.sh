#!/bin/bash
# reshard.sh SCENARIO BIN_DIR MPIRUN TESTDATA: kv-send between ranks that hold shards of a state.
. "$(dirname "$0")/job.bash" || exit 1

refuses() {  # STATUS PATTERN ARGUMENTS; nothing is left behind
  local expected=$1 pattern=$2
  shift 2
  job "$@"
  [ "$status" -eq "$expected" ] || no "status $status instead of $expected: $*"
  grep -qE -- "$pattern" err || no "no '$pattern': $*"
  [ -z "$(ls x.* 2>/dev/null)" ] || no "there is an output: $*"
}
files() { ls "$1".tp*of*.h5 | wc -l; }
send() {  # FROM M N TO: from the files of m ranks, as m ranks, to n ranks and their files
  local from=$1 m=$2 n=$3 to=$4 tp_m=() tp_n=() first=mpi:$2 last=mpi:0
  [ "$m" -eq 1 ] || { tp_m=(--tp "$m"); last=mpi:0-$((m - 1)); }
  [ "$n" -eq 1 ] || { tp_n=(--tp "$n"); first=mpi:$m-$((m + n - 1)); }
  runs -n "$m" kv-send "$from" "${tp_m[@]}" -o "$first" -q : -n "$n" kv-send "$last" "${tp_n[@]}" -o "$to" -q
  [ "$n" -eq 1 ] || [ "$(files "${to%.h5}")" -eq "$n" ] || no "not $n files of $to"
}
model() {  # LAYERS: a state of 4 query and 2 KV heads
  hetero-prefill -m "$testdata/golden/tiny/gguf/llama-f32.gguf" --tokens "$(seq -s, 3 90)" -o a.h5 -q -t 1 || no prefill
}

case $scenario in
  sizes)  # every m and n of 1 to 4 but 1 to 1, from whole files and from those of other numbers of ranks
    model
    for m in $(few && echo 1 3 || echo 1 2 3 4); do
      for n in $(few && echo 2 || echo 1 2 3 4); do
        [ $((m + n)) -gt 2 ] && [ $((m + n)) -le 6 ] || continue
        send a.h5 $m $n r.h5
        same_state a.h5 r.h5
        [ "$n" -eq 1 ] || { send r.h5 $n $m s.h5; same_state a.h5 s.h5; }
        rm -f r.* s.*
      done
    done
    runs -n 3 kv-send a.h5 --tp 3 -o t.h5 -q  # each rank its own heads of a file
    [ "$(files t)" -eq 3 ] || no "not 3 files"
    same_state a.h5 t.h5
    hetero-decode -m "$testdata/golden/tiny/gguf/llama-f32.gguf" t.h5 -n 3 --ignore-eos -q -t 1 >/dev/null || no decode
    ;;
  kinds)  # windows, latents, and quantized states with their scales; no rank gets heads of others
    for kind in windows latent ordinary; do
      kv_lab make $kind f32.h5
      for spec in $(few && echo int4:channel:g2 || echo f32 int8:token:asym int4:channel:g2 had:int8:token); do
        kv-quantize f32.h5 --k $spec --v $spec -o a.h5 -q --force || no "$kind $spec"
        if [ $kind = latent ]; then n=1; else n=2; fi
        send a.h5 1 $n r.h5 2>/dev/null || no "$kind $spec"
        same_state a.h5 r.h5
        [ $n -eq 1 ] || { send r.h5 2 1 s.h5; same_state a.h5 s.h5; }
        rm -f r.* s.*
      done
    done ;;
  convert)  # each sender quantizes its heads, each receiver decodes its own
    model
    runs -n 2 kv-send a.h5 --tp 2 --wire-dtype int8 -o mpi:2-3 -q : -n 2 kv-send mpi:0-1 --tp 2 --dtype f32 -o r.h5 -q
    kv-quantize a.h5 --dtype int8 -o - -q | kv-quantize - --dtype f32 -o expected.h5 -q || no quantize
    same_state expected.h5 r.h5
    runs -n 2 kv-send a.h5 --tp 2 -o mpi:2-4 --json : -n 3 bash -c 'exec kv-send mpi:0-1 --tp 3 -o f.h5 -q'
    [ "$(grep -c '"tool"' out)" -eq 1 ] || no "not one document"
    same_state a.h5 f.h5 ;;
  refused)
    model
    kv-quantize a.h5 --dtype int8 --axis tensor -o t.h5 -q
    refuses 3 "layer 0, K: a scale that all heads share" \
      -n 2 kv-send t.h5 --tp 2 -o mpi:2-3 : -n 2 kv-send mpi:0-1 --tp 2 -o x.h5
    refuses 2 "5 ranks cannot divide the model's 4 attention heads" \
      -n 5 kv-send a.h5 --tp 5 -o x.h5
    refuses 2 "rank 0 writes mpi:2-3, but the ranks there that hold one state together .* are mpi:2-4" \
      -n 2 kv-send a.h5 --tp 2 -o mpi:2-3 : -n 3 kv-send mpi:0-1 --tp 3 -o x.h5
    refuses 2 "does not know the heads" \
      -n 1 kv-send a.h5 -o mpi:1 : -n 1 kv-send mpi:0 -o mpi:2-3 : -n 2 kv-send mpi:1 --tp 2 -o x.h5
    kv-send a.h5 --split 2 -o there.h5 -q
    refuses 3 "there.tp[01]of2.h5: exists already" \
      -n 1 kv-send a.h5 -o mpi:1-2 : -n 2 kv-send mpi:0 --tp 2 -o there.h5
    # Two states that are not one.
    hetero-prefill -m "$testdata/golden/tiny/gguf/llama-f32.gguf" --tokens "$(seq -s, 4 91)" -o b.h5 -q -t 1 || no prefill
    refuses 3 "are not shards of one state: tokens\[0\] of sequence 0" \
      -n 2 bash -c 'mkdir -p $OMPI_COMM_WORLD_RANK && cd $OMPI_COMM_WORLD_RANK && cp ../$([ $OMPI_COMM_WORLD_RANK -eq 1 ] && echo b || echo a).h5 in.h5 &&
        exec kv-send in.h5 --tp 2 -o mpi:2' : -n 1 kv-send mpi:0-1 -o x.h5 ;;
  killed)  # any rank: the others end by themselves with a message, and no file is there
    model
    for victim in 0 1 2 3 4; do
      # Slowed down, so that the kill is in the middle: all receivers have an unfinished output.
      { for ((i = 0; i < 300; ++i)); do [ "$(ls -A | grep -c '^\.x\.')" -ge 3 ] && break; sleep 0.1; done
        kill -KILL "$(cat pid.$victim)"; } &
      job --enable-recovery -n 2 bash -c '"$@" & echo $! >pid.$OMPI_COMM_WORLD_RANK; wait $!
          echo $? >code.$OMPI_COMM_WORLD_RANK' _ kv-send a.h5 --tp 2 -o mpi:2-4 --max-rate 4K --timeout 4 : \
        -n 3 bash -c '"$@" & echo $! >pid.$OMPI_COMM_WORLD_RANK; wait $!
          echo $? >code.$OMPI_COMM_WORLD_RANK' _ kv-send mpi:0-1 --tp 3 -o x.h5 --timeout 4
      wait
      for rank in 0 1 2 3 4; do
        [ $rank -ne $victim ] || continue
        [ "$(cat code.$rank)" -eq 5 ] || no "victim $victim: status $(cat code.$rank) of rank $rank"
      done
      grep -q "rank $victim" err || no "rank $victim is not named"
      [ -z "$(ls x.* 2>/dev/null)" ] || no "victim $victim: there is an output"
      rm -f pid.*
    done ;;
  *) no "no scenario $scenario" ;;
esac
echo "$scenario: passed"
