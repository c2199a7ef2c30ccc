# Functions for the scripts of this directory, which need root, network access to a Debian mirror, and
# mmdebstrap.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
# Root directories are made once and kept in CKPT_ROOTS.
roots=${CKPT_ROOTS:-/var/tmp/ckpt-roots}

# missing WHAT: reports what can't be tried on this machine, and ends the script with 77.
missing() {
    printf '\n!!! NOT TRIED HERE: %s !!!\n' "$*" >&2
    exit 77
}

say() {
    printf '=== %s s: %s\n' "$SECONDS" "$*"
}

die() {
    printf '!!! FAILED after %s s: %s\n' "$SECONDS" "$*" >&2
    exit 1
}

# wait_for SECONDS WHAT COMMAND...: repeats the command until it succeeds.
wait_for() {
    local until=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        ((SECONDS < until)) || die "waited in vain until $what"
        sleep 0.2
    done
    say "$what"
}

# program: prints the path of the program under test, which is CKPT_PROGRAM or an unoptimised build.
program() {
    if [ -z "${CKPT_PROGRAM:-}" ]; then
        cargo build --locked --manifest-path "$top/Cargo.toml" -p ckpt >&2
        CKPT_PROGRAM=$top/target/debug/ckpt
    fi
    printf '%s\n' "$CKPT_PROGRAM"
}

# root NAME SUITE PACKAGES: prints the path of a root directory with these packages; the first call makes it.
root() {
    local name=$1 suite=$2 packages=$3 made=$roots/$1
    [ "$(id -u)" = 0 ] || missing "$name: this needs root"
    command -v mmdebstrap >/dev/null || missing "$name: mmdebstrap is not installed (apt-get install mmdebstrap)"
    if [ ! -e "$made.ready" ]; then
        rm -rf "$made"
        mkdir -p "$roots"
        # A mirror's lists may have expired.
        mmdebstrap --variant=minbase --include="$packages" --aptopt='APT::Install-Recommends "false"' \
            --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$made" >"$made.log" 2>&1 || {
            tail -n 5 "$made.log" >&2
            missing "$name: $suite with $packages can't be installed; $made.log says why"
        }
        touch "$made.ready"
    fi
    printf '%s\n' "$made"
}

# inside ROOT SCRIPT [ARGUMENT...]: runs the script in a temporary copy of the root directory, with namespaces
# of its own for processes, network and names. /ckpt has the program, $top/docs and $top/tests/ecosystem, and
# /packages the files of CKPT_PACKAGES, if that is set.
inside() {
    local root=$1 script=$2 program
    shift 2
    program=$(program)
    export root script program here top
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child --net --uts --ipc bash -euc '
        work=$(mktemp -d)
        mount -t tmpfs -o size=80% ckpt-test "$work"
        mkdir "$work"/{upper,work,root}
        mount -t overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/work" ckpt-test "$work/root"
        cd "$work/root"
        mount -t proc proc proc
        mount -t tmpfs -o mode=755 ckpt-dev dev
        for device in null zero full random urandom tty; do touch "dev/$device"; mount --bind "/dev/$device" "dev/$device"; done
        mkdir dev/{pts,shm} && mount -t devpts -o newinstance,ptmxmode=666 pts dev/pts
        mount -t tmpfs -o mode=1777 ckpt-shm dev/shm
        ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
        ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
        mount -t sysfs sysfs sys
        # Only control groups of version 2 are mounted: crun refuses a mixture of versions.
        mount -t cgroup2 cgroup2 sys/fs/cgroup
        mkdir -p ckpt/tests && cp "$program" ckpt/ckpt && cp -r "$here" ckpt/tests/ && cp -r "$top/docs" ckpt/
        if [ -n "${CKPT_PACKAGES:-}" ]; then mkdir packages && find "$CKPT_PACKAGES" -maxdepth 1 -type f -exec cp -t packages {} +; fi
        if [ -n "${CKPT_RECORD:-}" ]; then mkdir record && mount --bind "$CKPT_RECORD" record; fi
        # Some resolvers do not count addresses of the loopback net.
        ip link set lo up
        ip address add 10.99.0.1/32 dev lo
        hostname pool
        printf "127.0.0.1 localhost\n10.99.0.1 pool\n" >etc/hosts
        # Programs that make containers need a root directory that is also the root of the mounts.
        pivot_root . mnt
        cd /
        umount --lazy /mnt
        exec env -i LANG=C.UTF-8 HOME=/root PATH=/ckpt:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            ${CKPT_RECORD:+CKPT_RECORD="$CKPT_RECORD"} chroot . /bin/bash "/ckpt/tests/ecosystem/$script" --inside "$@"' inside "$@"
}

# block PAGE NAME: prints the block of docs/use/recipes/PAGE that follows `<!-- run by SCRIPT: NAME -->`.
block() {
    awk -v name="$2" '
        index($0, "<!-- run by ") == 1 && index($0, ": " name " -->") { wanted = 1; next }
        /^```/ { if (inside) exit; if (wanted) { inside = 1; found = 1 } next }
        inside { print }
        END { exit !found }' "$top/docs/use/recipes/$1" || die "$1 has no block $2"
}

# run_block PAGE NAME: runs a block up to its end or the first command that fails.
run_block() {
    bash -euc "$(block "$1" "$2")"
}
