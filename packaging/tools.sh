# Tools that packages are built with, in these versions; installed with the first use.
# shellcheck shell=bash

# tool NAME VERSION [OPTION...]: a subcommand of cargo.
tool() {
    local name=$1 version=$2
    shift 2
    if ! cargo install --list | grep -q "^$name v$version"; then
        # Without the wrapper of same_bytes, which is for what is packed.
        env -u RUSTC_WRAPPER -u CFLAGS -u CARGO_PROFILE_RELEASE_CODEGEN_UNITS cargo install "$name" --version "$version" --locked --force "$@"
    fi
}

# Unoptimised, because they run for seconds and would take minutes more to build.
auditable() { tool cargo-auditable 0.7.7 --debug; }
deb() { tool cargo-deb 3.8.0 --debug; }

# zig: a C compiler for all targets, and the subcommand that uses it, in target/zig.
zig() {
    local env=$top/target/zig
    if [ ! -x "$env/bin/cargo-zigbuild" ]; then
        python3 -m venv "$env"
        "$env/bin/pip" install --quiet cargo-zigbuild==0.24.0 ziglang==0.15.1
    fi
    export PATH="$env/bin:$PATH"
}

# version: prints the version that all packages carry, which is that of the crates, and of the newest changes.
version() {
    local crates changes
    crates=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$top/Cargo.toml")
    changes=$(sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' "$top/CHANGELOG.md" | head -n 1)
    if [ -z "$crates" ] || [ "$crates" != "$changes" ]; then
        echo "Cargo.toml is of version $crates, the newest changes in CHANGELOG.md of $changes: make them the same" >&2
        return 1
    fi
    printf '%s\n' "$crates"
}

# same_version PROGRAM: fails unless the program is of that version, too.
same_version() {
    local wanted is
    wanted=$(version) || return 1
    is=$("$1" --version) || return 1
    if [ "$is" != "ckpt $wanted" ] && [[ "$is" != "ckpt $wanted "* ]]; then
        echo "$1 is $is, not version $wanted: build it from this tree" >&2
        return 1
    fi
}

# stripped FROM TO: copies a program without names of symbols and lines, but with the list of its dependencies.
# By the tool that comes with Rust, which knows all processors.
stripped() {
    local library
    library=$(rustc --print sysroot)/lib
    LD_LIBRARY_PATH=$library "$(rustc --print target-libdir)/../bin/rust-objcopy" \
        --strip-all --keep-section=.dep-v0 "$1" "$2"
}

# copyright: prints the path of a file with the licences of all crates that are linked in. Made once for each
# Cargo.lock: it compares thousands of files with the texts of licences, so the tool is optimised.
copyright() {
    local key made
    key=$(cat "$top/Cargo.lock" "$top"/packaging/{about.toml,copyright.hbs} | sha256sum | cut -c 1-16)
    made=$top/target/copyright-$key
    if [ ! -e "$made" ]; then
        tool cargo-about 0.9.3 --features cli >&2
        # Texts come with the crates, of all platforms that the lock file names; nothing is looked up elsewhere.
        cargo fetch --locked --manifest-path "$top/Cargo.toml" >&2
        mkdir -p "$top/target"
        cargo about generate --frozen --manifest-path "$top/ckpt/Cargo.toml" --config "$top/packaging/about.toml" \
            "$top/packaging/copyright.hbs" --output-file "$made.new" >&2
        mv "$made.new" "$made"
    fi
    printf '%s\n' "$made"
}

# day_of_tree: sets the time that packages give their files, so that the same tree makes the same bytes: that of
# the last commit or, outside a clone, that of the list of changes.
day_of_tree() {
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || stat -c %Y "$top/CHANGELOG.md")}
    export SOURCE_DATE_EPOCH
}

# same_bytes: keeps the machine out of what is built: no path of the tree or of cargo's directory reaches a program,
# and neither the time nor the mask of permissions reaches a package. Crates are compiled in one unit each: with
# several, entries of method tables differed from build to build. Nothing has debugging information, not even before
# it is stripped: that of C and assembler code names directories, and the linker's build id is a hash of it.
same_bytes() {
    umask 022
    day_of_tree
    mkdir -p "$top/target"
    export CKPT_TREE=$top CKPT_SAME_RANDOM=$top/target/same-random.so
    "${CC:-cc}" -shared -fPIC -O2 -o "$CKPT_SAME_RANDOM" "$top/packaging/same-random.c"
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1
    export CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=symbols
    export RUSTC_WRAPPER=$top/packaging/rustc-same-bytes.sh
    export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$top=/ckpt -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo"
}
