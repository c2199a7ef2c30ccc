#!/usr/bin/env bash
# Runs the container image with Podman (Debian sid): its version and changes, the demonstration, a save from a
# container to hosts outside and back, and a host in a container.
#
# Needs root, mmdebstrap, a Debian mirror, and what packaging/image.sh needs; 400 MB in CKPT_ROOTS. First 20 min on
# two cores, most of it for the optimised build; then 1 min. CKPT_IMAGE tries an image that is built already.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ "${1:-}" != --inside ]; then
    made=$(root criu sid criu,libcriu2,podman,crun,netavark,procps,python3-minimal,iproute2)
    image=${CKPT_IMAGE:-$top/$(env -u CKPT_PROGRAM "$top/packaging/image.sh")}
    say "$(basename "$image") has $(stat -c %s "$image") bytes"
    CKPT_PACKAGES=$(mktemp -d)
    export CKPT_PACKAGES
    trap 'rm -rf "$CKPT_PACKAGES"' EXIT
    cp "$image" "$CKPT_PACKAGES/image.tar"
    cp "$top/CHANGELOG.md" "$CKPT_PACKAGES/"
    # shellcheck source=packaging/tools.sh
    . "$top/packaging/tools.sh"
    inside "$made" image.sh "$(version)"
    say "all of it passed"
    exit
fi

version=$2
# Control groups belong to the machine, so they outlast this root directory and have to be removed.
tidy() {
    podman rm --force --all >/dev/null 2>&1 || true
    find /sys/fs/cgroup/libpod_parent -depth -type d -exec rmdir {} + 2>/dev/null || true
}
trap tidy EXIT
mkdir /work && cd /work
cat >/etc/containers/containers.conf <<'END'
[containers]
netns = "host"
cgroups = "enabled"
pids_limit = 0
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
log_driver = "k8s-file"
seccomp_profile = "unconfined"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
END
mkdir -p /etc/containers/storage
printf '[storage]\ndriver = "vfs"\ngraphroot = "/work/storage"\nrunroot = "/work/run"\n' >/etc/containers/storage.conf
podman info >/dev/null || missing "Podman: it does not start here"

podman load --quiet --input /packages/image.tar >loaded || die "Podman does not load the image: $(cat loaded)"
image=localhost/ckpt:$version
[[ "$(podman run --rm "$image" --version)" = "ckpt $version"* ]] || die "the program of the image has another version"
labelled=$(podman image inspect --format '{{index .Labels "org.opencontainers.image.version"}}' "$image")
[ "$labelled" = "$version" ] || die "the image is labelled $labelled, not $version"
podman create --name files "$image" >/dev/null
podman cp files:/usr/share/doc/ckpt/CHANGELOG.md changes
cmp changes /packages/CHANGELOG.md || die "the image has other changes"
say "loaded, version $version"

podman run --rm "$image" demo >demo.log 2>&1 || die "the demonstration: $(tail -n 5 demo.log)"
say "the demonstration: $(grep -i identical demo.log | head -n 1)"

export CKPT_GRID=/work/grid/grid.toml
ckpt grid up --dir grid --hosts 5 >/dev/null
head -c 20000000 /dev/urandom >image
contained() { podman run --rm --volume /work:/work --env CKPT_GRID --env CKPT_STATE_DIR=/work/state "$image" "$@"; }
contained save --job 42 /work/image >/dev/null || die "a container can't save"
ckpt restore --job 42 -o here >/dev/null
cmp image here || die "another image came back outside of the container"
contained restore --job 42 -o /work/there >/dev/null || die "a container can't restore"
cmp image there || die "another image came back in the container"
say "a container saved and restored"

# The first host goes on in a container, with its data.
listen=$(sed -n 's/^addr = "\(.*\)"/\1/p' grid/grid.toml | head -n 1)
ckpt grid down --dir grid >/dev/null
podman run --detach --name host --volume /work:/work --entrypoint ckpt-store "$image" serve --grid "$CKPT_GRID" \
    --data /work/grid/hosts/h01 --listen "$listen" --capacity 5GiB --no-stand-back >/dev/null
answers() { ckpt hosts 2>/dev/null | grep -q '^h01 .*\bup\b'; }
wait_for 30 "a host in a container answers" answers
say "all of it passed"
