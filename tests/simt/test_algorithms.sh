#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The worker chooses the algorithms of matrix products by measurement, and a run that resumes keeps them, and with them its losses to the bit.
simt=$(readlink -f "${DTRAIN_BUILD:-.}")/tests/simt/dtrain-worker-simt
[ -x "$simt" ] || { echo "no $simt: a C++ compiler and Check build it"; exit 77; }
. "$(dirname "$0")/../engine/worker.sh"
worker=$simt
export SIMT_GEMM SIMT_CUBLASLT
line='algorithms of [0-9]* products measured'

# train NAME SEED [LOG]: a run over a library with four algorithms, whose times are a function of SEED.
train() {
	SIMT_GEMM=4:$2
	run "$1" "${3:-$1}" || { cat "$tmp/${3:-$1}.log"; fail "$1 with the times $2"; }
}
# resume NAME SEED: what of the run `whole` comes after its first checkpoint, with these times.
resume() {
	[ -d "$tmp/$1" ] || cp -r "$tmp/whole" "$tmp/$1"
	rm -rf "$tmp/$1/checkpoint-4"
	sed "s|$tmp/whole|$tmp/$1|" "$tmp/whole.json" >"$tmp/$1.json"
	train "$1" "$2"
	grep -q 'resuming from .*/checkpoint-2' "$tmp/$1.log" || { cat "$tmp/$1.log"; fail "$1 does not resume"; }
}
same() { cmp -s <(losses "$tmp/$1") <(losses "$tmp/$2"); }

json whole "$tmp/whole" '"max_steps": 4' '"save_steps": 2'
train whole 1
grep -q "^$line in .*: $tmp/whole/algorithms.json" "$tmp/whole.log" || { cat "$tmp/whole.log"; fail "nothing was measured"; }
[ -s "$tmp/whole/algorithms.json" ] || fail "no file of algorithms"
json again "$tmp/again" '"max_steps": 4'
train again 1
same whole again || fail "the same times, other losses"
json other "$tmp/other" '"max_steps": 4'
train other 2
same whole other && fail "other algorithms have the same bits: this test sees nothing"

resume kept 2
same whole kept || fail "a run that resumes has other losses: $(paste <(losses "$tmp/whole") <(losses "$tmp/kept"))"
grep -E "$line|^warning: (there is no )?$tmp" "$tmp/kept.log" && fail "a run that resumes has measured"

cp -r "$tmp/whole" "$tmp/lost"
rm "$tmp/lost/algorithms.json"
resume lost 2
grep -q "^warning: there is no $tmp/lost/algorithms.json: .* may differ in the last bits" "$tmp/lost.log" || { cat "$tmp/lost.log"; fail "a lost file"; }
same whole lost && fail "without the file a run has the same losses"

cp -r "$tmp/whole" "$tmp/newer"
SIMT_CUBLASLT=130100
resume newer 2
grep -q "^warning: $tmp/newer/algorithms.json has no algorithms for SIMT emulator.*cuBLASLt 13.1.0: .* may differ" "$tmp/newer.log" || { cat "$tmp/newer.log"; fail "another version"; }
SIMT_CUBLASLT=
grep -q '13.0.0' "$tmp/newer/algorithms.json" && grep -q '13.1.0' "$tmp/newer/algorithms.json" || fail "both versions have algorithms"

cp -r "$tmp/whole" "$tmp/damaged"
printf '\x00' | dd of="$tmp/damaged/algorithms.json" bs=1 seek=$((RANDOM % 400 + 20)) conv=notrunc status=none
resume damaged 2
grep -q "^warning: $tmp/damaged/algorithms.json.*the algorithms of products are measured again" "$tmp/damaged.log" || { cat "$tmp/damaged.log"; fail "a damaged file"; }
python3 -m json.tool "$tmp/damaged/algorithms.json" >"$tmp/json" || fail "the damaged file is not replaced"

# pair NAME SEED0 SEED1 [VERSION1]: two ranks, each with times of its own
pair() {
	local r pid0 pid1
	json "$1" "$tmp/$1" '"max_steps": 3'
	sed -i 's|"train": {|"parallel": {"strategy": "ddp", "timeout": 120}, &|' "$tmp/$1.json"
	mkdir "$tmp/meet-$1"
	for r in 0 1; do
		env -i PATH="$PATH" OMP_NUM_THREADS=1 DTRAIN_ATTEMPT=1 RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r DTRAIN_DEVICE=0 DTRAIN_RENDEZVOUS_DIR="$tmp/meet-$1" DTRAIN_CONFIG="$tmp/$1.json" \
			SIMT_GEMM="4:$([ $r = 0 ] && echo "$2" || echo "$3")" SIMT_CUBLASLT="$([ $r = 1 ] && echo "${4:-130000}" || echo 130000)" "$worker" >"$tmp/$1-$r.log" 2>&1 &
		pids="$pids $!"
		eval "pid$r=$!"
	done
	wait "$pid0" && wait "$pid1" || { cat "$tmp/$1-0.log" "$tmp/$1-1.log"; fail "$1: two ranks"; }
}
pair both 1 1
pair first 1 2
same both first || fail "a rank has not taken the algorithms of rank 0"
[ "$(cat "$tmp/first-0.log" "$tmp/first-1.log" | grep -c "$line")" = 1 ] || { cat "$tmp/first-0.log" "$tmp/first-1.log"; fail "measured by one rank"; }
# Of two kinds of devices each has algorithms of its own, in one file.
pair mixed 1 2 130100
same both mixed && fail "a device of another kind has the algorithms of rank 0"
grep -q '13.0.0' "$tmp/mixed/algorithms.json" && grep -q '13.1.0' "$tmp/mixed/algorithms.json" || fail "both kinds have algorithms"

# Heads that Hopper's kernels of attention take: processes of their own check them, and the choices are kept.
mkdir "$tmp/heads"
cp "$src/tests/engine/bytes"/* "$tmp/heads"
sed -i 's/"head_dim": 16/"head_dim": 64/; s/"num_attention_heads": 4/"num_attention_heads": 2/; s/"num_key_value_heads": 2/"num_key_value_heads": 1/' "$tmp/heads/config.json"
wide() { sed -i "s|$src/tests/engine/bytes|$tmp/heads|; s|\"precision\": \"fp32\"|\"precision\": \"bf16\"|" "$tmp/$1.json"; }
json wide "$tmp/wide" '"max_steps": 4' '"save_steps": 2'
wide wide
train wide 1
for pass in forward backward; do
	grep -q "^the $pass pass of attention has the [a-zA-Z]* kernel on SIMT emulator" "$tmp/wide.log" || { cat "$tmp/wide.log"; fail "the kernels of attention were not compared"; }
done
[ "$(grep -c '"kernel": "[a-z]*"' "$tmp/wide/algorithms.json")" = 2 ] || fail "the kernels of attention are not in the file"
cp -r "$tmp/wide" "$tmp/wider"
rm -rf "$tmp/wider/checkpoint-4"
sed "s|$tmp/wide\"|$tmp/wider\"|" "$tmp/wide.json" >"$tmp/wider.json"
train wider 1
grep -q 'resuming from .*/checkpoint-2' "$tmp/wider.log" || { cat "$tmp/wider.log"; fail "wider does not resume"; }
same wide wider || fail "a run that resumes has another kernel of attention"
grep 'of attention has' "$tmp/wider.log" && fail "a run that resumes has compared kernels of attention"
"$simt" --check-attention 0 64 64 2 >"$tmp/check.log" && fail "a check of nothing passes"
grep -q 'nine numbers' "$tmp/check.log" || fail "what a check needs is not said"
echo "algorithms are kept"
