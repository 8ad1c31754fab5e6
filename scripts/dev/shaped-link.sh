#!/usr/bin/env bash
# Runs two commands as ranks 0 and 1 of an MPI job, each in a network namespace of its own, as if on two hosts, over a
# link that carries so many bits a second from rank 0 to rank 1. Needs root, iproute2 and Open MPI.
# usage: scripts/dev/shaped-link.sh BITS_PER_SECOND COMMAND0 ... -- COMMAND1 ...
set -euo pipefail
if [ $# -lt 4 ]; then
  sed -n '2,4s/^# //p' "$0" >&2
  exit 2
fi
rate=$1
shift
first=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  first+=("$1")
  shift
done
shift # --
if [ $# -eq 0 ] || [ ${#first[@]} -eq 0 ]; then
  echo "two commands, with -- between them" >&2
  exit 2
fi

id=$$
net=10.$((id / 250 % 200 + 20)).$((id % 250))
bridge=hb$id
work=$(mktemp -d)
clean_up() {
  for side in 1 2; do ip netns delete "h$id-$side" 2>/dev/null || true; done
  ip link delete "$bridge" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

ip link add "$bridge" type bridge
ip addr add "$net.254/24" dev "$bridge"
ip link set "$bridge" up
for side in 1 2; do
  ip netns add "h$id-$side"
  ip link add "hv$id-$side" type veth peer name eth0 netns "h$id-$side"
  ip link set "hv$id-$side" master "$bridge" up
  ip -n "h$id-$side" addr add "$net.$side/24" dev eth0
  ip -n "h$id-$side" link set eth0 up
  ip -n "h$id-$side" link set lo up
done
# A burst of 2 ms, but no less than a packet as the kernel makes it; what waits for longer than 200 ms is dropped.
burst=$((rate / 8 / 500))
[ "$burst" -ge 65536 ] || burst=65536
tc -n "h$id-1" qdisc add dev eth0 root tbf rate "${rate}bit" burst "$burst" latency 200ms

# Open MPI starts its daemon "on" a host with: agent HOST COMMAND...
cat >"$work/agent" <<AGENT
#!/bin/sh
side=\${1##*.}
shift
exec ip netns exec "h$id-\$side" unshare --uts sh -c 'hostname "host-'\$side'"; exec sh -c "\$*"' sh "\$@"
AGENT
chmod +x "$work/agent"
mpirun --allow-run-as-root --mca plm rsh --mca plm_rsh_agent "$work/agent" --mca btl tcp,self \
  --mca btl_tcp_if_include "$net.0/24" --mca oob_tcp_if_include "$net.0/24" --bind-to none \
  --mca mpi_yield_when_idle 0 --host "$net.1:1,$net.2:1" -n 1 "${first[@]}" : -n 1 "$@"
