#!/usr/bin/env bash
# Runs each fuzz target in build-fuzz/ for FUZZ_SECONDS (60), with files of the repository as seeds. Fails on a finding,
# and keeps its input in build-fuzz/crashes/. Keeps the corpus in build-fuzz/corpus/ for later runs.
# FUZZ_ONLY="rules problem" selects targets.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${FUZZ_SECONDS:-60}
kinds=${FUZZ_ONLY:-text json exported profile figures problem rules names}
for kind in $kinds; do mkdir -p build-fuzz/{corpus,seeds}/"$kind"; done
mkdir -p build-fuzz/crashes
seeds() { # KIND FILE...: copies the existing files
  local kind=$1 file
  shift
  [[ -d build-fuzz/seeds/$kind ]] || return 0
  for file; do [[ ! -f $file ]] || cp "$file" "build-fuzz/seeds/$kind/"; done
}
if [[ -d build-fuzz/seeds/text ]]; then
  i=0
  while IFS= read -r file; do
    sed '/^====/,$d' "$file" >"build-fuzz/seeds/text/$((i++))-$(basename "$file")"
  done < <(find tests/golden tests/passes -name '*.sg' -size -64k | sort)
fi
seeds json tests/golden/fuzz/*.json
seeds exported tests/golden/fuzz/exported/*.json
seeds profile tests/golden/fuzz/profile/*.json
seeds figures profiler/time/devices/*.json profiler/communication/interconnects/*.json
seeds problem tests/golden/fuzz/problem/*.json
seeds rules sharding/rules/*.txt

# Leak detection is off because of allocations of libtorch at startup.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
failed=
for kind in $kinds; do
  if [[ $kind == names ]]; then # written by the Python package
    echo "=== hostile_names.py for $seconds s"
    PYTHONPATH=build/python .venv/bin/python tests/package/hostile_names.py --seconds "$seconds" \
      >build-fuzz/names.log 2>&1 || failed+=" names"
    tail -n 2 build-fuzz/names.log
    continue
  fi
  dictionary=(-dict=tests/fuzz/graph.dict)
  if [[ $kind != text && $kind != json ]]; then # words of the seeds, and quoted keys
    cat build-fuzz/seeds/"$kind"/* | grep -oE '"?[A-Za-z_][A-Za-z0-9_.:]*"?' | sort -u | head -n 600 |
      sed -E 's/"/\\"/g; s/.*/"&"/' >build-fuzz/"$kind".dict
    dictionary=(-dict=build-fuzz/"$kind".dict)
  fi
  echo "=== fuzz_$kind for $seconds s, $(find build-fuzz/seeds/"$kind" -type f | wc -l) seeds"
  build-fuzz/bin/fuzz_"$kind" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=65536 \
    "${dictionary[@]}" -artifact_prefix="build-fuzz/crashes/$kind-" -print_final_stats=1 -verbosity=1 \
    build-fuzz/corpus/"$kind" build-fuzz/seeds/"$kind" >build-fuzz/"$kind".log 2>&1 || failed+=" $kind"
  grep -aE '^(stat::number_of_executed_units|stat::average_exec_per_sec|stat::new_units_added)|ERROR:|runtime error|SUMMARY' \
    build-fuzz/"$kind".log || true
done
if [[ -n $failed ]]; then
  echo "fuzz: findings in$failed; inputs in build-fuzz/crashes/, logs in build-fuzz/*.log" >&2
  exit 1
fi
echo "fuzz: no findings"
