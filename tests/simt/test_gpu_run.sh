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
cp "$src"/tests/gpu/*.awk "$src/tests/gpu/expected.tsv" "$src/tests/gpu/lib.sh" "$src/tests/gpu/run" slow/
printf '#!/bin/bash\n. "$(dirname "$0")/../lib.sh"\npass early\nsetsid sleep 4712.5 &\nsleep 60\n' >slow/parts/profile
sed -i 's/profile:600/profile:3/' slow/run
slow/run --engine simt --build "$build" --out "$tmp/slow/out" --only profile >slow/words && fail "a part that hangs: status 0"
grep -q '| profile | profile | fail | cut off after 3 s; --continue goes on with it |' slow/out/results.md || fail "a part that hangs: $(cat slow/out/results.md)"
grep -q '^1 passed, 1 failed, 0 skipped$' slow/words || fail "a part that hangs: $(tail -n 1 slow/words)"
for p in /proc/[0-9]*; do
	[ "$(cat "$p/cmdline" 2>/dev/null | tr '\0' ' ')" != "sleep 4712.5 " ] || fail "a part that hangs leaves processes"
done
slow/run --engine simt --build "$build" --out "$tmp/slow/out" --only profile --minutes 0 | grep -q '^0 passed, 0 failed, 1 skipped$' || fail "no minutes left"

# A part that was ended goes on from its completed steps, also on another machine, which has nothing but kept.tar; its failure is forgotten.
cat >slow/parts/profile <<'EOF'
#!/bin/bash
. "$(dirname "$0")/../lib.sh"
first() { echo ran >>"$DTRAIN_STEPS"; pass first "one result"; note "a note"; }
second() { [ -n "${DTRAIN_SECOND:-}" ] || sleep 60; pass second; }
step first first
step second second
EOF
export DTRAIN_STEPS=$tmp/steps
slow/run --engine simt --build "$build" --out "$tmp/slow/one" --only profile >/dev/null && fail "a part that is ended: status 0"
DTRAIN_SECOND=yes slow/run --engine simt --build "$build" --out "$tmp/slow/two" --only profile --continue --kept "$tmp/slow/one/kept.tar" >slow/words ||
	fail "a part that goes on: $(cat slow/words)"
[ "$(cat "$DTRAIN_STEPS")" = ran ] || fail "a completed step was repeated"
grep -q '^2 passed, 0 failed, 0 skipped$' slow/words && grep -q '^a note$' slow/two/results.md || fail "a part that goes on: $(cat slow/two/results.md)"

# The summary: a figure that is written again counts once; what is expected of a step of an H200.
printf 'p\tfigure\tspeed\t1\t2\t0.5\t>= 1\tMISSED\np\tfigure\tspeed\t3\t2\t1.5\t>= 1\tholds\np\tskip\tpeer\tno time is left\n' >made.tsv
awk -f "$src/tests/gpu/summary.awk" made.tsv >made.txt
grep -q '^1 passed, 0 failed, 1 skipped$' made.txt && grep -q '^skip  p: peer: no time is left$' made.txt || fail "summary.awk: $(cat made.txt)"
awk -f "$src/tests/gpu/table.awk" made.tsv | grep -q '^1 passed, 0 failed, 1 skipped$' || fail "table.awk: $(awk -f "$src/tests/gpu/table.awk" made.tsv)"
{
	printf 'profile\tgemm 1x2x3 NT bf16 to bf16\t4\t100.5\t1\t1\nprofile\tgemm 3x2x1 TN bf16 to fp32\t4\t50\t1\t1\n'
	printf 'profile\trope\t1\t2\t0\t1\nprofile total\tall operations\t160\t152.5\t0\t0\n'
} >made.prof
awk -f "$src/tests/gpu/expected.awk" "$src/tests/gpu/expected.tsv" made.prof >made.times
grep -q '^matrix products	150.50	<= 190$' made.times && grep -q '^norms, rotation and SwiGLU	2.00	<= 17$' made.times &&
	grep -q '^the whole step	160.00	<= 300$' made.times || fail "expected.awk: $(cat made.times)"

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
