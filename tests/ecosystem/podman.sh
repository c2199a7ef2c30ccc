#!/usr/bin/env bash
# Runs the recipe of docs/use/recipes/podman.md with Podman and CRIU 4 (Debian sid). A container is saved as a
# stream and stops, two of five hosts are killed, and the container is restored from the stream; the hash that
# it prints at its end has to be that of an undisturbed run.
#
# Needs root, mmdebstrap, a Debian mirror, control groups of version 2 or 1 for crun; 400 MB in CKPT_ROOTS.
# First 4 min to make the root; then 1 min.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ "${1:-}" != --inside ]; then
    made=$(root criu sid criu,libcriu2,podman,crun,netavark,procps,python3-minimal,iproute2)
    inside "$made" podman.sh
    say "all of it passed"
    exit
fi

# Control groups belong to the machine, so they outlast this root directory and have to be removed.
tidy() {
    podman rm --force --all >/dev/null 2>&1 || true
    find /sys/fs/cgroup/libpod_parent -depth -type d -exec rmdir {} + 2>/dev/null || true
}
trap tidy EXIT
mkdir /work && cd /work
export CKPT_GRID=/work/grid/grid.toml
ckpt grid up --dir grid --hosts 5 >/dev/null
cat >/etc/containers/containers.conf <<'END'
[containers]
netns = "host"
pidns = "private"
cgroups = "enabled"
pids_limit = 0
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
log_driver = "k8s-file"
seccomp_profile = "unconfined"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
[engine.runtimes]
crun = ["/usr/local/bin/crun"]
END
# Control groups are not restored, because the machine may also have those of version 1.
cat >/usr/local/bin/crun <<'END'
#!/bin/bash
for argument; do
    arguments+=("$argument")
    case $argument in checkpoint | restore) arguments+=(--manage-cgroups-mode=ignore) ;; esac
done
exec /usr/bin/crun "${arguments[@]}"
END
chmod 755 /usr/local/bin/crun
mkdir -p /etc/containers/storage
printf '[storage]\ndriver = "vfs"\ngraphroot = "/work/storage"\nrunroot = "/work/run"\n' >/etc/containers/storage.conf
podman info >/dev/null || missing "Podman: it does not start here"
# The container's image is made from this root directory, so nothing is fetched from a registry.
mkdir image
(cd / && tar c usr bin lib lib64 sbin etc 2>/dev/null | tar x -C /work/image) || true
tar c -C image . | podman import - job >/dev/null
rm -r image
say "an image is made"
cat >job.sh <<'END'
value=""
for step in $(seq 40); do
    sleep 0.2
    value=$(printf '%s%s' "$value" "$step" | sha256sum | cut -c1-64)
    echo "step $step" >>/out/log
done
echo "sum $value" >>/out/log
END
mkdir out
want=$(value=""; for step in $(seq 40); do value=$(printf '%s%s' "$value" "$step" | sha256sum | cut -c1-64); done; echo "$value")
podman run --detach --name job --volume /work/out:/out --volume /work/job.sh:/job.sh:ro job /bin/bash /job.sh >/dev/null ||
    missing "Podman: crun starts no container here"
at_step() { grep -q "^step $1\$" out/log; }
has_sum() { grep -qx "sum $want" out/log; }
wait_for 30 "the container is at step 8" at_step 8
run_block podman.md save || die "not saved"
podman rm --force job >/dev/null
for host in h02 h05; do
    kill -KILL "$(ckpt --json grid status --dir grid | python3 -c '
import json, sys
print(next(h["pid"] for h in json.load(sys.stdin)["hosts"] if h["name"] == sys.argv[1]))' $host)"
done
say "it was saved and removed, and two of five hosts are dead"
run_block podman.md restore || {
    find /work/storage -name restore.log -exec tail -n 20 {} +
    die "not restored"
}
wait_for 30 "it went on, to the sum of an undisturbed run" has_sum
[ "$(grep -c '^step ' out/log)" = 40 ] || die "steps were lost or done twice"
