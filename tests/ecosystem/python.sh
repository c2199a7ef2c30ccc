#!/usr/bin/env bash
# The Python wheel, installed by pip: its tests with fsspec's own for file systems, numpy, pandas and PyTorch
# (distributed checkpoints by 1 and 4 processes, one of them killed), the blocks of docs/use/recipes/python.md, and
# the module under each other Python that is here. Says how long files take beside a local directory and S3, and DCP
# with 1 GiB beside a local directory.
#
# Needs Python 3.9 or newer with venv, PyPI, Rust, a C compiler; 6 GB of disk for PyTorch, which brings CUDA,
# and 10 GB more for 1 GiB of state. First 20 min on two cores; then 6 min. CKPT_WHEEL tries a wheel that is
# built already, CKPT_PYTHON_ENV names the directory of the environment (default: target/python-env), and with
# CKPT_NO_TORCH=1 PyTorch is left out.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 9))' || missing "Python 3.9 with venv is not here"
wheel=${CKPT_WHEEL:-$top/$(cd "$top" && packaging/wheel.sh)}
say "$(basename "$wheel") has $(stat -c %s "$wheel") bytes"
env=${CKPT_PYTHON_ENV:-$top/target/python-env}
[ -x "$env/bin/python" ] || python3 -m venv "$env"
export PATH="$env/bin:$PATH" PYTHONDONTWRITEBYTECODE=1
unset PYTHONPATH
pip install --quiet pytest numpy pandas fsspec || missing "PyPI can't be reached"
# The recipe's line, with the wheel that is there.
eval "$(block python.md install | sed "s|\"\$(packaging/wheel.sh)\"|--quiet --force-reinstall $wheel|")"
untried=()
if [ -n "${CKPT_NO_TORCH:-}" ] || ! pip install --quiet torch; then
    untried+=("PyTorch: left out, or it can't be installed")
fi

# The wheel's own program, in the version of the crates.
[ "$(command -v ckpt)" = "$env/bin/ckpt" ] || die "the wheel has no program"
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$top/Cargo.toml")
for name in ckpt ckpt-store; do
    [[ "$($name --version)" = "$name $version"* ]] || die "$name says $($name --version), not $version"
done
[ "$(pip show ckpt | sed -n 's/^Version: //p')" = "$version" ] || die "the wheel is of another version"
cmp "$top/CHANGELOG.md" "$env/share/doc/ckpt/CHANGELOG.md" || die "the wheel has other changes"
say "installed, version $version"

export CKPT_PROGRAM=$env/bin/ckpt
python -m pytest -q -p no:cacheprovider --rootdir "$top/python/tests" "$top/python/tests"
say "the tests passed"

work=$(mktemp -d)
trap 'ckpt grid down --dir "$work/grid" >/dev/null; rm -rf "$work"' EXIT
cd "$work"
ckpt grid up --dir grid --hosts 5 >/dev/null
export CKPT_GRID=$work/grid/grid.toml CKPT_STATE_DIR=$work/state
block python.md use >use.py
block python.md background >background.py
block python.md fsspec >fsspec_paths.py
block python.md torch >torch_state.py
for name in use.py background.py fsspec_paths.py; do
    python "$name" || die "the block $name of the recipe"
done
run_block python.md watch
if ((!${#untried[@]})); then
    python torch_state.py || die "the block torch of the recipe"
fi
say "the blocks of the recipe work"

# The same wheel under other Pythons: nothing is built for each of them.
for other in 3.9 3.10 3.12 3.13 3.14; do
    found=
    # A name in the path may be a shim of pyenv for a version that is not chosen.
    for candidate in "python$other" "$HOME"/.pyenv/versions/"$other".*/bin/python; do
        if "$candidate" -c '' 2>/dev/null; then
            found=$candidate
            break
        fi
    done
    if [ -z "$found" ]; then
        untried+=("Python $other: not here")
        continue
    fi
    rm -rf other
    "$found" -m venv other
    other/bin/pip install --quiet "$wheel" pytest fsspec
    other/bin/python -m pytest -q -p no:cacheprovider --rootdir "$top/python/tests" \
        "$top/python/tests/test_ckpt.py" "$top/python/tests/test_background.py" "$top/python/tests/test_fs.py"
    say "Python $other"
done

# The file system beside a local directory and a server of S3 that keeps files in one.
ckpt grid down --dir grid >/dev/null
rm -rf grid
pid=$(ckpt --json grid up --dir grid --hosts 6 | python -c 'import json, sys; print(json.load(sys.stdin)["hosts"][2]["pid"])')
s3=$top/target/s3s/bin/s3s-fs
[ -x "$s3" ] || (cd "$top" && cargo install --quiet s3s-fs --version 0.14.1 --locked --features binary --root target/s3s) || true
mkdir s3 local
url=
if pip install --quiet s3fs && [ -x "$s3" ]; then
    port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$s3" --host 127.0.0.1 --port "$port" --access-key ckpt --secret-key ckpt-secret s3 >s3.log 2>&1 &
    server=$!
    trap 'kill "$server"; ckpt grid down --dir "$work/grid" >/dev/null; rm -rf "$work"' EXIT
    url=http://127.0.0.1:$port
else
    untried+=("S3: s3fs or its server can't be had")
fi
python "$top/python/tests/fs_seconds.py" "$work/local" "$pid" ${url:+"$url"}

if ((!${#untried[@]})) || [[ " ${untried[*]} " != *PyTorch* ]]; then
    ckpt grid down --dir grid >/dev/null
    rm -rf grid
    ckpt grid up --dir grid --hosts 5 >/dev/null
    python "$top/python/tests/dcp_seconds.py" "$work/local"
fi
say "all of it passed"
for what in "${untried[@]}"; do
    printf '!!! NOT TRIED HERE: %s !!!\n' "$what" >&2
done
