#!/usr/bin/env bash
# For RUSTC_WRAPPER: paths below the tree and below cargo's directory are the same on all machines. It is a
# wrapper and not RUSTFLAGS because cargo names the directories of a build after a hash of those.
exec "$@" --remap-path-prefix "$CKPT_TREE=/ckpt" --remap-path-prefix "${CARGO_HOME:-$HOME/.cargo}=/cargo"
