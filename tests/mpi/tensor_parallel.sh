#!/bin/bash
# tensor_parallel.sh SCENARIO BIN_DIR MPIRUN TESTDATA: runs the tools with --tp under mpirun and checks what they give.
. "$(dirname "$0")/job.bash" || exit 1
llama=$testdata/golden/tiny/gguf/llama-f32.gguf
prompt=5,17,301,44,8,90,411,33,2,250,77
make_gemma3

refuses() {  # STATUS PATTERN ARGUMENTS: one line of ours, and nothing left behind
  local expected=$1 pattern=$2
  shift 2
  job "$@"
  [ "$(grep -cE '^(hetero|kv)-' err)" -eq 1 ] || no "not one line: $*"
  grep -qE -- "$pattern" err || no "no '$pattern': $*"
  [ "$status" -eq "$expected" ] || no "status $status instead of $expected: $*"
  [ ! -e new.h5 ] || no "there is an output: $*"
}
# one_more.sh RANK ARGUMENT COMMAND: that rank gets one more argument.
cat >one_more.sh <<'END'
#!/bin/bash
rank=$1 more=$2
shift 2
if [ "$OMPI_COMM_WORLD_RANK" -eq "$rank" ]; then exec "$@" $more; else exec "$@"; fi
END
chmod +x one_more.sh

bytes() { grep -m 1 '"kv_bytes"' "$1" | tr -dc 0-9; }

counts=$(few && echo 2 || echo 1 2 4)
compute() {  # MODEL: states and tokens of every number of ranks
  local model=$1 n m
  hetero-prefill -m "$model" --tokens $prompt -o 1.h5 -q -t 1 || no "prefill"
  hetero-decode -m "$model" 1.h5 -n 24 --ignore-eos --json -q -t 1 -o 1c.h5 --force >1.json || no "decode"
  for n in $counts; do
    runs -n $n hetero-prefill --tp $n -m "$model" --tokens $prompt -o $n.h5 -q -t 1 --force
    same_state 1.h5 $n.h5
  done
  for n in $counts; do
    for m in $counts; do
      runs -n $m hetero-decode --tp $m -m "$model" $n.h5 -n 24 --ignore-eos --json -q -t 1 -o c.h5 --force
      [ "$(ids out)" = "$(ids 1.json)" ] || no "state of $n ranks, $m decode: other tokens"
      same_state 1c.h5 c.h5
    done
  done
}


case $scenario in
  llama) compute "$llama" ;;
  gemma3) compute gemma3 ;;
  carriers)
    hetero-prefill -m gemma3 --tokens $prompt -o 1.h5 -q -t 1 || no "prefill"
    hetero-decode -m gemma3 1.h5 -n 24 --ignore-eos --json -q -t 1 >1.json || no "decode"
    for n in $(few && echo 3 || echo 1 2 3); do
      timeout $limit_s "$mpirun" --oversubscribe -n $n hetero-decode --tp $n -m gemma3 - -n 24 --ignore-eos --json -q -t 1 \
        <1.h5 >out 2>err || no "pipe to $n ranks"
      [ "$(ids out)" = "$(ids 1.json)" ] || no "pipe to $n ranks: other tokens"
      for m in $counts; do
        runs -n $n hetero-prefill --tp $n -m gemma3 --tokens $prompt -o mpi:$n -q -t 1 : \
          -n $m hetero-decode --tp $m -m gemma3 mpi:0 -n 24 --ignore-eos --json -q -t 1
        [ "$(ids out)" = "$(ids 1.json)" ] || no "$n ranks to $m: other tokens"
      done
    done
    runs -n 2 hetero-prefill --tp 2 -m gemma3 --tokens $prompt -o mpi:2 -q -t 1 : \
      -n 1 kv-send mpi:0 -o mpi:3 -q : -n 2 hetero-decode --tp 2 -m gemma3 mpi:2 -n 24 --ignore-eos --json -q -t 1
    [ "$(ids out)" = "$(ids 1.json)" ] || no "through kv-send: other tokens" ;;
  shards)  # one file per rank; read by other numbers of ranks, and by one
    models=("$llama" gemma3 "$testdata/golden/tiny/gpt_neox/bf16")
    few && models=(gemma3)
    for model in "${models[@]}"; do
      rm -f ./*.h5
      hetero-prefill -m "$model" --tokens $prompt -o 1.h5 -q -t 1 || no "prefill"
      for n in $(few && echo 2 3 || echo 2 3 4); do
        runs -n $n hetero-prefill --tp $n --shards -m "$model" --tokens $prompt -o s$n.h5 -q -t 1
        [ "$(ls s$n.*)" = "$(for ((r = 0; r < n; ++r)); do echo s$n.tp${r}of$n.h5; done)" ] || no "not the files of $n shards"
        same_state 1.h5 s$n.h5
        [ -e "$model/config.json" ] && [ "$model" != gemma3 ] && continue  # no tokenizer
        hetero-decode -m "$model" 1.h5 -n 12 --ignore-eos --json -q -t 1 -o 1c.h5 --force >1.json || no "decode"
        for m in $counts; do
          runs -n $m hetero-decode --tp $m -m "$model" s$n.h5 -n 12 --ignore-eos --json -q -t 1
          [ "$(ids out)" = "$(ids 1.json)" ] || no "$n shards, $m decode: other tokens"
          [ "$model" != "$llama" ] || [ $((m * $(bytes out))) -le "$(bytes 1.json)" ] || [ "$m" -gt 2 ] ||
            no "$n shards: a rank of $m read more heads than its own"
        done
        runs -n 2 hetero-decode --tp 2 --shards -m "$model" s$n.h5 -n 12 --ignore-eos -q -t 1 -o c$n.h5
        same_state 1c.h5 c$n.h5
      done
    done
    # One shard is damaged: only its rank reads it, and no rank has said anything.
    rm -f s2.*
    runs -n 2 hetero-prefill --tp 2 --shards -m "$llama" --tokens $prompt -o s2.h5 -q -t 1
    cp s2.tp1of2.h5 whole
    for ((at = 4096; at < $(stat -c %s whole); at += 64)); do
      cp whole s2.tp1of2.h5
      printf '\xa5\x5a' | dd of=s2.tp1of2.h5 bs=1 seek=$at conv=notrunc status=none
      kv-verify s2.h5 2>&1 | grep -q '/[kv] is damaged' && break
    done
    refuses 3 "s2.tp1of2.h5: .*/[kv] is damaged" -n 2 hetero-decode --tp 2 -m "$llama" s2.h5 -n 12 --ignore-eos -q -t 1
    [ ! -s out ] || no "text of a state that is damaged"
    mv whole s2.tp1of2.h5
    refuses 2 "--shards: - cannot be divided" -n 2 bash -c 'exec hetero-prefill --tp 2 --shards -m "$1" --tokens 5,6 -o - > >(cat)' _ "$llama"
    refuses 3 "1.h5: is there, and would be read instead" -n 2 hetero-prefill --tp 2 --shards -m "$llama" --tokens 5,6 -o 1.h5
    refuses 3 "s2.tp1of2.h5: exists already" -n 2 bash -c 'rm -f s2.tp0of2.h5; exec "$@"' _ \
      hetero-prefill --tp 2 --shards -m "$llama" --tokens 5,6 -o s2.h5 ;;
  shards_to_ranks)  # each rank sends its own heads while it computes, to one rank and to several
    hetero-prefill -m "$llama" --tokens $prompt -o 1.h5 -q -t 1 || no "prefill"
    hetero-decode -m "$llama" 1.h5 -n 12 --ignore-eos --json -q -t 1 >1.json || no "decode"
    for n in $(few && echo 2 || echo 2 3); do
      prefill=(-n "$n" hetero-prefill --tp "$n" --shards -m "$llama" --tokens $prompt -q -t 1)
      runs "${prefill[@]}" -o mpi:$n : -n 1 kv-send mpi:0-$((n - 1)) -o whole$n.h5 -q
      same_state 1.h5 whole$n.h5
      runs "${prefill[@]}" -o mpi:$n-$((n + 1)) : -n 2 kv-send --tp 2 mpi:0-$((n - 1)) -o s$n.h5 -q
      same_state 1.h5 s$n.h5
      runs "${prefill[@]}" -o mpi:$n : -n 1 hetero-decode -m "$llama" mpi:0-$((n - 1)) -n 12 --ignore-eos --json -q -t 1
      [ "$(ids out)" = "$(ids 1.json)" ] || no "$n ranks to a decoder: other tokens"
    done
    refuses 2 "mpi:0-1 is to write mpi:2, but rank 2 reads mpi:0" -n 2 hetero-prefill --tp 2 --shards -m "$llama" --tokens 5,6 -o mpi:2 : \
      -n 1 bash -c 'exec hetero-decode -m "$1" mpi:0 2>/dev/null' _ "$llama" ;;
  families)  # experts and latents; what the unit tests do with threads
    for model in $(few && echo mixtral deepseek_v2 || echo mixtral qwen3_moe deepseek_v2 deepseek_v3 gemma2 phi3); do
      model=$testdata/golden/tiny/$model/bf16
      hetero-prefill -m "$model" --tokens $prompt -o 1.h5 -q -t 1 --force --logits all --logits-out 1.npy || no "prefill"
      for n in $(few && echo 3 || echo 2 3 4); do
        runs -n $n hetero-prefill --tp $n -m "$model" --tokens $prompt -o $n.h5 -q -t 1 --force --logits all --logits-out $n.npy
        same_state 1.h5 $n.h5
        cmp 1.npy $n.npy || no "$model: other logits of $n ranks"
      done
    done ;;
  first_speaks)  # one document, one text, one report, and stdin to the first rank
    echo hello | timeout $limit_s "$mpirun" --oversubscribe -n 2 hetero-prefill --tp 2 -m "$llama" -f - -o 2.h5 -t 1 --json >out 2>err ||
      no "prefill from stdin"
    [ "$(grep -c '"tool"' out)" -eq 1 ] || no "not one document"
    grep -q '"ranks": 2' out || no "no ranks in the report"
    echo hello | hetero-prefill -m "$llama" -f - -o 1.h5 -q -t 1 || no "prefill"
    same_state 1.h5 2.h5
    hetero-decode -m "$llama" 1.h5 -n 12 -q -t 1 >1.txt
    runs -n 2 hetero-decode --tp 2 -m "$llama" 1.h5 -n 12 -q -t 1
    echo >>1.txt  # mpirun's stdout is a terminal to the ranks
    cmp -s 1.txt out || no "other text"
    hetero-prefill -m "$llama" --tokens $prompt -o 1.h5 --force --logits all --logits-out 1.npy -q -t 1
    runs -n 4 hetero-prefill --tp 4 -m "$llama" --tokens $prompt -o 4.h5 --logits all --logits-out 4.npy -q -t 1
    cmp 1.npy 4.npy || no "other logits"
    printf 'The quick brown fox jumps over the lazy dog.\n' >text
    hetero-prefill -m "$llama" --score text -q -t 1 >1.txt
    runs -n 2 hetero-prefill --tp 2 -m "$llama" --score text -q -t 1
    cmp 1.txt out || no "other perplexity" ;;
  several_sequences)
    printf '{"id":"a","tokens":[5,6,7]}\n{"id":"b","tokens":[9,8,7,6,5]}\n' >prompts
    hetero-prefill -m "$llama" --jsonl prompts -o 1.h5 -q -t 1 || no "prefill"
    hetero-decode -m "$llama" 1.h5 -n 9 --json -q -t 1 -o 1c.h5 >1.json || no "decode"
    runs -n 2 hetero-prefill --tp 2 -m "$llama" --jsonl prompts -o 2.h5 -q -t 1
    same_state 1.h5 2.h5
    runs -n 3 hetero-decode --tp 3 -m "$llama" 2.h5 -n 9 --json -q -t 1 -o 3c.h5
    [ "$(ids out)" = "$(ids 1.json)" ] || no "other tokens"
    same_state 1c.h5 3c.h5
    hetero-prefill -m "$llama" --tokens 5,6,7 -o pre.h5 -q -t 1
    hetero-prefill -m "$llama" --tokens 5,6,7,8 --prefix pre.h5 -o 1p.h5 -q -t 1 || no "prefix"
    runs -n 2 hetero-prefill --tp 2 -m "$llama" --tokens 5,6,7,8 --prefix pre.h5 -o 2p.h5 -q -t 1
    same_state 1p.h5 2p.h5 ;;
  one_rank)  # needs no MPI
    runs -n 1 hetero-prefill --tp 1 -m "$llama" --tokens $prompt -o 1.h5 -q
    hetero-prefill --tp 1 -m "$llama" --tokens $prompt -o 2.h5 -q || no "without mpirun"
    same_state 1.h5 2.h5
    env -u OMPI_COMM_WORLD_SIZE -u PMIX_RANK -u PMI_RANK hetero-prefill --tp 2 -m "$llama" --tokens $prompt -o new.h5 2>err
    [ $? -eq 2 ] && grep -q -- "--tp 2: this process was not started by mpirun" err || no "two ranks without mpirun" ;;
  wrong_size)
    refuses 2 "--tp 2 needs 2 ranks, but this part of the job has 3 .*mpirun -n 2" \
      -n 3 hetero-prefill --tp 2 -m "$llama" --tokens $prompt -o new.h5
    refuses 2 "5 ranks cannot divide the model's 4 attention heads" \
      -n 5 hetero-prefill --tp 5 -m "$llama" --tokens $prompt -o new.h5
    refuses 2 "rank 1 has --tp 3, but rank 0 of the same part of the job has --tp 2" \
      -n 2 ./one_more.sh 1 "--tp 3" bash -c 'set -- hetero-prefill -m "$1" --tokens 5,6 -o new.h5 "${@:2}"
        [ $# -gt 7 ] || set -- "$@" --tp 2; exec "$@"' _ "$llama" ;;
  mixed)
    refuses 2 "rank 1 of it has --chunk 7, the first --chunk 512" \
      -n 2 ./one_more.sh 1 "--chunk 7" hetero-prefill --tp 2 -m "$llama" --tokens $prompt -o new.h5
    refuses 2 "rank 1 of it has HETERO_BACKEND scalar, the first HETERO_BACKEND avx2" \
      -n 2 bash -c 'b=avx2; [ $OMPI_COMM_WORLD_RANK -ne 1 ] || b=scalar
        HETERO_BACKEND=$b exec hetero-prefill --tp 2 -m "$1" --tokens 5,6 -o new.h5' _ "$llama"
    refuses 3 "rank 2 of the group finds another model here" \
      -n 3 bash -c 'm=llama-f32; [ $OMPI_COMM_WORLD_RANK -ne 2 ] || m=llama-q8_0
        exec hetero-prefill --tp 3 -m "$1/$m.gguf" --tokens 5,6 -o new.h5' _ "$testdata/golden/tiny/gguf"
    hetero-prefill -m "$llama" --tokens 5,6 -o 1.h5 -q && hetero-prefill -m "$llama" --tokens 5,7 -o other.h5 -q
    refuses 3 "rank 1 of the group finds another state here" \
      -n 2 bash -c 'mkdir -p $OMPI_COMM_WORLD_RANK && cd $OMPI_COMM_WORLD_RANK && cp ../$([ $OMPI_COMM_WORLD_RANK -eq 1 ] && echo other || echo 1).h5 in.h5 &&
        exec hetero-decode --tp 2 -m "$1" in.h5' _ "$llama" ;;
  errors)  # shown once, with the status of the rank that has it
    refuses 3 "nowhere.gguf" -n 3 hetero-prefill --tp 3 -m nowhere.gguf --tokens 5,6 -o new.h5
    touch there.h5
    refuses 3 "there.h5: exists already" -n 2 hetero-prefill --tp 2 -m "$llama" --tokens 5,6 -o there.h5
    refuses 3 "stdin: empty" -n 2 hetero-decode --tp 2 -m "$llama" -
    job -n 2 hetero-prefill --tp 2 -m "$llama" --tokens 5,6 -o mpi:3 : -n 2 hetero-decode --tp 2 -m "$llama" mpi:0
    [ "$status" -eq 2 ] || no "status $status"
    for tool in prefill decode; do  # once in each part
      [ "$(grep -c "^hetero-$tool: rank 0 writes mpi:3, which computes with others: name their first, mpi:2" err)" -eq 1 ] ||
        no "hetero-$tool"
    done ;;
  killed | stopped)  # the others notice by themselves, within --timeout, and end with status 5
    seq 1 40000 >long
    signal=KILL
    [ "$scenario" = killed ] || signal=STOP
    for victim in 0 2; do
      rm -f pid.*
      { for ((i = 0; i < 300; ++i)); do [ -s pid.$victim ] && break; sleep 0.1; done
        sleep 1.5; kill -$signal "$(cat pid.$victim)"; date +%s >when
        for ((i = 0; i < 120; ++i)); do [ "$(cat code.* 2>/dev/null | wc -l)" -ge 2 ] && break; sleep 0.1; done
        kill -KILL "$(cat pid.$victim)" 2>/dev/null; } &
      # A prefill of single tokens over and over takes longer than this test.
      job --enable-recovery -n 3 bash -c '"$@" & echo $! >pid.$OMPI_COMM_WORLD_RANK; wait $!
        echo "$? $(date +%s)" >code.$OMPI_COMM_WORLD_RANK' _ \
        hetero-prefill --tp 3 -m "$llama" --score long --chunk 1 -t 1 --timeout 4
      wait
      for rank in 0 1 2; do
        [ $rank -ne $victim ] || continue
        read -r code ended <code.$rank
        [ "$code" -eq 5 ] || no "status $code of rank $rank"
        [ $((ended - $(cat when))) -le 20 ] || no "rank $rank took $((ended - $(cat when))) s"
      done
      [ "$(grep -c '^hetero' err)" -eq 1 ] || no "not one line of rank $victim"
      grep -q "rank $victim: no sign of life" err || no "rank $victim is not named"
    done ;;
  *) no "no scenario $scenario" ;;
esac
echo "$scenario: passed"
