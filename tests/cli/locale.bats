#!/usr/bin/env bats
# A locale with a decimal comma has no influence.
load helper

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  command -v localedef >/dev/null || skip "localedef is not installed"
  mkdir locales
  localedef -i de_DE -f UTF-8 locales/de_DE.UTF-8 2>/dev/null || skip "the German locale cannot be made here"
  export LOCPATH=$PWD/locales
  # libp11-kit, which HDF5 pulls in, calls newlocale() when it is loaded; glibc then keeps the parsed LOCPATH for good.
  echo 'leak:__argz_add_sep' >leaks
  export LSAN_OPTIONS=suppressions=$PWD/leaks:print_suppressions=0
  [ "$(LC_ALL=de_DE.UTF-8 locale decimal_point)" = , ] || skip "the German locale does not work here"
}

# same COMMAND...: the same bytes and status under both locales, but for times, rates and what the kernel counts.
same() {
  local locale code
  for locale in C de_DE.UTF-8; do
    code=0
    LC_ALL=$locale "$@" >"out.$locale" 2>"err.$locale" || code=$?
    echo "status $code" >>"out.$locale"
    sed -Ei '/"itl_ms"/,/\]/d; s/"[a-z_0-9]*(_ms|_s|seconds|_rss_bytes|anonymous_bytes|file_backed_bytes)": .*/TIME/; s/[0-9.]+ (ms|s|GB\/s|tokens\/s)\b/TIME/g' \
      "out.$locale" "err.$locale"
  done
  cmp out.C out.de_DE.UTF-8 && cmp err.C err.de_DE.UTF-8
}

@test "the same output under a decimal comma" {
  hetero-prefill -m "$tiny" -p 'The quick brown fox' -o a.h5 -q
  kv-quantize a.h5 --dtype int8 -o q.h5 -q
  same kv-verify a.h5 q.h5 --epsilon 0.01 -v
  same kv-verify a.h5 q.h5 --epsilon 0.01 --json
  same kv-verify a.h5 q.h5 -m "$tiny" --steps 8 --epsilon 0.5 --json
  same kv-quantize a.h5 --dtype int8 -o x.h5 --force --json
  same hetero-prefill -m "$tiny" -p 'The quick brown fox' -o x.h5 --force --json
  same hetero-decode -m "$tiny" a.h5 -n 8 --ignore-eos --temperature 0.8 --top-p 0.9 --json
  echo 'epsilon = 0.01' >settings.toml
  same kv-verify a.h5 q.h5 --config settings.toml
  same kv-verify --config settings.toml --dump-config
}

@test "a decimal comma in an argument is a usage error in every locale" {
  for locale in C de_DE.UTF-8; do
    export LC_ALL=$locale
    for epsilon in 0,01 1e-2x ''; do refuses 2 'epsilon' kv-verify a b --epsilon "$epsilon"; done
    refuses 2 'temperature' hetero-decode -m m a --temperature 0,8
    refuses 2 'timeout' kv-send a -o b --timeout 0,5
    echo 'epsilon = "0,01"' >settings.toml
    refuses 2 'epsilon' kv-verify a b --config settings.toml
  done
}
