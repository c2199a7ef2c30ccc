#!/usr/bin/env bash
# Runs fuzz targets for this many CPU seconds each, one after the other, and prints how many inputs each ran.
#
#   fuzz/run.sh SECONDS [TARGET...]      without targets: all of them
#
# Needs a nightly toolchain and a C++ compiler. Builds with the address sanitizer and coverage as cargo-fuzz
# does, but does not need cargo-fuzz. Inputs that reach new code are kept in fuzz/corpus/TARGET. An input that
# breaks a promise is written to fuzz/artifacts/TARGET, and the script ends with status 1.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:?CPU seconds for each target}
shift
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "CPU seconds: a whole number from 1 on, not $seconds" >&2
  exit 2
fi
if [ $# -gt 0 ]; then
  targets=("$@")
else
  mapfile -t targets < <(cd fuzz_targets && ls -- *.rs | sed 's/\.rs$//')
fi
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
coverage='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares'
export RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Ccodegen-units=1 -Cdebug-assertions ${coverage//$'\n'/ }"
for target in "${targets[@]}"; do
  bins+=(--bin "$target")
done
cargo +nightly build --release --target "$host" "${bins[@]}"
ticks=$(getconf CLK_TCK)
failed=0
for target in "${targets[@]}"; do
  mkdir -p "corpus/$target" "artifacts/$target"
  log=$(mktemp)
  "target/$host/release/$target" "corpus/$target" "seeds/$target" \
    -artifact_prefix="artifacts/$target/" -max_len=65536 -timeout=60 -rss_limit_mb=4096 \
    -print_final_stats=1 >"$log" 2>&1 &
  pid=$!
  used=0
  while [ "$used" -lt "$seconds" ] && kill -0 "$pid" 2>/dev/null; do
    sleep 2
    # User and system time are the 14th and 15th field; the name before them is in brackets.
    read -r _ _ _ _ _ _ _ _ _ _ _ user system _ < <(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) || continue
    used=$(((user + system) / ticks))
  done
  # The fuzzer prints its statistics when it is interrupted, which it may not notice the first time.
  for _ in {1..10}; do
    kill -INT "$pid" 2>/dev/null || break
    sleep 1
  done
  kill -KILL "$pid" 2>/dev/null || true
  wait "$pid" || true
  executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  if grep -q '^SUMMARY' "$log"; then
    failed=1
    echo "$target: broken after $used CPU seconds"
    tail -n 40 "$log"
  else
    echo "$target: ${executed:-?} executions in $used CPU seconds"
  fi
  rm -f "$log"
done
exit "$failed"
