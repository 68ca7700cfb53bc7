#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tasks of preferences on two ranks: the losses and rewards of one rank under each strategy (dpo; the others under zero3), with an adapter,
# in lower precision and with recomputation; resumed bitwise; and with a reference model of its own.
. "$(dirname "$0")/worker.sh"
steps=6
pairs=$src/etc/examples/preferences.json
sed -E 's/"instruction"/"prompt"/; s/"chosen"/"completion"/; s/, "rejected": .*\}/, "label": true}/' "$pairs" >"$tmp/labels.json"
sed -E -i '0~2s/true\}/false}/' "$tmp/labels.json"

# prefer NAME TASK ROWS [TRAIN] [GROUPS]: writes $tmp/NAME.json; ROWS in a micro-batch, TRAIN and GROUPS are members that are added.
prefer() {
	local data=$pairs
	[ "$2" != kto ] || data=$tmp/labels.json
	cat >"$tmp/$1.json" <<-EOF
		{"task": "$2", "directory": "$tmp", "model": {${model:-"\"init\": \"$src/tests/engine/bytes\""}},
		 "data": {"path": ["$data"], "template": "default", "max_length": 96, "eval_fraction": ${held:-2}, "cache_dir": "$tmp/cache"},
		 "train": {"max_steps": $steps, "micro_batch": $3, "accumulation": 2, "learning_rate": 0.001, "schedule": "constant",
		           "precision": "${precision:-fp32}"${4:+, $4}},
		 "output": {"dir": "$tmp/$1", "log_steps": 1, "save_steps": 3, "keep": 0, "resume": "${resume:-never}"}${5:+, $5}}
	EOF
}
pair() { # NAME: a run of two ranks
	rm -rf "$tmp/meet"
	mkdir "$tmp/meet"
	for rank in 0 1; do
		env -i PATH="$PATH" OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive DTRAIN_ATTEMPT="${attempt:-1}" RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank \
			LOCAL_WORLD_SIZE=2 DTRAIN_RENDEZVOUS_DIR="$tmp/meet" DTRAIN_CONFIG="$tmp/$1.json" "$worker" >"$tmp/$1.log.$rank" 2>&1 &
		pids="$pids $!"
		eval "rank$rank=$!"
	done
	# shellcheck disable=SC2154 # set above
	wait "$rank0" && wait "$rank1" || { cat "$tmp/$1.log".?; fail "two ranks: $1"; }
}
one() { run "$1" || { cat "$tmp/$1.log"; fail "one rank: $1"; }; }
# values NAME METRIC: one line for each step
values() { grep -o "\"$2\":[^,}]*" "$tmp/$1/metrics.jsonl" | cut -d: -f2-; }
# near A B TOLERANCE: the losses, norms of gradients and rewards of two runs
near() {
	local metric metrics="loss eval_loss grad_norm"
	case $1 in *reward*) metrics="$metrics margin mean_reward" ;; *) metrics="$metrics rewards/chosen logps/rejected" ;; esac
	for metric in $metrics; do
		paste -d ' ' <(values "$1" "$metric") <(values "$2" "$metric") |
			awk -v tolerance="$3" -v what="$1 and $2: $metric" '
				{ if ($1 == "null" && $2 == "null") next; d = $1 - $2; if (d < 0) d = -d; s = $2 < 0 ? -$2 : $2; if (s < 1) s = 1; d /= s
				  if (!(d <= tolerance) || $2 == "") { print what " differ by " d " in line " NR; bad = 1 } n++ }
				END { if (n == 0) print what ": none"; exit bad || n == 0 }' || fail "$1 and $2 differ"
	done
}

for task in dpo kto reward; do
	prefer one-$task $task 2
	one one-$task
	# How a unit is sharded does not depend on the loss: one task tries all strategies.
	strategies=zero3 precisions=bf16
	[ $task != dpo ] || strategies="ddp zero1 zero2 zero3 hybrid" precisions="bf16 fp16"
	for strategy in $strategies; do
		prefer "$strategy-$task" $task 1 "" "\"parallel\": {\"strategy\": \"$strategy\"}"
		pair "$strategy-$task"
		near one-$task "$strategy-$task" 5e-5
	done
	# Killed after step 3.
	resume=must prefer cut $task 1 "" '"parallel": {"strategy": "zero3"}'
	rm -rf "$tmp/cut"
	cp -r "$tmp/zero3-$task" "$tmp/cut"
	rm -rf "$tmp/cut/checkpoint-$steps" "$tmp/cut/model.safetensors"
	attempt=2 pair cut
	grep -q "^resuming from .*checkpoint-3" "$tmp/cut.log.0" || { cat "$tmp/cut.log.0"; fail "did not resume"; }
	diff <(losses "$tmp/zero3-$task") <(losses "$tmp/cut") || fail "$task: other losses after resuming"
	cmp "$tmp/zero3-$task/model.safetensors" "$tmp/cut/model.safetensors" || fail "$task: other weights after resuming"
	# Recomputed, the same bits.
	prefer again-$task $task 2 '"recompute": "full"'
	one again-$task
	cmp "$tmp/one-$task/model.safetensors" "$tmp/again-$task/model.safetensors" || fail "$task: other weights with recompute"
	# An adapter: the frozen model is the reference.
	model="\"path\": \"$tmp/one-dpo\""
	lora='"lora": {"rank": 4, "target": ["all"]}'
	prefer lora-$task $task 2 "" "$lora"
	one lora-$task
	prefer lora3-$task $task 1 "" "$lora, \"parallel\": {\"strategy\": \"zero3\"}"
	pair lora3-$task
	near lora-$task lora3-$task 5e-5
	# Exactly, where each row is a micro-batch of its own: products round a row by its place among others, which is another one when the
	# reference is computed.
	[ $task = reward ] || [ "$(values lora3-$task rewards/chosen | head -1)" = 0.0 ] || fail "$task: the adapter's reference is not its base"
	model=
	for precision in $precisions; do
		prefer "$precision-$task" $task 2
		one "$precision-$task"
		prefer "${precision}3-$task" $task 1 "" '"parallel": {"strategy": "zero3"}'
		pair "${precision}3-$task"
		near "$precision-$task" "${precision}3-$task" 5e-2
		near one-$task "$precision-$task" 1e-1
	done
	precision=
done

# A short last step of three rows, of which one rank has one: with a vocabulary of this size ddp sends the rows of the embedding's gradients by
# themselves.
mkdir "$tmp/wide"
cp "$src"/tests/engine/bytes/* "$tmp/wide/"
sed -i -E 's/("vocab_size": )[0-9]+/\11024/' "$tmp/wide/config.json"
held=5 model="\"init\": \"$tmp/wide\""
prefer one-wide kto 2
one one-wide
prefer ddp-wide kto 1 "" '"parallel": {"strategy": "ddp"}'
pair ddp-wide
near one-wide ddp-wide 5e-5
held='' model=''

# A reference of its own: what a reward is, is beta times the difference of two models, each of which was measured alone.
for run in a:one-dpo:one-dpo b:again-kto:again-kto ab:one-dpo:again-kto; do
	IFS=: read -r name model reference <<<"$run"
	model="\"path\": \"$tmp/$model\"" prefer "own-$name" dpo 2 '"shuffle": false' "\"preference\": {\"beta\": 0.5, \"reference\": \"$tmp/$reference\"}"
	one "own-$name"
done
for kind in chosen rejected; do
	paste -d ' ' <(values own-a logps/$kind) <(values own-b logps/$kind) <(values own-ab rewards/$kind) | head -1 |
		awk '{ d = 0.5 * ($1 - $2) - $3; exit !(d < 1e-4 && d > -1e-4 && $3 != 0) }' || fail "the reward of the $kind answer is not by preference.reference"
done
echo "preferences: two ranks as one, under each strategy; resumed bitwise"
