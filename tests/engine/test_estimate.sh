#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What dtrain estimate predicts of memory is what workers take: their plan to the printed digits, their peak of resident memory within 2 % for a plan of
# half a gigabyte. "auto" is the choice of the estimate, the same on all ranks; and what cannot fit is refused before it is allocated, with what would fit.
. "$(dirname "$0")/worker.sh"
dtrain=${DTRAIN_BUILD:-.}/dtrain
[ -x "$dtrain" ] || { echo "no $dtrain"; exit 77; }
export XDG_CACHE_HOME=$tmp/no-cache # rates of another test do not count

# ranks NAME N: starts N ranks, and waits for all of them.
ranks() {
	local r started=()
	mkdir -p "$tmp/meet-$1"
	for ((r = 0; r < $2; r++)); do
		env -i PATH="$PATH" XDG_CACHE_HOME="$XDG_CACHE_HOME" GLIBC_TUNABLES=glibc.malloc.tcache_count=0 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive RANK=$r WORLD_SIZE="$2" LOCAL_RANK=$r LOCAL_WORLD_SIZE="$2" \
			DTRAIN_RENDEZVOUS_DIR="$tmp/meet-$1" DTRAIN_CONFIG="$tmp/$1.json" "$worker" >"$tmp/$1-$r.log" 2>&1 &
		started+=($!)
		pids="$pids $!"
	done
	wait "${started[@]}"
}
# run_file NAME: makes a run file of the worker's configuration.
run_file() {
	jq -r 'to_entries[] | select(.key != "directory") | "\(.key) = " + (if (.value | type) == "object" then "{ " + ([.value | to_entries[] | "\(.key) = \(.value | @json);"] | join(" ")) + " }" else (.value | @json) end) + ";"' \
		"$tmp/$1.json" >"$tmp/$1.conf"
}
# conf NAME HIDDEN LAYERS TRAIN: a model of its own, and the same run as a run file and as a worker's configuration. The rows are packed to max_length.
conf() {
	cat >"$tmp/$1-model.json" <<-EOF
		{"model_type": "llama", "hidden_size": $2, "intermediate_size": $(($2 * 3)), "num_hidden_layers": $3, "num_attention_heads": $(($2 / 32)),
		 "num_key_value_heads": $(($2 / 32)), "vocab_size": 259, "tie_word_embeddings": true}
	EOF
	cat >"$tmp/$1.json" <<-EOF
		{"task": "pretrain", "directory": "$tmp", "model": {"init": "$1-model.json", "tokenizer": "$src/tests/engine/bytes"},
		 "data": {"path": ["$src/LICENSE"], "format": "files", "max_length": 64, "packing": true, "cache_dir": "$tmp/cache"},
		 "train": {"max_steps": 2, $4}, "parallel": {"strategy": "$5"}, "resources": {"threads": 1, "devices_per_node": ${6:-1}},
		 "output": {"dir": "$tmp/$1", "log_steps": 1, "overwrite": true}}
	EOF
	run_file "$1"
}
estimate() { (cd "$tmp" && "$dtrain" estimate --devices "$2xcpu" --json "$1.conf"); }

strategies=(ddp zero1 zero2 zero3 hybrid)
for ((i = 0; i < 4; i++)); do
	n=$((1 + RANDOM % 3)) strategy=${strategies[RANDOM % 5]} precision=fp32
	[ $((RANDOM % 2)) = 0 ] && precision=bf16
	conf "case$i" $((32 * (1 + RANDOM % 8))) $((1 + RANDOM % 4)) \
		"\"micro_batch\": $((1 + RANDOM % 8)), \"accumulation\": $((1 + RANDOM % 2)), \"precision\": \"$precision\", \"recompute\": $([ $((RANDOM % 2)) = 0 ] && echo true || echo false)" "$strategy" "$n"
	# What they save is for other tests.
	ranks "case$i" "$n"
	grep -q "^step 2/2 " "$tmp/case$i-0.log" || { cat "$tmp/case$i"-*.log; fail "case $i"; }
	bytes=$(estimate "case$i" "$n" | jq '.plans[.run].memory.plan')
	has=$(sed -n 's/^model: .*; \(.*\) of memory$/\1/p' "$tmp/case$i-0.log")
	wants=$(cd "$tmp" && "$dtrain" estimate --devices "${n}xcpu" "case$i.conf" | awk '$1 == "plan" { print $2, $3 }')
	[ -n "$has" ] && [ "$has" = "$wants" ] || { cat "$tmp/case$i.json"; fail "case $i: the worker's plan is $has, the estimate $wants ($bytes bytes)"; }
	echo "$strategy, $n ranks, $precision: $has"
done

# Resident memory: a plan that is large beside the program itself; and one that is mostly a teacher.
resident() {
	local peak resident
	ranks "$1" 1 || { cat "$tmp/$1-0.log"; fail "$1"; }
	peak=$(estimate "$1" 1 | jq '.plans[.run].memory.peak')
	resident=$(grep -o '"memory_bytes":[0-9]*' "$tmp/$1/metrics.jsonl" | tail -1 | cut -d: -f2)
	awk -v a="$resident" -v b="$peak" 'BEGIN { d = a / b - 1; printf "resident %d, estimated %d bytes: %+.2f %%\n", a, b, 100 * d; exit !(d < 0.02 && d > -0.02) }' || fail "$1: resident memory"
}
conf large 512 6 '"micro_batch": 8, "precision": "fp32"' ddp
resident large
conf taught 64 2 '"micro_batch": 8, "precision": "fp32"' ddp
jq --arg teacher "$tmp/large" '.distillation = {teacher: $teacher}' "$tmp/taught.json" >"$tmp/with.json" && mv "$tmp/with.json" "$tmp/taught.json"
run_file taught
resident taught

conf auto 64 2 '"micro_batch": 2, "precision": "fp32"' auto 2
ranks auto 2 || { cat "$tmp/auto"-*.log; fail auto; }
choice=$(estimate auto 2 | jq -r ".plans[.choice].strategy")
grep "^strategy: $choice (auto" "$tmp/auto-0.log" || { cat "$tmp/auto-0.log"; fail "auto: the estimate's fastest is $choice"; }

# A run that goes on keeps its strategy, though other rates would choose another; another number of ranks chooses again.
again() { # FILTER N: the configuration of auto, changed, as "again"
	jq "$1" "$tmp/auto.json" >"$tmp/again.json"
	rm -rf "$tmp/meet-again"
	ranks again "$2" || { cat "$tmp/again"-*.log; fail again; }
}
again '.train.max_steps = 2 | .parallel.strategy = "zero2" | .output.save_steps = 2' 2
again '.train.max_steps = 3 | .output.save_steps = 2 | .output.overwrite = false' 2
grep '^strategy: zero2 (auto: as the checkpoint)' "$tmp/again-0.log" || { cat "$tmp/again-0.log"; fail "a resumed run has chosen another strategy"; }
again '.train.max_steps = 4 | .output.save_steps = 2 | .output.overwrite = false' 3
grep '^strategy: .* (auto: the fastest' "$tmp/again-0.log" || { cat "$tmp/again-0.log"; fail "three ranks have not chosen"; }

conf huge 64 2 '"micro_batch": 65536, "precision": "fp32"' ddp
sed -i 's/"max_length": 64/"max_length": 8192/; s/"path": \[[^]]*\]/"path": ["long.txt"]/' "$tmp/huge.json"
for ((i = 0; i < 4; i++)); do cat "$src/LICENSE"; done >"$tmp/long.txt"
if ranks huge 1; then fail "a run that cannot fit has run"; fi
grep -q 'error: a rank would take .*, and its device has' "$tmp/huge-0.log" || { cat "$tmp/huge-0.log"; fail "huge: not refused with what it needs"; }
grep -o 'a rank would take.*' "$tmp/huge-0.log"

# The examples, on devices that are not here.
cd "$src/etc/examples" || exit 1
for f in first-run pretrain; do
	"$dtrain" estimate --devices 2x8xH100-80GB --set model.init=tiny-llama.json "$f.conf" >"$tmp/example" || fail "$f.conf"
	grep -q '^fastest that fits' "$tmp/example" || { cat "$tmp/example"; fail "$f.conf"; }
done
