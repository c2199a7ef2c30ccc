#!/usr/bin/env bash
# Runs a job in a real pool of HTCondor (23.9, Debian trixie) that keeps its checkpoints on a grid of six
# hosts, as 3+2 shards. Shards are damaged, the job is vacated, two hosts are killed, the job is put on hold
# for lack of hosts, and is released. It has to end with the sum of an undisturbed run and leave nothing on any
# host. A second job is removed. Then the rank of the recipe is tried with two slots. The calls of the plug-ins
# are kept in CKPT_RECORD, if that names a directory.
#
# Needs root, mmdebstrap, a Debian mirror; 400 MB in CKPT_ROOTS. First 90 s to make the root; then 2 min.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ "${1:-}" != --inside ]; then
    made=$(root htcondor trixie htcondor,procps,python3-minimal)
    [ -z "${CKPT_RECORD:-}" ] || export CKPT_RECORD
    inside "$made" htcondor.sh
    say "all of it passed"
    exit
fi

ln -s ckpt /ckpt/ckpt-store
condor_version
# A limit, because a master without its directories starts processes without end.
ulimit -u 2000
useradd --create-home alice
install -d -o condor -g condor /run/condor /run/lock/condor /var/log/condor /var/spool/condor
install -d -o condor -g condor -m 755 /var/lib/condor /var/lib/condor/{execute,spool}
install -d -m 700 /etc/condor/passwords.d /etc/condor/tokens.d

# Files and settings that an admin adds.
ln -s /ckpt/ckpt /usr/bin/ckpt
run_block htcondor.md execute
run_block htcondor.md access
plugins=/usr/libexec/condor
for name in ckpt_plugin ckpt_cleanup; do
    if [ -n "${CKPT_RECORD:-}" ]; then
        install -d -m 1777 /record
        rm "$plugins/$name"
        ln -s /ckpt/ckpt "/ckpt/$name"
        cat >"$plugins/$name" <<END
#!/bin/bash
call=\$(mktemp -d /record/$name.\$(date +%s%N).XXXX)
{ printf 'uid=%s cwd=%s\n' "\$(id -u)" "\$PWD"; printf '%q ' "\$@"; echo; ls -la; env; } >\$call/call
while [ \$# -gt 0 ]; do
  case \$1 in
    -infile) cp "\$2" \$call/infile;;
    -outfile) stat -c '%U %a %s' "\$2" >\$call/outfile-before || true; out=\$2;;
    -jobad) cp "\$2" \$call/job.ad;;
  esac
  args+=("\$1"); shift
done
[ -z "\${_CONDOR_JOB_AD:-}" ] || cp "\$_CONDOR_JOB_AD" \$call/job.ad
/ckpt/$name "\${args[@]}" >\$call/stdout 2>\$call/stderr; status=\$?
[ -z "\${out:-}" ] || cp "\$out" \$call/outfile
cat \$call/stdout; cat \$call/stderr >&2
echo \$status >\$call/status; chmod -R a+rX \$call
exit \$status
END
        chmod 755 "$plugins/$name"
    fi
done
cat >/etc/condor/config.d/10-test <<'END'
DAEMON_LIST = MASTER COLLECTOR NEGOTIATOR SCHEDD STARTD
CONDOR_HOST = 127.0.0.1
NETWORK_INTERFACE = 127.0.0.1
ENABLE_IPV6 = FALSE
UID_DOMAIN = pool
TRUST_UID_DOMAIN = TRUE
LOCAL_DIR = /var/lib/condor
LOG = /var/log/condor
SPOOL = /var/lib/condor/spool
EXECUTE = /var/lib/condor/execute
RUN = /run/condor
LOCK = /run/lock/condor
USE_PROCD = FALSE
MOUNT_UNDER_SCRATCH =
DISCARD_SESSION_KEYRING_ON_STARTUP = FALSE
NUM_CPUS = 2
MEMORY = 1024
START = TRUE
SUSPEND = FALSE
PREEMPT = FALSE
KILL = FALSE
RUNBENCHMARKS = FALSE
UPDATE_INTERVAL = 5
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
SCHEDD_MIN_INTERVAL = 1
MAXIMUM_FREE_DISK = 0
END
condor_store_cred add -c -p "$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' ')" >/dev/null

as_alice() {
    (cd /home/alice && runuser -u alice -- env HOME=/home/alice CKPT_GRID=/home/alice/grid/grid.toml "$@")
}
as_alice ckpt grid up --dir grid --hosts 6 >/dev/null
as_alice cp grid/grid.toml .
as_alice install -D -m 600 -t .config/ckpt grid/owner.key grid/owner.crt
as_alice bash -euc "$(block htcondor.md key)"
condor_master
trap 'condor_off -master >/dev/null 2>&1 || true' EXIT
wait_for 60 "the pool has slots" sh -c '[ "$(condor_status -af Name 2>/dev/null | wc -l)" -ge 1 ]'

cat >/home/alice/job.py <<'END'
import hashlib, os, sys, time
step, value = 0, ""
if os.path.exists("state/sum"):
    step, value = open("state/sum").read().split()
    step = int(step)
    ballast = open("ballast", "rb").read()
    assert ballast == hashlib.sha256(value.encode()).digest() * 65536, "another state"
print("begins at", step, flush=True)
with open(sys.argv[2], "a") as history:
    history.write(f"{step} ")
while step < 12:
    time.sleep(float(sys.argv[1]))
    step += 1
    value = hashlib.sha256(f"{value}{step}".encode()).hexdigest()
    print("step", step, value, flush=True)
    if step % 3 == 0 and step < 12:
        os.makedirs("state", exist_ok=True)
        open("state/sum", "w").write(f"{step} {value}")
        open("ballast", "wb").write(hashlib.sha256(value.encode()).digest() * 65536)
        sys.exit(85)
print("sum", value, flush=True)
END
# With a code of its own the job needs five hosts; without one, four would get 2+2 shards.
block htcondor.md submit | sed '
    s/^arguments = .*/arguments = job.py $(pause) \/home\/alice\/$(name).history/
    s/CKPT_KEY_FILE=job.key/& CKPT_RETRY=3s CKPT_DATA=3 CKPT_PARITY=2/
    s/^\(output\|error\|log\) = /&$(name)./' >/home/alice/job.submit
chown -R alice: /home/alice/job.*

# The sum of an undisturbed run.
want=$(cd "$(mktemp -d)" && while python3 /home/alice/job.py 0 history >>out; [ $? = 85 ]; do :; done; sed -n 's/^sum //p' out)
[ -n "$want" ] || die "no sum of an undisturbed run"

status_of() { condor_q "$1" -af JobStatus 2>/dev/null; }
is_status() { [ "$(status_of "$1")" = "$2" ]; }
is_gone() { [ -z "$(status_of "$1")" ]; }
numbers() { as_alice ckpt list --json | python3 -c '
import json, sys
print(" ".join(one["labels"]["checkpoint-number"] for one in json.load(sys.stdin)["checkpoints"]))'; }
has_number() { numbers | grep -qw "$1"; }
runs() { [ "$(condor_q "$1" -af JobStatus JobRunCount 2>/dev/null)" = "2 $2" ]; }
shards() { find /home/alice/grid/hosts/*/shards -type f 2>/dev/null | wc -l; }
is_empty() { [ "$(shards)" = 0 ]; }
submit() { as_alice condor_submit -terse job.submit "name=$1" "pause=$2" | sed 's/ .*//'; }

begun=$SECONDS
job=$(submit first 2)
say "job $job runs"
wait_for 60 "checkpoint 0 is on the grid" has_number 0
holder=$(as_alice ckpt hosts --json | python3 -c 'import json,sys; print(next(h["name"] for h in json.load(sys.stdin)["hosts"] if h["shards"]))')
for shard in /home/alice/grid/hosts/"$holder"/shards/*/*; do
    printf 'damaged' | dd of="$shard" bs=1 seek=5000 conv=notrunc status=none
done
say "the shards of $holder are damaged"
condor_vacate_job -fast "$job" >/dev/null
wait_for 60 "the vacated job runs again" runs "$job" 2
wait_for 60 "checkpoint 1 is on the grid" has_number 1
holders=$(as_alice ckpt hosts --json | python3 -c 'import json,sys; print(*[h["name"] for h in json.load(sys.stdin)["hosts"] if h["shards"]][:2])')
for host in $holders; do
    kill -KILL "$(as_alice ckpt grid status --dir grid --json | python3 -c '
import json, sys
print(next(h["pid"] for h in json.load(sys.stdin)["hosts"] if h["name"] == sys.argv[1]))' "$host")"
done
say "two hosts were killed: $holders"
condor_vacate_job -fast "$job" >/dev/null
wait_for 90 "the vacated job runs again" runs "$job" 3
wait_for 60 "checkpoint 2 is refused for want of hosts, and the job is on hold" is_status "$job" 5
[ "$(condor_q "$job" -af HoldReasonCode)" = 36 ] || die "held: $(condor_q "$job" -af HoldReasonCode HoldReason)"
has_number 2 && die "a checkpoint that was refused is there"
as_alice ckpt grid up --dir grid >/dev/null
condor_release "$job" >/dev/null
wait_for 120 "the released job is done" is_gone "$job"
got=$(sed -n 's/^sum //p' /home/alice/first.out)
[ "$got" = "$want" ] || { cat /home/alice/first.*; die "sum $got instead of $want"; }
say "the sum is that of an undisturbed run"
history=$(cat /home/alice/first.history)
say "it began at steps $history"
case $history in
"0 3 3 6 6 6 9 ") ;;
*) die "it should have begun at 0 once, at 3 after the first eviction, at 6 after the second and the hold" ;;
esac
wait_for 60 "no host holds anything of it" is_empty

job=$(submit second 4)
wait_for 90 "a second job has checkpoint 0 on the grid" has_number 0
condor_rm "$job" >/dev/null
wait_for 30 "it is removed" is_gone "$job"
wait_for 60 "no host holds anything of it, either" is_empty
# The ads of two slots have the attributes of h01's daemon, but one slot has the speed of a very slow machine
# (0.01). A job with the rank of the recipe has to take the other slot. Then the slots change roles.
ln -s /home/alice/grid/hosts/h01 /var/lib/ckpt-store
chmod a+x /home/alice /home/alice/grid /home/alice/grid/hosts
run_block htcondor.md rank-execute
[ -x /usr/bin/ckpt-store ] || die "no ckpt-store"
cat >/usr/local/bin/slow <<'END'
#!/bin/sh
"$@" | sed 's/^CkptSpeed = .*/CkptSpeed = 0.01/'
END
chmod 755 /usr/local/bin/slow
cat >/etc/condor/config.d/23-test <<'END'
SLOT_TYPE_1 = 50%
SLOT_TYPE_1_PARTITIONABLE = FALSE
NUM_SLOTS_TYPE_1 = 2
STARTD_CRON_JOBLIST = FAST SLOW
STARTD_CRON_FAST_EXECUTABLE = $(STARTD_CRON_CKPT_EXECUTABLE)
STARTD_CRON_FAST_ARGS = $(STARTD_CRON_CKPT_ARGS)
STARTD_CRON_FAST_PERIOD = 5s
STARTD_CRON_SLOW_EXECUTABLE = /usr/local/bin/slow
STARTD_CRON_SLOW_ARGS = $(STARTD_CRON_CKPT_ARGS)
STARTD_CRON_SLOW_PERIOD = 5s
END
rank=$(block htcondor.md rank)
cat >/home/alice/ranked.submit <<END
executable = /bin/sleep
transfer_executable = false
arguments = 4
log = ranked.log
$rank
queue
END
chown alice: /home/alice/ranked.submit
speeds() { condor_status -af:r SlotID CkptSpeed CkptMttfSeconds 2>/dev/null | sort; }
is_slower() { speeds | awk -v slow="$1" '$2 + 0 == 0 { bad = 1 } $1 == slow { bad = bad || $2 != 0.01 } $1 != slow { bad = bad || $2 <= 0.01 } END { exit bad || NR != 2 }'; }
for slow in 1 2; do
    fast=$((3 - slow))
    printf 'STARTD_CRON_FAST_SLOTS = %s\nSTARTD_CRON_SLOW_SLOTS = %s\n' $fast $slow >/etc/condor/config.d/24-test
    condor_restart -startd >/dev/null
    wait_for 60 "slot $slow is the slow one" is_slower $slow
    ranked=$(as_alice condor_submit -terse ranked.submit | sed 's/ .*//')
    wait_for 60 "the job with a rank runs" sh -c "condor_q $ranked -af RemoteHost | grep -q slot"
    on=$(condor_q "$ranked" -af RemoteHost)
    case $on in
    slot$fast@*) say "it took slot $fast: $(speeds | tr '\n' ';')" ;;
    *) speeds; die "the job is on $on and not on slot $fast" ;;
    esac
    wait_for 60 "it is done" is_gone "$ranked"
done
say "done; the pool's part took $((SECONDS - begun)) s"
