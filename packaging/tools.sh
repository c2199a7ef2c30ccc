# Tools that packages are built with, in these versions; installed with the first use.
# shellcheck shell=bash

# tool NAME VERSION [OPTION...]: a subcommand of cargo.
tool() {
    local name=$1 version=$2
    shift 2
    if ! cargo install --list | grep -q "^$name v$version"; then
        # Unoptimised: each runs for seconds, and would take minutes more to build.
        cargo install "$name" --version "$version" --locked --debug --force "$@"
    fi
}

auditable() { tool cargo-auditable 0.7.7; }
about() { tool cargo-about 0.9.3 --features cli; }
deb() { tool cargo-deb 3.8.0; }

# zig: a C compiler for all targets, and the subcommand that uses it, in target/zig.
zig() {
    local env=$top/target/zig
    if [ ! -x "$env/bin/cargo-zigbuild" ]; then
        python3 -m venv "$env"
        "$env/bin/pip" install --quiet cargo-zigbuild==0.24.1 ziglang
    fi
    export PATH="$env/bin:$PATH"
}
