#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that share their sequences have the losses of one rank that has them alone, to 1e-5. Stopped and resumed they have their own, bitwise;
# and one rank goes on where they were.
. "$(dirname "$0")/worker.sh"
steps=20
odd='s|"max_length": 64|"max_length": 63|'
shared() { # NAME RANKS MICRO_BATCH PARALLEL
	json "$1" "$tmp/$1" "\"max_steps\": $steps, \"accumulation\": 2, \"micro_batch\": $3" '"save_steps": 10' '"eval_fraction": 0.1'
	sed -i "$odd" "$tmp/$1.json"
	more "$1" "\"resources\": {\"devices_per_node\": $2}, \"parallel\": {$4}"
}
evaluated() { losses "$tmp/$1" | sed -nE 's/.*"eval_loss":([^,}]*).*/\1/p'; }
same_evaluation() { # A B
	paste -d ' ' <(evaluated "$1") <(evaluated "$2") | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5) bad = 1; n++ } END { exit bad || n != 2 || $1 == "" }' || fail "$2: not the evaluations of $1"
}
shared one 1 2 '"strategy": "ddp"'
run one || { cat "$tmp/one.log"; fail "one rank"; }
shared two 2 2 '"strategy": "ddp", "sequence_degree": 2'
all_ranks two 2 || { cat "$tmp"/two-?.log; fail "two ranks"; }
near one two || fail "two ranks that share sequences have other losses"
same_evaluation one two

# A micro-batch of 63 tokens is no multiple of the ranks.
shared four 4 1 '"strategy": "zero3", "sequence_degree": 2'
all_ranks four 4 || { cat "$tmp"/four-?.log; fail "four ranks"; }
near one four || fail "two pairs of ranks have other losses"
same_evaluation one four

# What is behind the first checkpoint is lost.
for name in again alone; do
	cp -r "$tmp/two" "$tmp/$name"
	rm -r "$tmp/$name"/checkpoint-20 "$tmp/$name"/model.safetensors 2>/dev/null
	ls -d "$tmp/$name"/checkpoint-10 >/dev/null || fail "there is no checkpoint"
done
attempt=2
shared again 2 2 '"strategy": "ddp", "sequence_degree": 2'
all_ranks again 2 || { cat "$tmp"/again-?.log; fail "two ranks, resumed"; }
grep -q '^resuming from .*checkpoint-10' "$tmp/again-0.log" || { cat "$tmp/again-0.log"; fail "not resumed"; }
same_run two again
shared alone 1 2 '"strategy": "ddp"'
run alone || { cat "$tmp/alone.log"; fail "one rank, resumed"; }
grep -q '^resuming from .*checkpoint-10' "$tmp/alone.log" || { cat "$tmp/alone.log"; fail "not resumed by one rank"; }
near one alone || fail "one rank that goes on has other losses"

# Losses of more than single tokens of the data: with a teacher, which is what has been trained here, and noise; and of a mixture of experts, with
# the loss that balances them.
mkdir "$tmp/experts"
cp "$src"/tests/engine/bytes/tokenizer*.json "$tmp/experts"
sed 's|"num_key_value_heads": 2|"num_key_value_heads": 4|; s|"qwen3"|"qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32|' "$src/tests/engine/bytes/config.json" >"$tmp/experts/config.json"
for name in taught balanced; do
	many=2
	[ $name = taught ] || many=4
	for ranks in 1 $many; do
		shared "$name-$ranks" "$ranks" 1 "\"strategy\": \"ddp\", \"sequence_degree\": $ranks"
		case $name in
		taught) sed -i 's|"train": {|"distillation": {"teacher": "'"$tmp"'/one", "weight": 0.5}, &"neftune_alpha": 5, |' "$tmp/$name-$ranks.json" ;;
		# Of 61 tokens, to which three are added.
		*) sed -i 's|"init": "[^"]*"|"init": "'"$tmp"'/experts"|; s|"train": {|&"router_loss": 0.1, |; s|"max_length": 63|"max_length": 61|' "$tmp/$name-$ranks.json" ;;
		esac
		all_ranks "$name-$ranks" "$ranks" || { cat "$tmp/$name-$ranks"-?.log; fail "$name: $ranks ranks"; }
	done
	near "$name-1" "$name-$many" || fail "$name: other losses"
	same_evaluation "$name-1" "$name-$many"
done

# The model has four heads, and two of keys and values.
shared heads 4 2 '"strategy": "ddp", "sequence_degree": 4'
! all_ranks heads 4 || fail "four ranks share two heads of keys"
grep -q '^error: .*parallel.sequence_degree = 4: the model has 4 heads, and 2 of keys and values; expected a divisor of both, such as 2' "$tmp/heads-0.log" ||
	{ cat "$tmp/heads-0.log"; fail "another error"; }
echo "ranks that share sequences: the losses of one rank, and resumed the same bits"
