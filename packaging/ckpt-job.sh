#!/bin/sh
# Runs a job that keeps its state in one file or directory, and saves this state in a ckpt grid.
#
#   ckpt-job.sh JOB STATE COMMAND [ARGUMENT...]
#
# Restores STATE first if it does not exist. Saves it every CKPT_JOB_INTERVAL seconds while COMMAND runs.
# At SIGTERM, SIGINT or SIGHUP it sends SIGTERM to COMMAND, waits for its end, and saves a last time.
#
# Exit status: that of COMMAND; that of `ckpt restore` if the restore fails; 128 plus the number of the
# signal if a signal stopped the script.
#
# COMMAND has to go on from STATE, or start at the beginning if STATE does not exist. It should write STATE
# under another name and rename it, so that STATE is whole at any time.
#
# Variables and their defaults:
#   CKPT_JOB_INTERVAL=600   seconds from the end of one save to the beginning of the next
#   CKPT_JOB_DEADLINE=240s  the longest time of one save
#   CKPT_JOB_STOP=20        seconds from SIGTERM until COMMAND is killed
#   CKPT_JOB_LAST=60s       the longest time of the last save
#   CKPT_JOB_SAVE_ARGS=     further options of `ckpt save`, such as --keep 3
# The variables of ckpt apply too, such as CKPT_GRID and CKPT_KEY_FILE.

set -u

# Seconds from a save that could not read the state to the next attempt.
AGAIN_AFTER=5

if [ $# -lt 3 ]; then
    echo "usage: ckpt-job.sh JOB STATE COMMAND [ARGUMENT...]" >&2
    exit 2
fi
job=$1
state=${2%/}
shift 2

interval=${CKPT_JOB_INTERVAL:-600}
deadline=${CKPT_JOB_DEADLINE:-240s}
stop_after=${CKPT_JOB_STOP:-20}
last_deadline=${CKPT_JOB_LAST:-60s}
save_args=${CKPT_JOB_SAVE_ARGS:-}
case $interval$stop_after in
    *[!0-9]*)
        echo "ckpt-job.sh: CKPT_JOB_INTERVAL and CKPT_JOB_STOP are numbers of seconds" >&2
        exit 2
        ;;
esac

# This file beside STATE has the version from which STATE was restored, or as which it was last saved.
mark=$state.ckpt-version
command=
ended=
stopped=0

say() {
    echo "ckpt-job: $*" >&2
}

# Prints the versions in JSON output of ckpt, one per line.
versions() {
    tr ',{' '\n\n' | sed -n 's/^"version":\([0-9][0-9]*\).*/\1/p'
}

# Prints the newest version of the job in the grid; nothing if there is none or the grid does not answer.
newest() {
    ckpt --json list --job "$job" 2>/dev/null | versions | sort -n | tail -n 1
}

# Restores STATE if necessary. A STATE that is older than a version from another machine is put aside.
begin() {
    if [ -e "$state" ]; then
        here=$(cat "$mark" 2>/dev/null)
        [ -n "$here" ] || return 0
        there=$(newest)
        [ "${there:-0}" -gt "$here" ] || return 0
        say "the job went on to version $there elsewhere: $state, of version $here, is now $state.old"
        rm -rf "$state.old"
        mv "$state" "$state.old" || return 8
    fi
    report=$(ckpt --json restore --job "$job" --if-exists -o "$state")
    status=$?
    case $status in
        0 | 3) ;;
        *)
            say "cannot restore job $job (status $status)"
            echo "$report" >&2
            return $status
            ;;
    esac
    version=$(echo "$report" | versions | head -n 1)
    if [ -n "$version" ]; then
        echo "$version" >"$mark"
        say "job $job goes on from version $version"
    else
        say "job $job has no checkpoint: it starts from the beginning"
    fi
}

# Succeeds if COMMAND runs. When COMMAND has ended, $ended is its exit status.
runs() {
    [ -z "$ended" ] || return 1
    kill -0 "$command" 2>/dev/null && return 0
    wait "$command"
    ended=$?
    return 1
}

# Saves STATE within the time $1, in the background, so that signals and the job's end are noticed. A save
# that is not needed any more, because the job is done or the last save replaces it, is stopped: then the
# previous version stays the newest.
save() {
    [ -e "$state" ] || return 0
    # shellcheck disable=SC2086 # several options
    ckpt --json save --job "$job" --deadline "$1" $save_args "$state" </dev/null >"$mark.new" &
    saving=$!
    while [ "$2" = meanwhile ] && kill -0 "$saving" 2>/dev/null; do
        if [ $stopped -ne 0 ] || { ! runs && [ "$ended" -eq 0 ]; }; then
            kill -TERM "$saving" 2>/dev/null
            break
        fi
        sleep 1
    done
    wait "$saving"
    status=$?
    case $status in
        0 | 3)
            versions <"$mark.new" | head -n 1 >"$mark"
            [ $status -eq 0 ] || say "version $(cat "$mark") was saved, with less redundancy or with warnings:" \
                "$(cat "$mark.new")"
            ;;
        143) ;;
        # In most cases the state was replaced while it was read.
        8)
            say "not saved (status 8), next attempt in $AGAIN_AFTER s: $(cat "$mark.new")"
            waited=$((interval - AGAIN_AFTER))
            ;;
        *) say "not saved (status $status), the previous version stays: $(cat "$mark.new")" ;;
    esac
    rm -f "$mark.new"
}

begin || exit $?

trap 'stopped=15' TERM
trap 'stopped=2' INT
trap 'stopped=1' HUP

# Without this, a command in the background would read nothing.
exec 3<&0
"$@" <&3 3<&- &
command=$!
exec 3<&-

waited=0
while [ $stopped -eq 0 ] && runs; do
    sleep 1
    waited=$((waited + 1))
    if [ $waited -ge "$interval" ] && [ $stopped -eq 0 ] && runs; then
        waited=0
        save "$deadline" meanwhile
    fi
done

if [ $stopped -eq 0 ]; then
    exit "$ended"
fi

trap '' TERM INT HUP
say "got a signal: ending the job, then saving a last time"
kill -TERM "$command" 2>/dev/null
waited=0
while runs && [ $waited -lt "$stop_after" ]; do
    sleep 1
    waited=$((waited + 1))
done
if runs; then
    kill -KILL "$command"
    wait "$command"
fi
save "$last_deadline" last
exit $((128 + stopped))
