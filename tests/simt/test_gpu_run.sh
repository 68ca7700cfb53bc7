#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs all parts of tests/gpu/run at their smallest sizes over the emulated GPU, to test how it compares, times, kills and counts.
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
build=$(readlink -f "${DTRAIN_BUILD:-.}")
[ -x "$build/tests/simt/train_bench_simt" ] || { echo "no $build/tests/simt/train_bench_simt: a C++ compiler and Check build it"; exit 77; }
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dtrain-gpu-run-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
fail() {
	tail -n 40 "$tmp/out/log" 2>/dev/null
	echo "FAILED: $*" >&2
	exit 1
}
cd "$tmp" || exit 1
mkdir t
export TMPDIR=$tmp/t GPU_BENCH_MODES=${GPU_BENCH_MODES:-eager}
"$src/tests/gpu/run" --engine simt --build "$build" --out "$tmp/out" --python "${DTRAIN_TEST_PYTHON:-no-python}" || fail "tests/gpu/run: status $?"
for want in "two ranks give one rank's losses" "one rank killed ends the other" "6 steps in bf16 against the CPU engine" "killed and resumed, bitwise" \
	"operations by events" "matrix products"; do
	grep -q "$want.*| pass |" out/results.md || fail "no word of: $want"
done
! compgen -G "t/*dtrain*" >/dev/null || fail "leftovers: $(ls t)"

# A part that exceeds its time is a failure that says so, and leaves no process running; a part for which no time is left is skipped.
mkdir slow slow/parts
cp "$src"/tests/gpu/*.awk "$src/tests/gpu/lib.sh" "$src/tests/gpu/run" slow/
printf '#!/bin/bash\n. "$(dirname "$0")/../lib.sh"\npass early\nsetsid sleep 4712.5 &\nsleep 60\n' >slow/parts/profile
sed -i 's/profile:600/profile:3/' slow/run
slow/run --engine simt --build "$build" --out "$tmp/slow/out" --only profile >slow/words && fail "a part that hangs: status 0"
grep -q '| profile | profile | fail | cut off after 3 s |' slow/out/results.md || fail "a part that hangs: $(cat slow/out/results.md)"
grep -q '^1 passed, 1 failed, 0 skipped$' slow/words || fail "a part that hangs: $(tail -n 1 slow/words)"
for p in /proc/[0-9]*; do
	[ "$(cat "$p/cmdline" 2>/dev/null | tr '\0' ' ')" != "sleep 4712.5 " ] || fail "a part that hangs leaves processes"
done
slow/run --engine simt --build "$build" --out "$tmp/slow/out" --only profile --minutes 0 | grep -q '^0 passed, 0 failed, 1 skipped$' || fail "no minutes left"

# The table of ncu, from made-up output.
cat >ncu.csv <<'EOF'
==PROF== Profiling
"ID","Kernel Name","Grid Size","dram__bytes.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed","sm__throughput.avg.pct_of_peak_sustained_elapsed"
"","","","byte","%","ns","%","%"
"0","gemm","(2, 66, 1)","1,048,576","12.5","250,000","70.1","72.0"
"1","adamw","(9, 1, 1)","480000000","90.5","110000.5","0","12.0"
"2","adamw","(9, 1, 1)","480000000","90.5","110000.5","0","12.0"
EOF
awk -v most=5 -f "$src/tests/gpu/ncu.awk" ncu.csv >ncu.md || fail "ncu.awk: $(cat ncu.md)"
grep -q '^| `gemm` | 1 | 0.25 | 53.2 % | 0.00 | 12 % | 72 % | 70 % |$' ncu.md && grep -q '^| `adamw` | 2 | 0.22 | 46.8 % | 4.36 | 90 %' ncu.md ||
	fail "ncu.awk: $(cat ncu.md)"
echo "tests/gpu/run over the emulated GPU: all well"
