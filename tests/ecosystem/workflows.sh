#!/usr/bin/env bash
# The blocks of docs/use/recipes/trainers.md for workflow managers: the first try of a job is sent SIGTERM in the
# middle, the manager starts it again, and the result is that of an undisturbed run.
#
# Needs snakemake (PyPI) and parallel (Debian) in the PATH; what is not there is said. One minute.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
ckpt=$(program)
PATH=$(dirname "$ckpt"):$PATH
work=$(mktemp -d)
trap 'ckpt grid down --dir "$work/grid" >/dev/null; rm -rf "$work"' EXIT
cd "$work"
ckpt grid up --dir grid --hosts 5 >/dev/null
export CKPT_GRID=$work/grid/grid.toml CKPT_STATE_DIR=$work/memory
cp "$here/counting.py" count.py
wanted=$(python3 count.py undisturbed 40 0 | tail -n 1)

# disturb JOB: sends SIGTERM to `ckpt run` of the job once it has counted.
disturb() {
    wait_for 60 "the state of $1 is there" test -s "$2"
    local found= process
    for process in /proc/[0-9]*; do
        if [ "$(readlink "$process/cwd")" = "$work" ] &&
            tr '\0' ' ' <"$process/cmdline" | grep -q "^ckpt run --batch --job $1 "; then
            kill -TERM "${process#/proc/}"
            found=yes
        fi
    done 2>/dev/null
    [ -n "$found" ] || die "$1 does not run"
}

# right FILE: the job counted to the end, and not from the beginning.
right() {
    [ "$(tail -n 1 "$1")" = "$wanted" ] || die "$1 is wrong: $(tail -n 1 "$1")"
    ! grep -qx 'begins at 0' "$1" || die "$1: counted from the beginning"
}

untried=()
if command -v snakemake >/dev/null; then
    block trainers.md snakemake >Snakefile
    snakemake --cores 1 result &
    disturb sim state
    wait $! || die "snakemake failed"
    right result
    say "$(snakemake --version): Snakemake goes on"
else
    untried+=("Snakemake: not in the PATH")
fi
if command -v parallel >/dev/null; then
    block trainers.md parallel >parallel.sh
    bash -eu parallel.sh &
    disturb par-1 state-1
    wait $! || die "parallel failed"
    right result-1
    [ "$(tail -n 1 result-2)" = "$wanted" ] || die "the job that was not disturbed is wrong"
    say "$(parallel --version | head -n 1): goes on"
else
    untried+=("GNU parallel: not in the PATH")
fi
say "all of it passed"
for what in "${untried[@]}"; do
    printf '!!! NOT TRIED HERE: %s !!!\n' "$what" >&2
done
