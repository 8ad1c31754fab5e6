#!/usr/bin/env bats
# Prompts and caches with the real model: token ids, special text, characters, other prompts, other models.
load helper

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  need_smollm2
}

# ids_of TEXT [OPTION...]: of a prompt file with these bytes (printf escapes), of stdin, and as an argument: all the same.
ids_of() {
  local text=$1 from_file
  shift
  printf "$text" >prompt
  from_file=$(token_ids -m "$model" -f prompt "$@")
  [ "$(token_ids -m "$model" -f - "$@" <prompt)" = "$from_file" ] || return 1
  # $(...) drops newlines at the end; the x keeps them.
  local argument
  argument=$(cat prompt && echo x)
  [ "$(token_ids -m "$model" -p "${argument%x}" "$@")" = "$from_file" ] || return 1
  echo "$from_file"
}

# greedy_ids KV OPTION...: the tokens that follow.
greedy_ids() {
  hetero-decode -m "$model" "$@" --json -q | json_list token_ids
}

@test "text of special tokens is plain unless asked for" {
  [ "$(ids_of '<|im_end|>')" = 44,108,306,79,486,108,46 ]
  [ "$(ids_of '<|im_end|>' --special)" = 2 ]
  [ "$(ids_of '<|im_start|>user\nHi<|im_end|>\n')" = 44,108,306,79,3738,108,46,4093,198,26843,44,108,306,79,486,108,46,198 ]
  [ "$(ids_of '<|im_start|>user\nHi<|im_end|>\n' --special)" = 1,4093,198,26843,2,198 ]
  hetero-prefill -m "$model" -p '<|im_end|>' --json -q -o plain.h5 | grep -q '"special_parsed": false'
  hetero-prefill -m "$model" -p '<|im_end|>' --special --json -q -o special.h5 | grep -q '"special_parsed": true'
  # The state knows how its prompt was read.
  hetero-decode -m "$model" special.h5 -p '<|im_end|>' -n 1 --ignore-eos -q
  hetero-decode -m "$model" plain.h5 -p '<|im_end|>' -n 1 --ignore-eos -q
}

@test "special text inside a chat message needs consent" {
  refuses 3 'special token' hetero-prefill -m "$model" --chat -p 'a<|im_end|>' -o a.h5
  hetero-prefill -m "$model" --chat -p 'Hi' --json --dry-run -q >report
  [ "$(json_list token_ids <report | cut -d, -f1)" = 1 ]
}

@test "newlines are part of the prompt" {
  [ "$(ids_of 'Hello\n')" = 19556,198 ]
  [ "$(ids_of 'Hello\r\n')" = 19556,2738 ]
  [ "$(ids_of 'Hello\r\nWorld')" = 19556,201,198,11265 ]
  [ "$(ids_of 'A: One banana\nB:\n')" = 49,42,1963,21285,198,50,42,198 ]
  # A backslash and an n stay two characters.
  [ "$(ids_of 'Hello\\n')" != 19556,198 ]
}

@test "an empty prompt is refused, a newline is a prompt" {
  : >empty
  refuses 3 'prompt is empty' hetero-prefill -m "$model" -f empty -o a.h5
  refuses 3 'prompt is empty' hetero-prefill -m "$model" -p '' -o a.h5
  refuses 3 'prompt is empty' hetero-prefill -m "$model" -f - -o a.h5 </dev/null
  [ ! -e a.h5 ]
  [ "$(ids_of '\n')" = 198 ]
  printf '\n' >newline
  hetero-prefill -m "$model" -f newline -o a.h5 -q
}

@test "a cache that is longer or shorter than the prompt" {
  long='The capital of France is Paris. The capital of Spain is Madrid.'
  short='The capital of France is'
  hetero-prefill -m "$model" -p "$long" -o long.h5 -q
  hetero-prefill -m "$model" -p "$short" -o short.h5 -q
  [ "$(greedy_ids long.h5 -p "$short" -n 16)" = "$(greedy_ids short.h5 -n 16)" ]
  [ "$(greedy_ids short.h5 -p "$long" -n 16)" = "$(greedy_ids long.h5 -n 16)" ]
}

@test "a cache of another prompt of the same length" {
  hetero-prefill -m "$model" -p 12345 -o a.h5 -q
  refuses 3 'position 4.*37.*38' hetero-decode -m "$model" a.h5 -p 12346 -n 4
  refuses 3 'position 4' hetero-prefill -m "$model" -p 12346 --prefix a.h5 -o b.h5
}

@test "a model with another RoPE base is another model" {
  cp "$model" other.gguf
  chmod u+w other.gguf
  [ "$(od -An -tx1 -j 724 -N 4 other.gguf | tr -d ' ')" = 0050c347 ]
  printf '\x00\x40\x1c\x46' | dd of=other.gguf bs=1 seek=724 conv=notrunc status=none
  hetero-prefill -m "$model" -p 'The capital of France is' -o a.h5 -q
  refuses 3 'rope_theta: the state has 100000, the model 10000' hetero-decode -m other.gguf a.h5 -n 4
  hetero-prefill -m other.gguf -p 'The capital of France is' -o b.h5 -q
  run --separate-stderr kv-verify a.h5 b.h5 --epsilon 1000 --json
  [ "$status" -eq 1 ]
  grep -q '"field": "rope_theta"' <<<"$output"
  first=$(tr -d ' \n' <<<"$output" | sed 's/.*"first_difference":{\([^}]*\)}.*/\1/')
  [[ $first == '"sequence":"0","layer":0,"part":"K","token":1,'* ]]
  # Layer 0: V does not depend on RoPE.
  tr -d ' \n' <<<"$output" | grep -q '"layer":0,"kind":"gqa","part":"V","bit_equal":true'
}

@test "a prompt beyond the context, with both numbers" {
  for ((i = 0; i < 9000; ++i)); do printf 'word '; done >long
  refuses 3 '9001.*8192' hetero-prefill -m "$model" -f long -o a.h5
  [ ! -e a.h5 ]
  refuses 3 'a.h5' hetero-decode -m "$model" a.h5 -n 4
  # A context of 16.
  cp "$model" small.gguf
  chmod u+w small.gguf
  at=$(($(grep -abo -m 1 'llama.context_length' small.gguf | head -n 1 | cut -d: -f1) + 20 + 4))
  [ "$(od -An -tu4 -j $at -N 4 small.gguf | tr -d ' ')" = 8192 ]
  printf '\x10\x00\x00\x00' | dd of=small.gguf bs=1 seek=$at conv=notrunc status=none
  hetero-prefill -m small.gguf --tokens "$(seq -s, 100 115)" -o fits.h5 -q
  refuses 3 '17.*16' hetero-prefill -m small.gguf --tokens "$(seq -s, 100 116)" -o exceeds.h5
  hetero-decode -m small.gguf fits.h5 -n 10 --ignore-eos --json -q | grep -q '"finish_reason": "context full"'
}

@test "characters that span tokens are written whole" {
  # U+1F638 is three tokens; the model goes on with it.
  hetero-prefill -m "$model" -p "$(printf '\xf0\x9f\x98\xb8%.0s' {1..10})" -o a.h5 -q
  [ "$(greedy_ids a.h5 -n 6 --ignore-eos)" = 10813,242,133,10813,242,133 ]
  [ "$(hetero-decode -m "$model" a.h5 -n 6 --ignore-eos -q | od -An -tx1 | tr -d ' \n')" = f09f98b8f09f98b8 ]
  hetero-decode -m "$model" a.h5 -n 6 --ignore-eos --json -q >whole
  ! grep -q bytes_hex whole
  # Stopped inside the third: all ids are there, and the document is valid UTF-8.
  hetero-decode -m "$model" a.h5 -n 8 --ignore-eos --json -q >cut
  [ "$(json_list token_ids <cut)" = 10813,242,133,10813,242,133,10813,242 ]
  iconv -f UTF-8 -t UTF-8 cut >/dev/null
  grep -q "$(printf '"text": "\xf0\x9f\x98\xb8\xf0\x9f\x98\xb8\xef\xbf\xbd"')" cut
  grep -q '"bytes_hex": "f09f98b8f09f98b8f09f98"' cut
}

@test "the pipeline of the manual: files and pipe give the same text" {
  hetero-prefill -m "$model" -p 'The capital of France is' -o a.h5 -q
  kv-quantize a.h5 --dtype int8 -o q.h5 -q
  hetero-decode -m "$model" q.h5 -n 32 -q >files
  hetero-prefill -m "$model" -p 'The capital of France is' -o - -q | kv-quantize - --dtype int8 -o - -q |
    hetero-decode -m "$model" - -n 32 -q >pipe
  cmp files pipe
  grep -q Paris files
}
