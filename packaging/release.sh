#!/usr/bin/env bash
# Builds what a release consists of, and prints the directory that has it, with SHA256SUMS.
#
#   packaging/release.sh [deb] [wheel] [static] [image]      default: all of them
#
# All have one version and the same list of changes. The same tree and tools make the same bytes elsewhere, which
# tests/ecosystem/reproducible.sh tries; docs/inside/decisions.md says of which files it was seen.
# With CKPT_PROGRAM that program is packed into the deb.
# Needs what the other scripts of this directory need; first 90 min on two cores.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
. packaging/tools.sh
parts=("$@")
if [ $# = 0 ]; then
    parts=(deb wheel static image)
fi
version=$(version)
made=target/release-$version
rm -rf "$made"
mkdir -p "$made"
for part in "${parts[@]}"; do
    case $part in
    deb) cp "$(packaging/deb.sh)" "$made/" ;;
    wheel)
        paths=$(packaging/wheel.sh x86_64 aarch64)
        for path in $paths; do
            cp "$path" "$made/"
        done
        ;;
    static)
        paths=$(packaging/static.sh)
        for path in $paths; do
            architecture=${path#target/}
            cp "$path" "$made/ckpt-$version-${architecture%%-*}"
        done
        ;;
    image) cp "$(env -u CKPT_PROGRAM packaging/image.sh)" "$made/" ;;
    *)
        echo "no part $part: deb, wheel, static or image" >&2
        exit 2
        ;;
    esac
done
(cd "$made" && sha256sum -- * >SHA256SUMS)
echo "$made"
