#!/usr/bin/env bats
# With --redact no output of any tool tells a prompt or what followed it.
load helper

secret=XYLOPHONE

# silent FILE...: none of them has the secret, in words or as the ids of the prompt.
silent() {
  local file ids
  for file in "$@"; do
    if grep -qi "$secret" "$file"; then
      echo "$file has the text"
      grep -i "$secret" "$file"
      return 1
    fi
    for ids in $(cat ids); do
      if tr -d ' \n' <"$file" | grep -q "$ids"; then
        echo "$file has the ids $ids"
        return 1
      fi
    done
  done
}

states() {
  printf 'The %s is loud. The %s is red.' "$secret" "$secret" >prompt
  echo "$(token_ids -m "$tiny" -f prompt)" >ids
  hetero-prefill -m "$tiny" -f prompt -o a.h5 -q
  echo "$(hetero-decode -m "$tiny" a.h5 -n 12 --ignore-eos --json -q | json_list token_ids)" >>ids
  [ "$(grep -c ,.*, ids)" -eq 2 ]
}

# says STATUS COMMAND...: without --redact its outputs tell the secret, with it they do not.
says() {
  local expected=$1
  shift
  run "$@"
  [ "$status" -eq "$expected" ] || { echo "status $status: $output"; return 1; }
  grep -qi "$secret" <<<"$output" || { echo "does not tell anyway: $output"; return 1; }
  run "$@" --redact
  [ "$status" -eq "$expected" ] || { echo "status $status: $output"; return 1; }
  echo "$output" >told
  silent told
}

@test "reports and notes have counts and lengths, no texts and no ids" {
  states
  hetero-prefill -m "$tiny" -f prompt -o b.h5 --redact -v --json >prefill 2>prefill.err
  hetero-prefill -m "$tiny" -p "$(cat prompt)" --dry-run --redact -v --json >dry 2>dry.err
  [ "$(json_value token_ids <prefill)" = null ]
  [ "$(json_value n_tokens <prefill)" -gt 4 ]
  hetero-decode -m "$tiny" a.h5 -f prompt -n 12 --ignore-eos --redact -v --json -o c.h5 >decode 2>decode.err
  [ "$(json_value token_ids <decode)" = null ]
  [ "$(json_value text <decode)" = null ]
  [ "$(json_value text_bytes <decode)" -gt 0 ]
  kv-quantize a.h5 --dtype int4 -o q.h5 --redact -v --json >quantize 2>quantize.err
  kv-quantize a.h5 --inspect --redact -v >inspect 2>inspect.err
  kv-send a.h5 -o s.h5 --redact -v --json --report send.report >send 2>send.err
  kv-verify a.h5 --redact -v --json >alone 2>alone.err
  kv-verify a.h5 q.h5 -m "$tiny" --text prompt --steps 6 --epsilon 1 --redact -v --csv steps.csv --junit j.xml >verify 2>verify.err
  kv-verify a.h5 q.h5 -m "$tiny" --text prompt --steps 6 --epsilon 1 --redact --json >verify.json 2>>verify.err
  silent prefill dry decode quantize inspect send send.report alone verify steps.csv j.xml verify.json ./*.err
  # each step of the text has its line, without the token and its text
  [ "$(grep -c '^step,' steps.csv)" -eq 6 ]
  [ "$(awk -F, '/^step,/ && $8 == "" && $NF == "(redacted)"' steps.csv | wc -l)" -eq 6 ]
  ! grep -q '"token": [0-9]*,$' <(grep -A 3 '"step":' verify.json)
  # The text itself is the result of a decode, not a report of it.
  [ "$(hetero-decode -m "$tiny" a.h5 -n 12 --ignore-eos --redact -q)" = "$(hetero-decode -m "$tiny" a.h5 -n 12 --ignore-eos -q)" ]
}

@test "what is wrong with a prompt is said without quoting it" {
  states
  says 2 hetero-prefill -m "$tiny" -p The "$secret" -o x.h5
  says 2 hetero-prefill -m "$tiny" "--$secret=1" -o x.h5
  says 2 hetero-prefill -m "$tiny" --tokens "1,$secret" -o x.h5
  printf '{"prompt": "the %s}\n' "$secret" >bad.jsonl
  says 3 hetero-prefill -m "$tiny" --jsonl bad.jsonl -o x.h5
  printf '{"%s": "a"}\n' "$secret" >key.jsonl
  says 3 hetero-prefill -m "$tiny" --jsonl key.jsonl -o x.h5
  printf '{"tokens": ["%s"]}\n' "$secret" >tokens.jsonl
  says 3 hetero-prefill -m "$tiny" --jsonl tokens.jsonl -o x.h5
  refuses 3 'token \(redacted\), the prompt has \(redacted\)' \
    hetero-decode -m "$tiny" a.h5 -p "another $secret" -n 1 --redact
  refuses 3 'token \(redacted\) there, \(redacted\) in the prompt' \
    hetero-prefill -m "$tiny" --prefix a.h5 -p "another $secret" -o x.h5 --redact
  hetero-prefill -m "$tiny" --tokens 1,2,3,4 -o one.h5 -q
  hetero-prefill -m "$tiny" --tokens 1,2,9,4 -o other.h5 -q
  run --separate-stderr kv-verify one.h5 other.h5 --epsilon 9 --redact
  [ "$status" -eq 1 ]
  [[ $stderr == *'tokens[2]: (redacted) in A, (redacted) in B'* ]]
  # a site can ask for it once and for all
  HETERO_REDACT=1 refuses 2 'an argument of 9 bytes that no option takes' hetero-prefill -m "$tiny" -p The "$secret" -o x.h5
  [ ! -e x.h5 ]
}
