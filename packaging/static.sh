#!/usr/bin/env bash
# Builds the program so that it needs no library of the machine, and prints the paths.
#
#   packaging/static.sh [TARGET...]      default: x86_64-unknown-linux-musl aarch64-unknown-linux-musl
#
# Needs Rust by rustup, Python 3 with venv, and PyPI for the C compiler (zig); 15 min for each on two cores.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
. packaging/tools.sh
targets=("$@")
if [ $# = 0 ]; then
    targets=(x86_64-unknown-linux-musl aarch64-unknown-linux-musl)
fi
{
    same_bytes
    auditable
    zig
    rustup target add "${targets[@]}"
} >&2
for target in "${targets[@]}"; do
    CARGO=$(command -v cargo) cargo auditable zigbuild --release --locked -p ckpt --target "$target" >&2
    # Its symbols and lines are five times the program, and those of the C library name directories of this machine.
    stripped "target/$target/release/ckpt" "target/$target/ckpt"
    echo "target/$target/ckpt"
done
