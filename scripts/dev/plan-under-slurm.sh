#!/usr/bin/env bash
# A Slurm of two nodes on this host, and a command in it: sbatch of a script that hetero-plan has emitted, say. Needs root,
# slurm-wlm and munge. The nodes have the features compute and bandwidth.
# usage: scripts/dev/plan-under-slurm.sh COMMAND...
# e.g.:  PROMPTS=$PWD/prompts.jsonl scripts/dev/plan-under-slurm.sh sbatch --wait --export=ALL job.sh
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,5s/^# //p' "$0"; exit 2; }
work=$(mktemp -d)
host=$(hostname -s)
own_munge=
stop() {
  for file in "$work"/*.pid; do
    [ ! -e "$file" ] || kill "$(cat "$file")" 2>/dev/null || true
  done
  if [ -n "$own_munge" ]; then kill "$(cat /run/munge/munged.pid)" 2>/dev/null || true; fi
  sleep 1
  rm -rf "$work"
}
trap stop EXIT
mkdir "$work"/{state,spool.pre0,spool.dec0,tmp.pre0,tmp.dec0}
cat >"$work/slurm.conf" <<END
ClusterName=plan
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16917
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool.%n
TmpFS=$work/tmp.%n
SlurmctldPidFile=$work/ctld.pid
SlurmdPidFile=$work/%n.pid
SlurmctldLogFile=$work/ctld.log
SlurmdLogFile=$work/%n.log
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
NodeName=pre0 NodeHostname=$host NodeAddr=127.0.0.1 Port=16918 CPUs=$(nproc) Feature=compute
NodeName=dec0 NodeHostname=$host NodeAddr=127.0.0.1 Port=16919 CPUs=$(nproc) Feature=bandwidth
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
if ! munge -n >/dev/null 2>&1; then
  mkdir -p /run/munge
  chown munge: /run/munge
  su -s /bin/sh munge -c /usr/sbin/munged
  own_munge=yes
fi
export SLURM_CONF=$work/slurm.conf OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
slurmctld
slurmd -N pre0
slurmd -N dec0
for _ in $(seq 100); do
  [ "$(sinfo -h -t idle -o %D | head -n 1)" != 2 ] || break
  sleep 0.1
done
"$@"
