#!/usr/bin/env bash
# Builds the Debian package for this machine's architecture, and prints its path.
#
#   packaging/deb.sh [OPTION OF CARGO-DEB...]
#
# The program under all its names, the unit, man pages, completions for three shells, and the copyright of
# all crates that are linked in. The program names its dependencies in a section of its own, which
# `cargo audit bin` and other scanners read. With CKPT_PROGRAM that program is packed, and nothing is built.
# Files have the time of the last commit.
# Needs Rust, a C compiler, dpkg-dev; first 15 min on two cores.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
. packaging/tools.sh
version=$(version)
same_bytes
{
    if [ -z "${CKPT_PROGRAM:-}" ]; then
        auditable
        cargo auditable build --release --locked -p ckpt
        CKPT_PROGRAM=target/release/ckpt
    fi
    same_version "$CKPT_PROGRAM"
    deb
    stage=target/deb
    rm -rf "$stage"
    mkdir -p "$stage"/{bin,links,plugins,man,bash,zsh,fish}
    cp "$CKPT_PROGRAM" "$stage/bin/ckpt"
    objcopy --strip-all "$stage/bin/ckpt"
    ln -s ckpt "$stage/links/ckpt-store"
    for name in ckpt_plugin ckpt_cleanup; do
        ln -s ../../bin/ckpt "$stage/plugins/$name"
    done
    for name in ckpt ckpt-store; do
        as() { (exec -a "$name" "$stage/bin/ckpt" "$@"); }
        as man --dir "$stage/man"
        as completions bash >"$stage/bash/$name"
        as completions zsh >"$stage/zsh/_$name"
        as completions fish >"$stage/fish/$name.fish"
    done
    # In Debian's form; what changed stands in the file that it names.
    day=$(LC_ALL=C date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")
    printf 'ckpt (%s-1) unstable; urgency=medium\n\n  * Changes: /usr/share/doc/ckpt/changelog.gz\n\n -- %s  %s\n' \
        "$version" "$(sed -n 's/^maintainer = "\(.*\)"/\1/p' ckpt/Cargo.toml)" "$day" >"$stage/changelog"
    # Debian has the text of Apache-2.0 in a place of its own, and wants it nowhere else.
    tr -d '\r' <"$(copyright)" | awk '/^----------/ { skipped = 0 }
        /^ *Apache License$/ { skipped = 1; print "The text is in /usr/share/common-licenses/Apache-2.0."; print "" }
        !skipped { print }' >"$stage/copyright"
    gzip --no-name --best <CHANGELOG.md >"$stage/changelog.gz"
    printf '%s\n' '# The package is not for the archive of Debian, so no bug asks for it.' \
        'ckpt: initial-upload-closes-no-bugs' >"$stage/lintian"
    cargo deb --no-build --no-strip --locked -p ckpt --output target/debian/ "$@"
} >&2
ls -t target/debian/ckpt_*.deb | head -n 1
