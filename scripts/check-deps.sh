#!/usr/bin/env bash
# Checks that the folders depend on each other in one direction only, and that external libraries stay in their module.
# usage: scripts/check-deps.sh      exit 1 and one line per violation
set -euo pipefail
cd "$(dirname "$0")/.."

# module: the modules whose headers it may include
declare -A allowed=(
  [kernels]=""
  [lib/base]=""
  [lib/io]="base kernels"
  [lib/quant]="base kernels"
  [lib/kv]="base io quant kernels"
  [lib/model]="base io kernels"
  [lib/tokenizer]="base io"
  [lib/convert]="base io model tokenizer quant kernels"
  [lib/hw]="base io kernels quant"
  [lib/engine]="base io kv model tokenizer quant kernels"
  [lib/verify]="base kv quant model engine kernels"
  [lib/calib]="base kv model quant engine verify kernels"
  [lib/transport]="base io kv"
  [lib/sched]="base"
  [lib/plan]="base io quant kv model hw sched kernels"
  [tools]="base io kv model tokenizer convert hw engine verify calib transport quant kernels sched plan common"
)
# header pattern: the only folders that may include it
declare -A external=(
  ['hdf5']="lib/io"
  ['mpi\.h']="lib/transport"
  ['CLI/']="tools"
  ['toml\+\+|toml\.hpp']="lib/base"
  ['spdlog/']="tools"
  ['hwloc']="lib/hw"
  ['pcre2|utf8proc']="lib/tokenizer"
  ['nettle/|isa-l']="lib/base"
  ['cuda|nvml']="kernels/cuda lib/hw"
)

bad=0
complain() { echo "$1: $2"; bad=1; }

sources() { find "$1" -name '*.h' -o -name '*.cpp' -o -name '*.inc' -o -name '*.cu'; }

for folder in "${!allowed[@]}"; do
  own=${folder#lib/}
  while IFS=: read -r file include; do
    if [[ $include == kernels/* ]]; then target=kernels; else target=${include%%/*}; fi
    [[ $include == */* ]] || continue
    [[ $target == "$own" ]] && continue
    [[ -d lib/$target || $target == kernels || $target == common ]] || continue
    if [[ $target == kernels && $folder != kernels && $include != kernels/api/* ]]; then
      complain "$file" "includes $include: only kernels/api is public"
    fi
    [[ " ${allowed[$folder]} " == *" $target "* ]] || complain "$file" "$folder must not use $target ($include)"
  done < <(sources "$folder" | xargs -r grep -oHE '^#include "[^"]+"' | sed 's/#include "//; s/"$//')
done

for pattern in "${!external[@]}"; do
  while IFS=: read -r file include; do
    ok=0
    for folder in ${external[$pattern]}; do [[ $file == "$folder"/* ]] && ok=1; done
    [ $ok -eq 1 ] || complain "$file" "only ${external[$pattern]} may include $include"
  done < <({ sources lib; sources kernels; sources tools; } |
    xargs -r grep -oHE "^#include <($pattern)[^>]*>" || true)
done
exit $bad
