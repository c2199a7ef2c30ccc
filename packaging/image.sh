#!/usr/bin/env bash
# Builds a container image that has the program alone, and prints the path of its archive.
#
#   packaging/image.sh [ARCHITECTURE]      x86_64 (default) or aarch64
#
# The archive is in the layout of OCI's image specification 1.1: `podman load -i` and `docker load -i` (from 25 on)
# take it. It is written here rather than by a builder because a builder needs a daemon or root, and dates the
# files of the image.
# Needs what packaging/static.sh needs, and jq. With CKPT_PROGRAM that program is packed, and nothing is built.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
. packaging/tools.sh
architecture=${1:-x86_64}
case $architecture in
x86_64) oci=amd64 ;;
aarch64) oci=arm64 ;;
*)
    echo "no image for $architecture: x86_64 or aarch64" >&2
    exit 2
    ;;
esac
command -v jq >/dev/null || {
    echo "jq is missing: apt-get install jq" >&2
    exit 1
}
version=$(version)
same_bytes
program=${CKPT_PROGRAM:-$(packaging/static.sh "$architecture-unknown-linux-musl")}
# A program for other processors can't be asked.
if [ "$architecture" = "$(uname -m)" ]; then
    same_version "$program"
fi
if readelf --program-headers "$program" | grep -q INTERP; then
    echo "$program needs libraries, which the image does not have: build it with packaging/static.sh" >&2
    exit 1
fi

stage=target/image
rm -rf "$stage"
mkdir -p "$stage"/root/{tmp,root,usr/bin,usr/share/doc/ckpt} "$stage"/layout/blobs/sha256
stripped "$program" "$stage/root/usr/bin/ckpt"
ln -s ckpt "$stage/root/usr/bin/ckpt-store"
cp CHANGELOG.md "$stage/root/usr/share/doc/ckpt/"
cp "$(copyright)" "$stage/root/usr/share/doc/ckpt/copyright"
chmod 1777 "$stage/root/tmp"
chmod 700 "$stage/root/root"

# The same names, times, owners and order on all machines.
same_tar() {
    tar --create --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner "$@"
}
same_tar --directory "$stage/root" --file "$stage/layer.tar" root tmp usr
gzip --no-name --best --keep "$stage/layer.tar"

# blob FILE MEDIA-TYPE: stores the file under its hash, and prints its descriptor.
blob() {
    local hash
    hash=$(sha256sum <"$1" | cut -d' ' -f1)
    cp "$1" "$stage/layout/blobs/sha256/$hash"
    jq --null-input --compact-output --arg type "$2" --arg digest "sha256:$hash" --argjson size "$(stat -c %s "$1")" \
        '{mediaType: $type, digest: $digest, size: $size}'
}
type=application/vnd.oci.image
created=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
layer=$(blob "$stage/layer.tar.gz" "$type.layer.v1.tar+gzip")
jq --null-input --compact-output --arg created "$created" --arg architecture "$oci" --arg version "$version" \
    --arg diff "sha256:$(sha256sum <"$stage/layer.tar" | cut -d' ' -f1)" '{
        created: $created, architecture: $architecture, os: "linux",
        config: {
            Env: ["PATH=/usr/bin", "HOME=/root"], Entrypoint: ["/usr/bin/ckpt"], Cmd: ["--help"],
            Labels: {
                "org.opencontainers.image.title": "ckpt",
                "org.opencontainers.image.description": "Checkpoints of jobs on machines that can be taken away",
                "org.opencontainers.image.version": $version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0"
            }
        },
        rootfs: {type: "layers", diff_ids: [$diff]},
        history: [{created: $created, created_by: "packaging/image.sh"}]
    }' >"$stage/config.json"
config=$(blob "$stage/config.json" "$type.config.v1+json")
jq --null-input --compact-output --arg type "$type.manifest.v1+json" --argjson config "$config" --argjson layer "$layer" \
    '{schemaVersion: 2, mediaType: $type, config: $config, layers: [$layer]}' >"$stage/manifest.json"
manifest=$(blob "$stage/manifest.json" "$type.manifest.v1+json")
jq --null-input --compact-output --argjson manifest "$manifest" --arg name "ckpt:$version" '{
        schemaVersion: 2,
        manifests: [$manifest + {annotations: {"org.opencontainers.image.ref.name": $name}}]
    }' >"$stage/layout/index.json"
echo '{"imageLayoutVersion":"1.0.0"}' >"$stage/layout/oci-layout"
archive=target/image/ckpt-$version-$oci.tar
same_tar --directory "$stage/layout" --file "$archive" blobs index.json oci-layout
rm -rf "$stage/root" "$stage/layout" "$stage"/layer.tar* "$stage"/*.json
echo "$archive"
