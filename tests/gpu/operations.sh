# SPDX-License-Identifier: Apache-2.0
# The time of each operation of a step of the Llama-3.2-1B shape, by events of the stream. The parts bench and profile source it behind lib.sh.
# shellcheck disable=SC2154 # set by lib.sh
what="the Llama-3.2-1B shape, bf16, T=4096, 4 rows"
keys="config=$here/shapes/llama-3.2-1b.json length=4096 micro_batch=4 documents=1 rows=8 precision=bf16"
if [ -n "$tiny" ]; then what="the tiny shape" keys="config=$here/shapes/tiny.json length=32 micro_batch=2 documents=1 rows=4 precision=bf16"; fi
case $(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 2>/dev/null) in # dense bf16 and memory, by the data sheets
*H200*) tf=989.4 tb=4.8 ;;
*H100*HBM3* | *H100*SXM*) tf=989.4 tb=3.35 ;;
*A100*) tf=312 tb=2.0 ;;
*B200*) tf=2250 tb=8.0 ;;
*) tf=0 tb=0 ;;
esac
# shellcheck disable=SC2317 # called by step
operations() {
	local line kind ms expected
	# shellcheck disable=SC2086 # $keys is a list of KEY=VALUE
	timeout -k 5 "$(left 120)" "$(program train_bench)" $keys steps=3 warm=3 profile=1 >"$work/profile.txt" 2>"$work/profile.err"
	cat "$work/profile.txt" "$work/profile.err"
	if awk -v peak_tf="$tf" -v peak_tb="$tb" -v most=8 -f "$here/roofline.awk" "$work/profile.txt" >"$work/profile.md"; then
		pass "operations by events" "$(sed -n 3p "$work/profile.md")"
		note "The costliest operations of a step of $what, by events; floating-point operations and bytes are what the operation needs at least:"
		while read -r line; do note "$line"; done <"$work/profile.md"
	else
		fail "operations by events" "$(tail -n 1 "$work/profile.err")"
		return
	fi
	# What each kind of operations takes, beside what is expected of an H200.
	while IFS='	' read -r kind ms expected; do
		[ "$tb" = 4.8 ] || expected=
		figure "$kind, ms of a step" "$ms" "" "" "$expected"
	done < <(awk -f "$here/expected.awk" "$here/expected.tsv" "$work/profile.txt")
}
