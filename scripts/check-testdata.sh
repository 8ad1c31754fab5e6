#!/usr/bin/env bash
# Checks testdata/ against its MANIFEST (or writes it anew) and against the 20 MB limit.
# usage: scripts/check-testdata.sh [--write]
set -euo pipefail
cd "$(dirname "$0")/../testdata"

list() { find . -type f ! -name MANIFEST ! -name README.md -printf '%P\n' | LC_ALL=C sort; }

if [ "${1:-}" = --write ]; then
  list | xargs -d '\n' sha256sum > MANIFEST
fi
sha256sum --check --quiet --strict MANIFEST
diff <(list) <(sed 's/^[0-9a-f]*  //' MANIFEST) >/dev/null || { echo "files and MANIFEST differ: run $0 --write" >&2; exit 1; }
bytes=$(find . -type f -printf '%s\n' | awk '{n += $1} END {print n}')
[ "$bytes" -le 20000000 ] || { echo "testdata/ has $bytes bytes, more than 20000000" >&2; exit 1; }
