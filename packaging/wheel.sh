#!/usr/bin/env bash
# Builds the Python wheel for this machine's architecture, and prints its path.
#
#   packaging/wheel.sh [--debug]
#
# The package with the compiled module for Python 3.9 and newer, the changes (share/doc/ckpt), and the program,
# which `pip install` puts beside `python`. With CKPT_PROGRAM that program is packed. --debug builds without optimisation.
# Needs Rust, a C compiler, Python 3 with venv, and PyPI for maturin; first 20 min on two cores.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
. packaging/tools.sh
version >/dev/null
same_bytes
profile=release
folder=release
if [ "${1:-}" = --debug ]; then
    profile=dev
    folder=debug
fi
{
    env=target/maturin
    if [ ! -x "$env/bin/maturin" ]; then
        python3 -m venv "$env"
        "$env/bin/pip" install --quiet maturin==1.16.0
    fi
    if [ -z "${CKPT_PROGRAM:-}" ]; then
        cargo build --locked --profile "$profile" -p ckpt
        CKPT_PROGRAM=target/$folder/ckpt
    fi
    same_version "$CKPT_PROGRAM"
    rm -rf python/ckpt.data
    mkdir -p python/ckpt.data/{scripts,data/share/doc/ckpt}
    cp CHANGELOG.md python/ckpt.data/data/share/doc/ckpt/
    cp "$CKPT_PROGRAM" python/ckpt.data/scripts/ckpt
    objcopy --strip-all python/ckpt.data/scripts/ckpt
    cp LICENSE-MIT LICENSE-APACHE python/
    "$env/bin/maturin" build --locked --profile "$profile" --manifest-path python/Cargo.toml \
        --out target/wheels
    rm -rf python/ckpt.data python/LICENSE-MIT python/LICENSE-APACHE
} >&2
ls -t target/wheels/ckpt-*.whl | head -n 1
