#!/usr/bin/env bash
# Runs the recipe of docs/use/recipes/slurm.md in Slurm (24.11, Debian trixie) on one node. One job is requeued
# before its time limit, one is preempted, and one is an array; two of the grid's seven hosts are dead. All
# jobs have to end with the sum of an undisturbed run.
#
# Needs root, mmdebstrap, a Debian mirror; 300 MB in CKPT_ROOTS. First 60 s to make the root; then 5 min.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ "${1:-}" != --inside ]; then
    made=$(root slurm trixie slurmctld,slurmd,slurm-client,munge,procps,python3-minimal)
    inside "$made" slurm.sh
    say "all of it passed"
    exit
fi

trap '[ $? = 0 ] || { tail -n 30 /var/log/slurmctld.log; squeue; tail -n 20 /home/alice/*.out; }' EXIT
slurmctld -V
useradd --create-home --shell /bin/bash alice
install -d -o munge -g munge -m 755 /run/munge
head -c 128 /dev/urandom >/etc/munge/munge.key
chown munge:munge /etc/munge/munge.key && chmod 400 /etc/munge/munge.key
runuser -u munge -- munged
mkdir -p /var/spool/slurmctld /var/spool/slurmd /etc/slurm
cat >/etc/slurm/slurm.conf <<'END'
ClusterName=test
SlurmctldHost=pool
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=10
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PreemptParameters=send_user_signal
ReturnToService=2
KillWait=20
MinJobAge=600
NodeName=pool CPUs=2 RealMemory=500 State=UNKNOWN
NodeName=h0[1-7] NodeAddr=127.0.0.1 CPUs=1 State=DOWN
PartitionName=low Nodes=pool Default=YES PriorityTier=1 GraceTime=20
PartitionName=high Nodes=pool PriorityTier=10 PreemptMode=OFF
END
echo 'CgroupPlugin=disabled' >/etc/slurm/cgroup.conf
slurmctld
slurmd
wait_for 30 "the node is idle" sh -c 'sinfo -h -o %T | grep -qx idle'

as_alice() {
    (cd /home/alice && runuser -u alice -- env HOME=/home/alice PATH="$PATH" \
        CKPT_GRID=/home/alice/grid/grid.toml "${settings[@]}" "$@")
}
settings=()
as_alice ckpt grid up --dir grid --hosts 7 >/dev/null
cp /ckpt/tests/ecosystem/counting.py /home/alice/job.py
block slurm.md job.sh >/home/alice/job.sh
chown alice: /home/alice/job.*
for host in h01 h02; do
    kill -KILL "$(as_alice ckpt --json grid status --dir grid | python3 -c '
import json, sys
print(next(h["pid"] for h in json.load(sys.stdin)["hosts"] if h["name"] == sys.argv[1]))' $host)"
done
say "a grid of seven hosts, two of which are dead"

sum_of() { (cd "$(mktemp -d)" && python3 /home/alice/job.py state "$1" 0 | sed -n 's/^sum //p'); }
is_state() { scontrol -o show job "$1" 2>/dev/null | grep -q "JobState=$2"; }
is_done() { is_state "$1" COMPLETED; }
is_running() { is_state "$1" RUNNING; }
version_of() { as_alice ckpt --json list --job "$1" 2>/dev/null | python3 -c '
import json, sys
print(max([0] + [one["version"] for one in json.load(sys.stdin).get("checkpoints", [])]))'; }
has_version() { [ "$(version_of "$1")" -ge "$2" ]; }
restarts() { scontrol -o show job "$1" | sed 's/.* Restarts=\([0-9]*\).*/\1/'; }
# ends_well OUTPUT STEPS LEAST: checks the sum, and that at least LEAST starts began behind step 0.
ends_well() {
    local later
    [ "$(sed -n 's/^sum //p' "$1")" = "$(sum_of "$2")" ] || { cat "$1"; die "another sum"; }
    later=$(grep -c '^begins at [1-9]' "$1" || true)
    [ "$later" -ge "$3" ] || { cat "$1"; die "it did not go on from a checkpoint"; }
    say "$1: the right sum; $(grep '^begins at' "$1" | tr '\n' ',')"
}

# The recipe's command sets the weights of nodes that have the names of hosts.
weights() { scontrol -o show nodes h0[1-7] | sed 's/^NodeName=\([^ ]*\) .* Weight=\([0-9]*\).*/\1 \2/' | sort; }
[ "$(weights | cut -d' ' -f2 | sort -u)" = 1 ] || { weights; die "nodes have weights already"; }
install -m 600 -t /root /home/alice/grid/owner.key /home/alice/grid/owner.crt
CKPT_GRID=/home/alice/grid/grid.toml CKPT_KEY_FILE=/root/owner.key CKPT_CERT_FILE=/root/owner.crt \
    run_block slurm.md weights >/dev/null
want=$(as_alice ckpt plan where --work 6h --format slurm | sed -n 's/.*nodename=\([^ ]*\) weight=\(.*\)/\1 \2/p' | sort)
[ "$(wc -l <<<"$want")" = 5 ] || die "not five hosts: $want"
[ "$(weights | grep -v ' 1$' | cut -d' ' -f2 | sort -n | tr '\n' ' ')" = "10 20 30 40 50 " ] || { weights; die "want $want"; }
[ "$(weights | grep -c ' 1$')" = 2 ] || { weights; die "hosts that are dead have no weight"; }
say "slurmctld has weights of ckpt plan where: $(weights | tr '\n' ';')"

# The time limit is 2 min for 2 min of work. The requeued job has to wait until its credential ends.
settings=(STEPS=240 PAUSE=0.5)
submit=$(block slurm.md submit)
[ "$submit" = "sbatch --time 60 job.sh" ] || die "the recipe has another line: $submit"
limited=$(as_alice sbatch --parsable --output limited.out --time 2 job.sh)
settings=(STEPS=30 PAUSE=0.5)
array=$(as_alice sbatch --parsable --array 1-2 --output array-%a.out --time 60 job.sh)
wait_for 120 "the array is done" sh -c "! squeue -h -j $array 2>/dev/null | grep -q ."
for task in 1 2; do
    [ "$(sed -n 's/^sum //p' /home/alice/array-$task.out)" = "$(sum_of 30)" ] || die "array task $task"
done
say "both tasks have the right sum"
wait_for 240 "the job that met its time limit is done" is_done "$limited"
[ "$(restarts "$limited")" -ge 1 ] || die "it was not requeued"
ends_well /home/alice/limited.out 240 1

# Preemption: a job of a higher partition takes the node.
settings=(STEPS=80 PAUSE=0.5)
low=$(as_alice sbatch --parsable --output low.out --exclusive --time 60 job.sh)
wait_for 60 "a job runs in the low partition" grep -q "begins at" /home/alice/low.out
sleep 4
as_alice sbatch --parsable --partition high --exclusive --output high.out --wrap "sleep 3" >/dev/null
wait_for 60 "it has left a checkpoint for a higher one" has_version "slurm/$low.0" 1
wait_for 240 "the preempted job is done" is_done "$low"
ends_well /home/alice/low.out 80 1
