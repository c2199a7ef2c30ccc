#!/usr/bin/env bash
# Tries the Debian package in bookworm and trixie: installs its previous version, uses, upgrades, uses and
# purges it. This version has to restore a checkpoint that the previous one saved, and to keep a changed
# configuration; the purge has to leave only the daemon's data. Then lintian and `systemd-analyze verify`.
#
# Needs root, mmdebstrap, a Debian mirror, crates.io for what packages are built with; 500 MB in CKPT_ROOTS.
# First 25 min on two cores, most of it for the optimised build; then 1 min. CKPT_PROGRAM packs a program that
# is built already.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

suites=(bookworm trixie)

if [ "${1:-}" != --inside ]; then
    CKPT_PACKAGES=$(mktemp -d)
    export CKPT_PACKAGES
    trap 'rm -rf "$CKPT_PACKAGES"' EXIT
    older=$("$top/.ci/older-program") || missing "the previous version: it can't be built from this clone's history"
    newer=$("$top/packaging/deb.sh")
    cp "$top/$newer" "$CKPT_PACKAGES/2-newer.deb"
    say "$newer has $(stat -c %s "$top/$newer") bytes"
    # The previous version never had a package: this makes one from the present package and the older program.
    dpkg-deb --raw-extract "$CKPT_PACKAGES/2-newer.deb" "$CKPT_PACKAGES/older"
    cp "$top/$older" "$CKPT_PACKAGES/older/usr/bin/ckpt"
    sed -i 's/^Version: .*/Version: 0.0.1-1/' "$CKPT_PACKAGES/older/DEBIAN/control"
    (cd "$CKPT_PACKAGES/older" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
    dpkg-deb --root-owner-group --build "$CKPT_PACKAGES/older" "$CKPT_PACKAGES/1-older.deb" >/dev/null
    for suite in "${suites[@]}"; do
        made=$(root "installed-$suite" "$suite" systemd,lintian,procps)
        inside "$made" installed.sh "$suite"
    done
    say "all of it passed"
    exit
fi

suite=$2
export DEBIAN_FRONTEND=noninteractive CKPT_GRID=/work/grid/grid.toml CKPT_STATE_DIR=/work/state
# Without /ckpt, which has the program as it was built and comes first in the path.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir /work
files() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /work -o -path /packages -o -path /ckpt -o -path /run/systemd -o -path '/var/lib/dpkg' -o -path '/var/cache' -o -path '/var/log' \) -prune -o -print | sort; }
install() { dpkg --install --force-confold "$1" >/work/dpkg.log 2>&1 || { cat /work/dpkg.log; die "$1 can't be installed in $suite"; }; }

files >/work/before
install /packages/1-older.deb
older=$(sha256sum </usr/bin/ckpt)
head -c 20000000 /dev/urandom >/work/image
ckpt grid up --dir /work/grid --hosts 5 >/work/up
ckpt save --job 42 /work/image >/work/saved
ckpt grid down --dir /work/grid >/work/down
echo 'CKPT_OPTIONS=--capacity 5GiB' >>/etc/ckpt/ckpt-store.env
mkdir -p /var/lib/private/ckpt-store && echo data >/var/lib/private/ckpt-store/shard
say "$suite: the previous version saved"

install /packages/2-newer.deb
[ "$older" != "$(sha256sum </usr/bin/ckpt)" ] || die "both packages have the same program"
newer=$(ckpt --version)
[ "$(ckpt-store --version | cut -d' ' -f2-)" = "$(cut -d' ' -f2- <<<"$newer")" ] || die "ckpt-store is another version"
grep -q 5GiB /etc/ckpt/ckpt-store.env || die "the upgrade took the changed configuration"
[ "$(cat /var/lib/private/ckpt-store/shard)" = data ] || die "the upgrade changed data"
ckpt grid up --dir /work/grid --hosts 5 >/work/up
ckpt restore --job 42 -o /work/back >/work/restored
cmp /work/image /work/back || die "another image came back"
ckpt save --job 42 /work/image >/work/saved
ckpt grid down --dir /work/grid >/work/down
say "$suite: $newer restored what the previous version had saved"

/usr/libexec/ckpt/ckpt_plugin -classad | grep -q '^SupportedMethods = "ckpt"' || die "the plug-in does not say what it is for"
[ "$(readlink /usr/bin/ckpt-store)" = ckpt ] || die "ckpt-store is not a link to the program"
grep -q '^Apache License' /usr/share/doc/ckpt/copyright || die "the copyright of the crates is missing"
gzip -dc /usr/share/doc/ckpt/changelog.gz | grep -q "^## ${newer#ckpt }" || die "the changes of this version are missing"
[ -s /usr/share/man/man1/ckpt-save.1.gz ] || die "a man page is missing"
bash -c '. /usr/share/bash-completion/completions/ckpt && complete -p ckpt' >/work/completion
systemd-analyze verify /usr/lib/systemd/system/ckpt-store.service
say "$suite: names, man pages, completions, unit"
if lintian --fail-on error,warning /packages/2-newer.deb; then say "$suite: lintian found nothing"; else die "lintian"; fi

dpkg --purge ckpt >/work/purged 2>&1 || { cat /work/purged; die "it can't be purged"; }
grep -q "stays" /work/purged || die "nobody says that the data stay"
files >/work/after
left=$(comm -13 /work/before /work/after | grep -v '^/var/lib/private' || true)
[ -z "$left" ] || die "left behind: $left"
[ "$(cat /var/lib/private/ckpt-store/shard)" = data ] || die "the purge took the data"
say "$suite: purged, the data stay"
