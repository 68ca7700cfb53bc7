#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs all parts of tests/gpu/run at their smallest sizes over the emulated GPU, to test how it compares, times, kills and counts. Those that
# check results run at the same time; that the results are the same in sequence is tested with made-up parts.
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
"$src/tests/gpu/run" --engine simt --build "$build" --out "$tmp/out" --together --python "${DTRAIN_TEST_PYTHON:-no-python}" || fail "tests/gpu/run: status $?"
for want in "two ranks give one rank's losses" "one rank killed ends the other" "6 steps in bf16 against the CPU engine" "killed and resumed, bitwise" \
	"operations by events" "matrix products" ${DTRAIN_TEST_PYTHON:+"learning from rewards, beside transformers"}; do
	grep -q "$want.*| pass |" out/results.md || fail "no word of: $want"
done
for want in ops families ranks curve fp8 resume rewards sanitize bench-tiny profile; do
	grep -q -P "^$want\t" out/results.tsv || fail "no result of the part $want"
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

# The checks at the same time, each of which waits until all of them run; then the measurements alone, after a short first one where the time is
# limited; the results are those of the parts in sequence. A part that fails, one that is killed, and one that is ended hide no other.
mkdir both both/parts
cp slow/*.awk slow/expected.tsv slow/lib.sh both/
sed 's/ops:600 families:600 ranks:600 /ops:600 families:600 ranks:3 /' "$src/tests/gpu/run" >both/run
chmod +x both/run
cat >both/parts/ops <<'EOF'
#!/bin/bash
. "$(dirname "$0")/../lib.sh"
echo "$part $GPU_FIRST$GPU_COMPILE" >>"$DTRAIN_STEPS"
: >"$DTRAIN_STEPS.$part"
case $part in
bench-* | profile | rewards) ;;
*) while [ -n "$DTRAIN_AT_ONCE" ] && [ "$(ls "$DTRAIN_STEPS".* | wc -l)" -lt 8 ]; do sleep 0.02; done ;;
esac
[ -z "$GPU_COMPILE" ] || exit 0
results() { pass first; fail second "words of $part"; }
step results results
note "a note of $part"
case $part in
families) kill -9 $$ ;;
ranks) setsid sleep 4712.5 & sleep 60 ;;
resume) exit 3 ;;
esac
exit 0
EOF
for part in families ranks curve fp8 resume rewards sanitize bench profile; do cp both/parts/ops "both/parts/$part"; done
DTRAIN_STEPS=$tmp/alone DTRAIN_AT_ONCE='' both/run --engine simt --build "$build" --out "$tmp/both/one" >both/one.words && fail "parts that fail: status 0"
DTRAIN_STEPS=$tmp/beside DTRAIN_AT_ONCE=yes both/run --engine simt --build "$build" --out "$tmp/both/two" --together --minutes 9.5 >both/two.words &&
	fail "parts that fail at the same time: status 0"
for one in one two; do sort "both/$one/results.tsv" >"both/$one.sorted"; done
diff both/one.sorted both/two.sorted || fail "--together has other results"
[ "$(grep -c -P '\tfail\t' both/two.sorted)" = 13 ] || fail "--together: not the failures of every part: $(cat both/two.sorted)"
for want in "ranks: ranks: cut off after 3 s" "families: families: killed by a signal" "resume: resume: status 3" "sanitize: second: words of sanitize"; do
	grep -q "^FAIL  $want" both/two.words || fail "--together does not say: $want: $(cat both/two.words)"
done
[ "$(sed -n '9,$p' beside | tr '\n' ' ')" = "bench-tiny yes profile yes bench-tiny  profile  rewards  " ] && grep -q -x 'compile-tiny yes' beside ||
	fail "--together: another order: $(cat beside)"
[ "$(cut -f1 both/two/results.tsv | uniq | wc -l)" = 10 ] || fail "--together: the results of a part are not in one place"

# A run that is ended has the results of the parts that were running.
cat >both/parts/ops <<'EOF'
#!/bin/bash
. "$(dirname "$0")/../lib.sh"
pass "before the end"
kill -TERM "$(cat "$DTRAIN_STEPS")"
sleep 60
EOF
DTRAIN_STEPS=$tmp/ended sh -c 'echo $$ >"$DTRAIN_STEPS"; exec both/run "$@"' sh --engine simt --build "$build" --out "$tmp/both/three" --together --only ops >both/words &&
	fail "a run that is ended: status 0"
grep -q 'before the end.*| pass |' both/three/results.md || fail "a run that is ended: $(cat both/three/results.md)"

# The programs of a kit that was made with --built are used where they are for this GPU and start here; otherwise the sources are compiled.
made() { # CAPABILITY COMMAND: a kit of such programs; dtrain is a script of this command
	local kit=made/gpu-kit f
	rm -rf made
	mkdir -p "$kit/dtrain" "$kit/headers" "$kit/built/tests/gpu"
	echo made >"$kit/version"
	: >"$kit/modules"
	echo "$1" >"$kit/built/arch"
	for f in dtraind dtrain-worker-cpu; do cp /bin/true "$kit/built/$f"; done
	printf '#!/bin/sh\n%s\n' "$2" >"$kit/built/dtrain"
	printf '#!/bin/sh\necho "error: no GPU in this test" >&2\nexit 1\n' >"$kit/built/tests/gpu/train_bench_cuda"
	chmod +x "$kit/built/dtrain" "$kit"/built/tests/gpu/*
	tar -C made -cf made.tar gpu-kit
}
mkdir bin
printf '#!/bin/sh\ncase $* in *compute_cap*) echo 9.0 ;; *) exit 1 ;; esac\n' >bin/nvidia-smi
chmod +x bin/nvidia-smi
made_run() { PATH=$tmp/bin:$PATH "$src/tests/gpu/run" --kit made.tar --dir made-dir --out made-out --python no-python --only build,ops >made.words; }
made 90 'exit 0'
made_run
[ $? = 77 ] && grep -q '| build | build for sm_90 | pass | nothing is compiled' made-out/results.md && grep -q '^skip  ops: ops: no GPU: no GPU in this test$' made.words ||
	fail "a built kit: $(cat made.words)"
made 80 'exit 0'
made_run
grep -q '^programs: compiled here.*they are for sm_80, the GPU is sm_90$' made.words && grep -q '^FAIL  build: configure' made.words ||
	fail "a kit for another GPU: $(cat made.words)"
made 90 'echo "GLIBC_2.99 not found"; exit 1'
made_run
grep -q '^programs: compiled here.*dtrain does not start: GLIBC_2.99 not found$' made.words || fail "a kit whose programs do not start: $(cat made.words)"

# The summary names every failure with the words that say what failed, has room for the first figures, and has never more than 12,000 characters.
{
	for i in $(seq 60); do printf 'ops\tfail\ttest %s\tstatus 1: 50%%: Checks: 9 … test_device.c:%s:F:core: Assertion failed: %0900d\n' "$i" "$i" 0; done
	for i in $(seq 90); do printf 'bench\tfigure\tspeed %s\t1\t2\t0.5\t>= 1\tMISSED\nbench\tnote\t%0200d\n' "$i" 0; done
} >made.tsv
awk -f "$src/tests/gpu/summary.awk" made.tsv >made.txt
[ "$(wc -c <made.txt)" -le 12000 ] && [ "$(grep -c '^FAIL  ops: test .*test_device.c:[0-9]*:F:core' made.txt)" = 60 ] && grep -q '^speed 20 ' made.txt &&
	[ "$(tail -n 1 made.txt)" = "0 passed, 150 failed, 0 skipped" ] || fail "a long summary of $(wc -c <made.txt) bytes: $(cat made.txt)"
# The words of a failed test are its first failed assertions.
printf 'Running suite(s): x\n50%%: Checks: 2, Failures: 1, Errors: 0\nx.c:7:F:core:one:0: Assertion a == b failed\nx.c:8:P:core:two:0: Passed\n' >made.log
words=$(GPU_ENGINE=simt GPU_SRC=. GPU_BUILD=. GPU_WORK=$tmp/words GPU_KEPT=$tmp/words bash -c '. "$1/tests/gpu/lib.sh"; first_failures made.log' sh "$src" 2>/dev/null)
[ "$words" = "50%: Checks: 2, Failures: 1, Errors: 0 … x.c:7:F:core:one:0: Assertion a == b failed" ] || fail "the words of a failure: $words"

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
