#!/usr/bin/env bash
# Tries the present program beside an earlier one in the same grids: clients and daemons of both kinds save,
# restore, repair, remove, fence and take the authority's list. `.ci/older-program` names the earlier commit.
#
#   tests/ecosystem/mixed-grid.sh
#
# Needs this repository's history and crates.io. First 10 min on two cores, most of it for the earlier program;
# then 3 min. CKPT_OLDER_PROGRAM names an earlier program that is built already.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cd "$top"
if [ -z "${CKPT_OLDER_PROGRAM:-}" ]; then
    older=$(.ci/older-program) || missing "an earlier program: it can't be built from this clone's history"
    # The script's path is relative unless CARGO_TARGET_DIR is absolute.
    CKPT_OLDER_PROGRAM=$(realpath "$older")
fi
export CKPT_OLDER_PROGRAM
say "$("$CKPT_OLDER_PROGRAM" --version) beside the present program"
cargo test --locked -p tests --test it -- --ignored upgrade::
say "all of it passed"
