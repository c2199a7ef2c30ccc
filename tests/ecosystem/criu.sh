#!/usr/bin/env bash
# Runs the recipe of docs/use/recipes/criu.md with CRIU 4 (Debian sid). A process is saved and ends, two of five
# hosts are killed, and the process is restored in a namespace of its own; the hash that it prints at its end
# has to be that of an undisturbed run. The same under `ckpt run --via criu`, which SIGTERM ends. Then the
# save and the restore of a process with 256 MiB of memory are timed.
#
# Needs root, mmdebstrap, a Debian mirror; 400 MB in CKPT_ROOTS. First 4 min to make the root; then 1 min.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ "${1:-}" != --inside ]; then
    made=$(root criu sid criu,libcriu2,podman,crun,netavark,procps,python3-minimal,iproute2)
    inside "$made" criu.sh
    say "all of it passed"
    exit
fi

criu --version | head -n 1
criu check >/dev/null 2>&1 || missing "CRIU: this kernel lacks what it needs: $(criu check 2>&1 | grep -i error | head -n 1)"
mkdir /work && cd /work
export CKPT_GRID=/work/grid/grid.toml
ckpt grid up --dir grid --hosts 5 >/dev/null

want=$(python3 - <<'END'
import hashlib
value = ""
for step in range(1, 41):
    value = hashlib.sha256(f"{value}{step}".encode()).hexdigest()
print(value)
END
)
# The job keeps its state only in memory.
cat >job.py <<'END'
import hashlib, os, sys, time
ballast = os.urandom(int(sys.argv[2]) << 20) if len(sys.argv) > 2 else b""
check = hashlib.sha256(ballast).hexdigest()
value, out = "", open(sys.argv[1], "a")
for step in range(1, 41):
    time.sleep(0.1)
    value = hashlib.sha256(f"{value}{step}".encode()).hexdigest()
    print("step", step, file=out, flush=True)
assert check == hashlib.sha256(ballast).hexdigest()
print("sum", value, file=out, flush=True)
END
at_step() { grep -q "^step $2\$" "$1"; }
has_sum() { grep -qx "sum $want" "$1"; }
start() { setsid python3 job.py "$@" </dev/null >/dev/null 2>&1 & export PID=$!; }
kill_host() {
    kill -KILL "$(ckpt --json grid status --dir grid | python3 -c '
import json, sys
print(next(h["pid"] for h in json.load(sys.stdin)["hosts"] if h["name"] == sys.argv[1]))' "$1")"
}

start small.out
wait_for 20 "the process is at step 10" at_step small.out 10
run_block criu.md save || { tail images/dump.log; die "not saved"; }
wait "$PID" 2>/dev/null || true
kill -0 "$PID" 2>/dev/null && die "it still runs"
rm -r images
kill_host h01
kill_host h04
say "it was saved, and two of five hosts are dead"
run_block criu.md restore || { tail images/restore.log; die "not restored"; }
has_sum small.out || { cat small.out; die "another sum"; }
[ "$(grep -c '^step ' small.out)" = 40 ] || die "steps were lost or done twice"
say "it went on, to the sum of an undisturbed run"

ckpt grid up --dir grid >/dev/null
rm -rf images
# An image records open files with their sizes, so the job has no standard output; the journal has the events.
journal() { find / -xdev -name journal.jsonl -exec cat {} +; }
# --batch, because other work on this machine would count as its owner's and suspend the job.
block criu.md run | sed 's/^ckpt run /exec ckpt run --batch /' >run.sh
setsid sh run.sh python3 job.py supervised.out </dev/null >/dev/null 2>&1 &
supervisor=$!
wait_for 30 "the process under ckpt run is at step 10" at_step supervised.out 10
kill -TERM "$supervisor"
status=0; wait "$supervisor" || status=$?
[ "$status" = 75 ] || { journal; die "ckpt run left with $status, not with 75"; }
status=0; setsid sh run.sh python3 job.py supervised.out </dev/null >/dev/null 2>&1 || status=$?
[ "$status" = 0 ] || { journal; die "its next start ended with $status"; }
has_sum supervised.out || { cat supervised.out; die "another sum under ckpt run"; }
[ "$(grep -c '^step ' supervised.out)" = 40 ] || die "steps were lost or done twice under ckpt run"
say "ckpt run left with its state saved, and went on to the same sum"
start large.out 256
wait_for 30 "a process with 256 MiB is at step 3" at_step large.out 3
now() { date +%s.%N; }
begun=$(now)
run_block criu.md save >/dev/null || die "not saved"
saved=$(now)
wait "$PID" 2>/dev/null || true
rm -r images
steps=$(grep -c '^step' large.out)
back=$(now)
run_block criu.md restore >/dev/null &
wait_for 30 "it is back and running" at_step large.out $((steps + 1))
running=$(now)
wait
has_sum large.out || die "another sum"
awk "BEGIN { printf \"256 MiB: out %.2f s, back and running %.2f s (polled every 0.2 s; the program is ${CKPT_BUILD:-as given})\n\", $saved - $begun, $running - $back }"
