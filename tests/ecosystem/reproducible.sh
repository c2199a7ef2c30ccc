#!/usr/bin/env bash
# Builds the release twice, each time from nothing in a clone of its own of the last commit, with other directories,
# time zones, languages and masks of permissions. All files have to have the same bytes, and no program the name of
# a directory of this machine.
#
#   tests/ecosystem/reproducible.sh [PART...]      parts of packaging/release.sh; default: all
#
# Needs what packaging/release.sh needs; for all parts 90 min on two cores, for `deb` alone 20. CKPT_WORK is where
# it builds (default: /var/tmp; 6 GB). CKPT_KEEP is a new directory for the files of both builds.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for needed in git dpkg-deb objcopy jq; do
    command -v "$needed" >/dev/null || missing "$needed is not installed"
done
unset SOURCE_DATE_EPOCH CKPT_PROGRAM CARGO_TARGET_DIR RUSTFLAGS
commit=$(git -C "$top" rev-parse HEAD)
work=$(mktemp -d "${CKPT_WORK:-/var/tmp}/ckpt-reproducible.XXXXXX")
trap 'rm -rf "$work"' EXIT
# build DIRECTORY TO PART...
build() {
    local tree=$1 to=$2 made
    shift 2
    mkdir -p "$(dirname "$tree")"
    git clone --quiet "$top" "$tree"
    git -C "$tree" checkout --quiet --detach "$commit"
    made=$("$tree/packaging/release.sh" "$@" 2>"$work/log") || {
        tail -n 15 "$work/log" >&2
        die "not built in $tree"
    }
    mv "$tree/$made" "$to"
    rm -rf "$tree"
}
(umask 022 && TZ=UTC LC_ALL=C build "$work/one" "$work/first" "$@")
say "built once"
(umask 077 && TZ=Asia/Tokyo LC_ALL=C.UTF-8 build "$work/another/directory" "$work/second" "$@")
say "built again"
if [ -n "${CKPT_KEEP:-}" ]; then
    mkdir "$CKPT_KEEP"
    cp -r "$work/first" "$work/second" "$CKPT_KEEP"
fi
cat "$work/first/SHA256SUMS"
# Names the files that differ; the list of sums itself would be the first of them.
diff "$work/first/SHA256SUMS" "$work/second/SHA256SUMS" || die "the files above differ"
for file in "$work"/first/*; do
    cmp "$file" "$work/second/$(basename "$file")" || die "$(basename "$file") differs"
done
for file in "$work"/first/*; do
    say "$(basename "$file") has $(stat -c %s "$file") bytes"
    case $file in
    *.deb) dpkg-deb --fsys-tarfile "$file" | tar x -O ./usr/bin/ckpt >"$work/program" ;;
    *.whl) python3 -c 'import sys, zipfile; z = zipfile.ZipFile(sys.argv[1])
for n in z.namelist():
    if n.endswith(("/ckpt", ".so")): sys.stdout.buffer.write(z.read(n))' "$file" >"$work/program" ;;
    *-x86_64 | *-aarch64) cp "$file" "$work/program" ;;
    *) continue ;;
    esac
    for path in "$work" "${CARGO_HOME:-$HOME/.cargo}"; do
        if grep -aqF "$path" "$work/program"; then die "$(basename "$file") names $path"; fi
    done
done
say "two builds in different places have the same bytes"
