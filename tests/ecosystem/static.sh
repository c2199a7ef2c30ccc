#!/usr/bin/env bash
# Tries the static programs. The one for x86-64 has to run in an empty root directory. The one for aarch64 has
# to save and restore under qemu, with daemons of this machine.
#
# Needs root, Rust by rustup, PyPI, qemu-user-static (apt-get install qemu-user-static); 30 min on two cores
# for the builds, then 1 min.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

command -v qemu-aarch64-static >/dev/null || missing "aarch64: qemu-aarch64-static is not installed"
native=$(realpath "$(program)")
mapfile -t made < <("$top/packaging/static.sh")
work=$(mktemp -d)
here() { "$native" "$@"; }
tidy() {
    here grid down --dir "$work/grid" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap tidy EXIT
export CKPT_GRID=$work/grid/grid.toml CKPT_STATE_DIR=$work/state

for program in "${made[@]}"; do
    say "$program: $(stat -c %s "$top/$program") bytes, $(file -b "$top/$program" 2>/dev/null | cut -d, -f1-4)"
done

mkdir "$work/empty"
cp "$top/${made[0]}" "$work/empty/ckpt"
chroot "$work/empty" /ckpt --version || die "the static program does not run in an empty root"

here grid up --dir "$work/grid" --hosts 5 >/dev/null
head -c 20000000 /dev/urandom >"$work/image"
other() { qemu-aarch64-static "$top/${made[1]}" "$@"; }
other --version
other save --job 42 "$work/image" || die "aarch64 can't save"
here restore --job 42 -o "$work/here"
cmp "$work/image" "$work/here" || die "another image came back here"
other restore --job 42 -o "$work/there" || die "aarch64 can't restore"
cmp "$work/image" "$work/there" || die "another image came back on aarch64"
say "aarch64 saved and restored against daemons of $(uname -m)"
say "all of it passed"
