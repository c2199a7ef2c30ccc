#!/usr/bin/env bash
# Measures what a scrape of a daemon's metrics costs: one host holds that many shards and is asked 5000 times.
# Prints the median and the slowest time, the daemon's processor time for each scrape, and that of the same
# daemon unasked for as long as the scrapes took.
#
#   tests/ecosystem/scrape.sh [SHARDS]      default: 10000
#
# Needs Python 3 and Rust or CKPT_PROGRAM; no root. 8 min on two busy cores for 10,000 shards, after the build. Data
# are in CKPT_WORK (default: /dev/shm), because each shard is a save of its own.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

shards=${1:-10000}
program=$(realpath "$(program)")
[ -d "${CKPT_WORK:=/dev/shm}" ] || missing "no directory $CKPT_WORK"
work=$(mktemp -d "$CKPT_WORK/ckpt-scrape.XXXXXX")
host=
tidy() {
    [ -z "$host" ] || kill "$host" || true
    "$program" grid down --dir "$work/grid" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap tidy EXIT
export program CKPT_GRID=$work/grid/grid.toml CKPT_STATE_DIR=$work/state
cd "$work"
"$program" grid up --dir grid --hosts 1 >/dev/null
listen=$(sed -n 's/^addr = "\(.*\)"/\1/p' grid/grid.toml)
"$program" grid down --dir grid >/dev/null
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
(exec -a ckpt-store "$program" serve --grid "$CKPT_GRID" --data grid/hosts/h01 --listen "$listen" --capacity 5GiB \
    --quota 100% --normal-priority --no-stand-back --metrics "127.0.0.1:$port" >log 2>&1) &
host=$!
head -c 2000 /dev/urandom >image
saves() { "$program" save --job job-0 image --data 1 --parity 0 >/dev/null 2>&1; }
wait_for 30 "the host takes shards" saves
# shellcheck disable=SC2016
seq "$((shards - 1))" | xargs -P 4 -I{} "$program" save --job job-{} image --data 1 --parity 0 >saved 2>&1 ||
    die "not saved: $(grep -v '^job' saved | tail -n 3)"
say "$shards jobs are saved"
cat >scrape.py <<'PY'
import http.client, os, re, statistics, sys, time

port, pid, wanted = map(int, sys.argv[1:])


def scrape():
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/metrics")
    body = connection.getresponse().read().decode()
    connection.close()
    return time.perf_counter() - begin, body


def processor():
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


held = None
for _ in range(60):
    body = scrape()[1]
    held = int(float(re.search(r"^ckpt_store_shards (\S+)", body, re.M)[1]))
    if held == wanted:
        break
    time.sleep(1)
else:
    sys.exit(f"the host holds {held} shards, not {wanted}")
count = 5000
before, begin = processor(), time.monotonic()
times = [scrape()[0] for _ in range(count)]
asked, lasted = processor() - before, time.monotonic() - begin
before = processor()
time.sleep(lasted)
unasked = processor() - before
print(f"{held} shards, {len(body)} bytes: median {statistics.median(times) * 1e3:.2f} ms, slowest "
      f"{max(times) * 1e3:.1f} ms; processor {asked / count * 1e3:.2f} ms each; unasked for {lasted:.1f} s: "
      f"{unasked * 1e3:.0f} ms in all")
PY
python3 scrape.py "$port" "$host" "$shards" || die "not measured"
