#!/bin/sh
# Saves a job as an image of its processes, and restarts it from there, by CRIU 4. For `ckpt run`:
#
#   ckpt run --job JOB --via cmd --checkpoint-cmd 'ckpt-criu.sh dump' \
#       --restart-cmd 'exec ckpt-criu.sh restore' -- COMMAND [ARGUMENT...]
#
# Needs root, unshare and nsenter. CRIU names the program, if it is not `criu` in the path.
#
# The image names files by their paths, with their sizes: what COMMAND has open must be there at the
# restart, as it was. Redirect what it prints to /dev/null or to a file that is on every machine.

set -eu

criu=${CRIU:-criu}

# The first child of a process.
child() {
    children=$(cat "/proc/$1/task/$1/children")
    echo "${children%% *}"
}

case ${1-} in
    dump)
        if [ "$(cat "/proc/$CKPT_PID/comm")" != unshare ]; then
            exec "$criu" dump -t "$CKPT_PID" -D "$CKPT_DIR" --leave-running --shell-job
        fi
        # It was restarted: CRIU is the first process of a namespace, the job its child. CRIU dumps
        # processes of a nested namespace only from inside.
        first=$(child "$CKPT_PID")
        job=$(child "$first")
        inside=$(sed -n 's/^NSpid:.*[[:space:]]\([0-9]*\)$/\1/p' "/proc/$job/status")
        exec nsenter --target "$first" --pid --mount \
            "$criu" dump -t "$inside" -D "$CKPT_DIR" --leave-running --shell-job
        ;;
    restore)
        # Process ids are as they were, so that they must be free; the session has to be one of the same
        # namespace, or it can't be dumped again.
        exec unshare --pid --fork --mount-proc setsid "$criu" restore -D "$CKPT_DIR" --shell-job
        ;;
    *)
        echo "usage: ckpt-criu.sh dump|restore" >&2
        exit 2
        ;;
esac
