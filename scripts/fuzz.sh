#!/usr/bin/env bash
# Runs the fuzz targets of build-fuzz/, each for FUZZ_SECONDS (60), from the graphs in tests/golden and
# tests/passes. A finding fails and leaves its input in build-fuzz/crashes/. What was found to be interesting stays in
# build-fuzz/corpus/ for the next run.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
mkdir -p build-fuzz/crashes build-fuzz/corpus/{text,json} build-fuzz/seeds/{text,json}
i=0
while IFS= read -r file; do
  sed '/^====/,$d' "$file" >"build-fuzz/seeds/text/$((i++))-$(basename "$file")"
done < <(find tests/golden tests/passes -name '*.sg' -size -64k | sort)
find tests/golden/fuzz -name '*.json' -exec cp {} build-fuzz/seeds/json/ \; 2>/dev/null || true

# libtorch's own allocations at start are not ours to account for.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
failed=
for kind in text json; do
  echo "=== fuzz_$kind for $seconds s, $(find build-fuzz/seeds/$kind -type f | wc -l) seeds"
  build-fuzz/bin/fuzz_$kind -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=65536 \
    -dict=fuzz/graph.dict -artifact_prefix="build-fuzz/crashes/$kind-" -print_final_stats=1 -verbosity=1 \
    build-fuzz/corpus/$kind build-fuzz/seeds/$kind >build-fuzz/$kind.log 2>&1 || failed+=" $kind"
  grep -aE '^(stat::number_of_executed_units|stat::average_exec_per_sec|stat::new_units_added)|ERROR:|runtime error|SUMMARY' \
    build-fuzz/$kind.log || true
done
if [[ -n $failed ]]; then
  echo "fuzz: findings in$failed; inputs in build-fuzz/crashes/, logs in build-fuzz/*.log" >&2
  exit 1
fi
echo "fuzz: no findings"
