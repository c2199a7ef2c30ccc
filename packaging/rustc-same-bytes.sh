#!/usr/bin/env bash
# For RUSTC_WRAPPER: paths below the tree and below cargo's directory are the same on all machines, and hash maps
# of macros have the same order. It is a wrapper and not RUSTFLAGS because cargo names the directories of a build
# after a hash of those.
LD_PRELOAD=$CKPT_SAME_RANDOM exec "$@" \
    --remap-path-prefix "$CKPT_TREE=/ckpt" --remap-path-prefix "${CARGO_HOME:-$HOME/.cargo}=/cargo"
