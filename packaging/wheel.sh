#!/usr/bin/env bash
# Builds the Python wheel, and prints its path.
#
#   packaging/wheel.sh [ARCHITECTURE...]      x86_64 or aarch64; default: this machine's
#   packaging/wheel.sh --debug                for this machine alone, without optimisation
#
# The package with the compiled module for Python 3.9 and newer, the changes (share/doc/ckpt), and the program,
# which `pip install` puts beside `python`. Both run with glibc 2.28 (RHEL 8, Debian 10, Ubuntu 18.10) or newer.
# Needs Rust by rustup, Python 3 with venv, and PyPI for maturin and the C compiler (zig); first 15 min for each on
# two cores. --debug needs a C compiler instead of zig, and the wheel needs this machine's glibc.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
. packaging/tools.sh
glibc=2.28
# stage PROGRAM: puts into the wheel what is not of the package.
stage() {
    rm -rf python/ckpt.data
    mkdir -p python/ckpt.data/{scripts,data/share/doc/ckpt}
    cp CHANGELOG.md python/ckpt.data/data/share/doc/ckpt/
    stripped "$1" python/ckpt.data/scripts/ckpt
    cp LICENSE-MIT LICENSE-APACHE python/
}
# pack OPTION...: builds the module and packs the wheel into target/wheels.
pack() {
    target/maturin/bin/maturin build --locked --manifest-path python/Cargo.toml --out target/wheels "$@"
    rm -rf python/ckpt.data python/LICENSE-MIT python/LICENSE-APACHE
}
{
    version >/dev/null
    same_bytes
    if [ ! -x target/maturin/bin/maturin ]; then
        python3 -m venv target/maturin
        target/maturin/bin/pip install --quiet maturin==1.16.0
    fi
} >&2
if [ "${1:-}" = --debug ]; then
    {
        cargo build --locked -p ckpt
        stage target/debug/ckpt
        pack --profile dev
    } >&2
    ls -t target/wheels/ckpt-*.whl | head -n 1
    exit
fi
architectures=("$@")
if [ $# = 0 ]; then
    architectures=("$(uname -m)")
fi
for architecture in "${architectures[@]}"; do
    target=$architecture-unknown-linux-gnu
    {
        auditable
        zig
        rustup target add "$target"
        CARGO=$(command -v cargo) cargo auditable zigbuild --release --locked -p ckpt --target "$target.$glibc"
        stage "target/$target/release/ckpt"
        pack --release --zig --target "$target" --compatibility "manylinux_${glibc/./_}"
    } >&2
    ls -t target/wheels/ckpt-*_"$architecture".whl | head -n 1
done
