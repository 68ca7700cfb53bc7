#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tasks of preferences: a run that is stopped goes on bitwise, with the log-probabilities of its reference in the output directory or computed
# again; metrics have TRL's names; data without a rejected answer is refused.
. "$(dirname "$0")/worker.sh"
steps=12

# prefer NAME TASK PREFERENCE DATA: writes $tmp/NAME.json.
prefer() {
	cat >"$tmp/$1.json" <<-EOF
		{"task": "$2", "directory": "$tmp", "model": {"init": "$src/tests/engine/bytes"},
		 "data": {"path": ["$4"], "template": "default", "max_length": 96, "eval_fraction": 2, "cache_dir": "$tmp/cache"},
		 "train": {"max_steps": $steps, "micro_batch": 2, "accumulation": 2, "learning_rate": 0.003, "precision": "${precision:-fp32}"},
		 "preference": {$3}, "output": {"dir": "$tmp/$1", "log_steps": 1, "save_steps": 3, "keep": 0}}
	EOF
}
pairs=$src/etc/examples/preferences.json
sed -E 's/"instruction"/"prompt"/; s/"chosen"/"completion"/; s/, "rejected": .*\}/, "label": true}/' "$pairs" >"$tmp/labels.json"
sed -E -i '0~2s/true\}/false}/' "$tmp/labels.json"

for task in dpo orpo simpo kto; do
	data=$pairs
	[ $task != kto ] || data=$tmp/labels.json
	prefer whole-$task $task '' "$data"
	run whole-$task || { cat "$tmp/whole-$task.log"; fail "$task"; }
	for name in loss rewards/chosen rewards/margins logps/rejected eval_loss eval_rewards/margins; do
		grep -q "\"$name\":" "$tmp/whole-$task/metrics.jsonl" || fail "$task: no $name in metrics.jsonl"
	done
done
# Stopped after step 6, as if it had been killed then.
for precision in fp32 bf16; do
	prefer "whole-$precision" dpo '' "$pairs"
	run "whole-$precision" || { cat "$tmp/whole-$precision.log"; fail "$precision"; }
	for kept in file nothing; do
		rm -rf "$tmp/cut"
		prefer cut dpo '' "$pairs"
		cp -r "$tmp/whole-$precision" "$tmp/cut"
		rm -rf "$tmp/cut"/checkpoint-9 "$tmp/cut/checkpoint-$steps" "$tmp/cut/model.safetensors"
		[ $kept = file ] || rm "$tmp/cut/reference.logps"
		run cut || { cat "$tmp/cut.log"; fail "$precision: resuming"; }
		grep -q "^resuming from .*checkpoint-6" "$tmp/cut.log" || { cat "$tmp/cut.log"; fail "did not resume"; }
		[ $kept = file ] || grep -q 'computed again' "$tmp/cut.log" || { cat "$tmp/cut.log"; fail "the reference was not computed again"; }
		diff <(losses "$tmp/whole-$precision") <(losses "$tmp/cut") || fail "$precision, with $kept: other losses after resuming"
		cmp "$tmp/whole-$precision/model.safetensors" "$tmp/cut/model.safetensors" || fail "$precision, with $kept: other weights"
	done
done
prefer wrong dpo '' "$src/etc/examples/instructions.json"
run wrong && fail "instructions were taken for pairs"
grep -q "column 'chosen' is missing" "$tmp/wrong.log" || { cat "$tmp/wrong.log"; fail "not what is missing"; }
sed 's/false}/true}/' "$tmp/labels.json" >"$tmp/all-good.json"
steps=1
prefer good kto '' "$tmp/all-good.json"
run good || { cat "$tmp/good.log"; fail "labels of one kind"; }
grep -q "the label of each example is true" "$tmp/good.log" || { cat "$tmp/good.log"; fail "no word of labels of one kind"; }
echo "preferences: all tasks run, and dpo resumes bitwise"
