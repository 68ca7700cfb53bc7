#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Learning from rewards: completions are drawn from the model's probabilities, and steps are those of TRL's definitions with transformers' models, for every
# loss; two ranks, however they share the model, have the completions and losses of one; a resumed run has the same bits; precisions, adapters and weights in
# 4 bits; held-out prompts are evaluated; the reward rises; a reward program that fails ends the run with its reason. LIKE="NAME…" compares these with transformers, and does nothing else.
task=grpo of_group='"generations": 4, "max_new_tokens": 12' steps=6 saved=
. "$(dirname "$0")/policy.sh"
like dapo llama '' ''
like kl llama '"beta": 0.2, "loss": "grpo", "temperature": 0.7, "scale": "batch"' '"micro_batch": 4, "accumulation": 2' beta=0.2 loss=grpo temperature=0.7 scale=batch
like again llama '"iterations": 3, "epsilon": 0.02, "epsilon_high": 0.04, "sequences": 3, "scale": "none"' '' iterations=3 low=0.02 high=0.04 scale=none
like sequences llama '"truncation_penalty": 0.5, "iterations": 2, "epsilon": 0.001, "level": "sequence", "loss": "dr_grpo", "max_new_tokens": 40, "mask_truncated": true' '' iterations=2 low=0.001 high=0.001 level=sequence loss=dr_grpo max_new_tokens=40 mask=1 penalty=0.5
like cispo gemma2 '"iterations": 2, "loss": "cispo", "epsilon_high": 1.02, "beta": 0.1, "temperature": 0.6' '"recompute": "full"' iterations=2 loss=cispo high=1.02 beta=0.1 temperature=0.6
like scored llama '"reward_model": "reward-model", "scale": "none"' '' scores=1 scale=none
like mini llama '"iterations": 2, "mini_batches": 3, "beta": 0.1, "scale": "batch", "epsilon": 0.1' '"micro_batch": 3, "max_steps": 12' iterations=2 mini=3 beta=0.1 scale=batch low=0.1 high=0.1 generations=4
like experts qwen3_moe '"top_k": 5, "generations": 8' '"micro_batch": 3, "accumulation": 8' top_k=5 generations=8
like linear linear '"iterations": 2, "epsilon": 0.02, "epsilon_high": 0.04' '' iterations=2 low=0.02 high=0.04
all_alike

# One rank, and two that hold the model in any way: the same completions, the same losses.
own() { # NAME TRAIN GROUPS: of the model llama, on five prompts, of which the last set has one: then one of two ranks has none
	policy "$1" llama '"iterations": 2, "beta": 0.1' "\"accumulation\": 8, \"micro_batch\": 1${2:+, $2}"
	sed -i 's|"max_length": 96|&, "max_samples": 5|' "$tmp/$1.json"
	[ -z "${3:-}" ] || more "$1" "$3"
}
own one
run one || { cat "$tmp/one.log"; fail "one rank"; }
for s in ddp zero2 zero3; do
	own $s '"accumulation": 4' "\"parallel\": {\"strategy\": \"$s\"}"
	pair $s || { cat "$tmp/$s-0.log" "$tmp/$s-1.log"; fail "$s"; }
	same_completions one $s
	near_policy one $s
done
# Saved between two sets of completions; what a run that was killed after the first of them leaves is resumed. Some completions of each set are written down.
own saved '"max_steps": 6'
sed -i 's|"save_steps": 0|"save_steps": 2|; s|"generations"|"log_completions": 3, &|' "$tmp/saved.json"
written() { # NAME PER-SET: the first of each set, of what was asked
	jq -c '{prompt, completion, answer, finished, held_out, row, reward, index}' "$tmp/$1.asked" | jq -s -c '.[] | select(.index < '"$2"') | del(.index)'
}
run saved || { cat "$tmp/saved.log"; fail "with checkpoints"; }
diff <(jq -c 'del(.step)' "$tmp/saved-out/completions.jsonl") <(written saved 3) || fail "completions.jsonl has not what the program was asked for"
[ "$(jq -s -c 'map(.step)' "$tmp/saved-out/completions.jsonl")" = "[1,1,1,3,3,3,5,5,5]" ] || fail "the steps of completions.jsonl: $(cat "$tmp/saved-out/completions.jsonl")"
cp "$tmp/saved-out/completions.jsonl" "$tmp/completions-once"
rm -r "$tmp/saved-out/checkpoint-6" "$tmp/saved-out/checkpoint-4" "$tmp/saved-out/model.safetensors"
attempt=2 run saved || { cat "$tmp/saved.log"; fail "resumed"; }
grep -q '^resuming from .*checkpoint-2' "$tmp/saved.log" || fail "not resumed"
same_run one-out saved-out
cmp "$tmp/completions-once" "$tmp/saved-out/completions.jsonl" || fail "resumed: other lines of completions.jsonl"
# Fewer at a time, and weights from the host, change nothing.
own waves '"recompute": "full"' '"parallel": {"offload": "all"}'
sed -i 's|"generations"|"sequences": 3, &|' "$tmp/waves.json"
run waves || { cat "$tmp/waves.log"; fail "in waves, with offload"; }
same_completions one waves
same_run one-out waves-out
# Columns of the data come with the completions, and change nothing else.
jq -c '. + {level: input_line_number, tags: [null, "t"]}' "$tmp/prompts.jsonl" >"$tmp/levels.jsonl"
own columns
sed -i 's|"prompts.jsonl"|"levels.jsonl"|; s|"generations"|"columns": ["tags", "level"], "log_completions": 1, &|' "$tmp/columns.json"
run columns || { cat "$tmp/columns.log"; fail "with columns"; }
same_run one-out columns-out
same_completions one columns
[ "$(jq -s -c 'map([.columns.level == .row + 1, .columns.tags]) | unique' "$tmp/columns.asked")" = '[[true,[null,"t"]]]' ] || fail "the columns: $(head -n 3 "$tmp/columns.asked")"
[ "$(jq -s -c 'map(.columns.tags) | unique' "$tmp/columns-out/completions.jsonl")" = '[[null,"t"]]' ] || fail "the columns of completions.jsonl"
# Parts of rewards are reported by their names, and change nothing else; on two ranks they have to be the same.
own parts
sed -i 's|/parts.asked"|&, "even", "end"|; s|"generations"|"log_completions": 2, &|' "$tmp/parts.json"
run parts || { cat "$tmp/parts.log"; fail "with parts of rewards"; }
same_completions one parts
diff <(losses "$tmp/one-out") <(losses "$tmp/parts-out" | sed -E 's|,"rewards/[a-z]*/mean":[^,}]*||g') || fail "parts of rewards: other losses"
losses "$tmp/parts-out" | jq -s -e 'length == 6 and all(((.["rewards/even/mean"] + .["rewards/end/mean"] - .reward) | fabs) < 1e-12 and .["rewards/end/mean"] >= 0.125)' >/dev/null || { losses "$tmp/parts-out"; fail "the means of parts"; }
jq -s -e 'length == 6 and all((.rewards | keys) == ["end", "even"] and (.rewards.even + .rewards.end - .reward | fabs < 1e-12))' "$tmp/parts-out/completions.jsonl" >/dev/null || fail "the parts of completions.jsonl"
own parts-two '"accumulation": 4'
sed -i 's|/parts-two.asked"|&, "even", "end"|' "$tmp/parts-two.json"
pair parts-two || { cat "$tmp/parts-two-0.log" "$tmp/parts-two-1.log"; fail "with parts of rewards, two ranks"; }
[ "$(losses "$tmp/parts-out" | jq -s -c 'map([.["rewards/even/mean"], .["rewards/end/mean"]] | map(. * 1e6 | round))')" = "$(losses "$tmp/parts-two-out" | jq -s -c 'map([.["rewards/even/mean"], .["rewards/end/mean"]] | map(. * 1e6 | round))')" ] || fail "the means of parts, two ranks"
sed 's|"even", "end"|"end", "even"|' "$tmp/parts-two.json" >"$tmp/turned.json"
rm -r "$tmp/parts-two-out"
! pair parts-two turned || fail "ranks with other names"
grep -h -q "^error: step 1: grpo.reward: the program of this rank names the parts of its rewards e[nd ve]*, and that of another rank otherwise" "$tmp/parts-two-0.log" "$tmp/parts-two-1.log" || { cat "$tmp"/parts-two-[01].log; fail "what it says of other names"; }
# A run that is stopped while it waits for rewards does not wait: it saves what was there before, and goes on from there to the same bits.
stopped() { # NAME AT RANKS STEP: by the program of the first rank, in place of a reward
	cp "$tmp/$1.json" "$tmp/$1-whole.json"
	sed -i "s|/$1.asked\"|&, \"--stop-at=$2\"|" "$tmp/$1.json"
	all_ranks "$1" "$3" "$1-whole" && fail "$1: not stopped"
	grep -q "^stopped by Terminated after step $4\$" "$tmp/$1-0.log" || { cat "$tmp/$1-0.log"; fail "$1: where it was stopped"; }
	[ "$4" = 0 ] || [ -e "$tmp/$1-out/checkpoint-$4/dtrain/state.json" ] || fail "$1: not saved"
	attempt=2 all_ranks "$1-whole" "$3" || { cat "$tmp/$1-whole"-*.log; fail "$1: resumed"; }
	[ "$4" = 0 ] || grep -q "^resuming from .*checkpoint-$4\$" "$tmp/$1-whole-0.log" || { cat "$tmp/$1-whole-0.log"; fail "$1: not resumed"; }
}
own stopped
stopped stopped 9 1 2
same_run one-out stopped-out
own stopped-two '"accumulation": 4' '"parallel": {"strategy": "zero3"}'
stopped stopped-two 5 2 2
near_policy one stopped-two
# What save_steps has asked for is on the disk before the end is reported.
own stopped-due
sed -i 's|"save_steps": 0|"save_steps": 2|' "$tmp/stopped-due.json"
stopped stopped-due 9 1 2
tail -n 1 "$tmp/stopped-due-0.log" | grep -q '^stopped' || { cat "$tmp/stopped-due-0.log"; fail "a checkpoint is reported after the end"; }
same_run one-out stopped-due-out
own stopped-first
stopped stopped-first 3 1 0
same_run one-out stopped-first-out
# Held-out prompts have one completion each, also between two steps on the same completions; the training is the same without them.
# They are more than a rank generates for a step, so that an evaluation takes two pieces.
python more "$tmp"
held() { # NAME EVERY GROUPS TRAIN
	own "$1" "\"eval_steps\": $2${4:+, $4}" "$3"
	sed -i 's|"prompts.jsonl"|"more.jsonl"|; s|"max_samples": 5|"eval_fraction": 11|; s|"generations"|"log_completions": 2, "sequences": 3, &|' "$tmp/$1.json"
}
held held-rarely 6
run held-rarely || { cat "$tmp/held-rarely.log"; fail "held-out prompts at the end"; }
held held 1
run held || { cat "$tmp/held.log"; fail "held-out prompts"; }
held held-two 1 '"parallel": {"strategy": "zero3"}' '"accumulation": 4'
pair held-two || { cat "$tmp/held-two-0.log" "$tmp/held-two-1.log"; fail "held-out prompts of two ranks"; }
grep -q '^step 1/6 .* eval reward [0-9.]* reward ' "$tmp/held.log" || { cat "$tmp/held.log"; fail "the log has no reward of held-out prompts"; }
trained() { losses "$tmp/$1" | jq -c 'del(.eval_reward, .eval_reward_std, ."eval_completions/mean_length", ."eval_completions/clipped_ratio")'; }
diff <(trained held-rarely-out) <(trained held-out) && cmp "$tmp/held-rarely-out/model.safetensors" "$tmp/held-out/model.safetensors" || fail "an evaluation changes the training"
# evaluated NAME: of each evaluation, the mean and the deviation of the rewards that the program gave for the prompts, and what it says of the lengths.
evaluated() {
	jq -s -c '[.[] | select(.held_out)] | [range(0; length; 11) as $i | .[$i:$i + 11] | (map(.reward) | add / 11) as $m |
		[$m, ((map((.reward - $m) * (.reward - $m)) | add / 10) | sqrt), (map(.completion_ids | length) | add / 11), (map(select(.finished | not)) | length / 11)]]' "$tmp/$1.asked"
}
reported() { losses "$tmp/$1" | jq -s -c 'map([.eval_reward, .eval_reward_std, ."eval_completions/mean_length", ."eval_completions/clipped_ratio"])'; }
same_numbers() { jq -n -e --argjson a "$1" --argjson b "$2" '[$a, $b | flatten] as [$x, $y] | ($x | length) == 24 and ($y | length) == 24 and all(range(24); ($x[.] - $y[.]) | fabs < 1e-9)' >/dev/null; }
same_numbers "$(evaluated held)" "$(reported held-out)" || fail "held-out prompts: $(reported held-out), not $(evaluated held)"
same_numbers "$(reported held-two-out)" "$(reported held-out)" || fail "held-out prompts of two ranks: $(reported held-two-out), not $(reported held-out)"
[ "$(jq -s -c '[.[] | select(.held_out) | .row] | unique' "$tmp/held.asked")" = "[0,1,2,3,4,5,6,7,8,9,10]" ] || fail "other rows are held out"
# Of a set and of the first piece of an evaluation, which has eight, two each.
diff <(jq -c 'del(.step)' "$tmp/held-out/completions.jsonl") <(jq -c 'select(.count == 8) | {prompt, completion, answer, finished, held_out, row, reward, index}' "$tmp/held.asked" |
	jq -s -c '.[] | select(.index < 2) | del(.index)') || fail "completions.jsonl of held-out prompts"
# A run that is stopped in an evaluation ends that, and then stops behind the last step on the same completions.
held held-stopped 1
stopped held-stopped 12 1 2
diff <(trained held-out) <(trained held-stopped-out) && cmp "$tmp/held-out/model.safetensors" "$tmp/held-stopped-out/model.safetensors" || fail "stopped in an evaluation: other losses"
losses "$tmp/held-stopped-out" | jq -s -e 'map(.eval_reward != null) == [false, false, true, true, true, true]' >/dev/null || fail "stopped in an evaluation: what is reported of it"
held held-stopped-two 1 '"parallel": {"strategy": "zero3"}' '"accumulation": 4'
stopped held-stopped-two 6 2 2
diff <(trained held-two-out) <(trained held-stopped-two-out) || fail "two ranks, stopped in an evaluation: other losses"
# Of steps that are not in the log but for an evaluation or the end, too.
held held-logged 4 '' '"accumulation": 8'
sed -i 's|"log_steps": 1|"log_steps": 10|' "$tmp/held-logged.json"
run held-logged || { cat "$tmp/held-logged.log"; fail "held-out prompts, seldom logged"; }
[ "$(jq -s -c 'map([.step, .held_out]) | unique' "$tmp/held-logged-out/completions.jsonl")" = "[[1,false],[3,false],[4,true],[5,false],[6,true]]" ] ||
	fail "which steps have completions: $(jq -s -c 'map([.step, .held_out]) | unique' "$tmp/held-logged-out/completions.jsonl")"
for precision in bf16 fp16; do
	own $precision
	sed -i 's|"precision": "fp32"|"precision": "'$precision'"|' "$tmp/$precision.json"
	run $precision || { cat "$tmp/$precision.log"; fail "$precision"; }
	# The reference has the weights of the model until the first step, and all ratios are 1 there.
	losses "$tmp/$precision-out" | jq -s -e 'length == 6 and .[0].kl < 1e-9 and .[1].kl > 1e-9 and .[0]["clip_ratio/region_mean"] == 0' >/dev/null || { losses "$tmp/$precision-out"; fail "$precision: its steps"; }
done

# A reward model alone.
own scored-alone
jq '.grpo.reward_model = "reward-model" | del(.grpo.reward) | .data.max_samples = 8 | .data.eval_fraction = 3' "$tmp/scored-alone.json" >"$tmp/alone.json"
run alone || { cat "$tmp/alone.log"; fail "a reward model alone"; }
grep -q '^reward model: qwen3, reward-model$' "$tmp/alone.log" || { cat "$tmp/alone.log"; fail "the log does not name the reward model"; }
losses "$tmp/scored-alone-out" | jq -s -e 'length == 6 and all(.reward != 0 and .reward_std > 0) and .[5].eval_reward != 0 and .[5].eval_reward_std > 0' >/dev/null || fail "a reward model alone: its rewards"

# An adapter that has learnt nothing has no divergence from its model, in 4 bits neither.
own four '"max_steps": 2' '"lora": {"rank": 4, "quantize": "nf4_double"}'
run four || { cat "$tmp/four.log"; fail "adapters, with a reference"; }
losses "$tmp/four-out" | jq -s -e '.[0].kl < 1e-9 and .[1].kl > 1e-9' >/dev/null || { losses "$tmp/four-out"; fail "adapters: the divergence from the reference"; }

# What a run of many steps learns: rewards of nothing but the tokens' ids rise, with adapters on weights in 4 bits, too.
rises() { # NAME GROUPS TRAIN
	policy "$1" llama '"generations": 8, "max_new_tokens": 8' "\"micro_batch\": 16, \"accumulation\": 1, \"max_steps\": 25, \"learning_rate\": $3"
	[ -z "$2" ] || more "$1" "$2"
	run "$1" || { cat "$tmp/$1.log"; fail "$1"; }
	losses "$tmp/$1-out" | jq -r .reward | awk '{ r[NR] = $1 } END { for (i = 1; i <= 5; i++) { a += r[i] / 5; b += r[NR - 5 + i] / 5 } printf "'"$1"': mean reward of the first five steps %.3f, of the last five %.3f\n", a, b; exit !(b > a + 0.1) }' || fail "$1: the reward does not rise"
}
rises whole '' 0.003
rises adapters '"lora": {"rank": 8, "quantize": "nf4"}' 0.01

# A reward program that fails ends the run, whose reason says how.
refused() { # PROGRAM WORDS
	policy no llama ''
	jq --arg p "$1" '.grpo.reward = ["sh", "-c", $p] | .parallel = {timeout: 1}' "$tmp/no.json" >"$tmp/no-2.json"
	mv "$tmp/no-2.json" "$tmp/no.json"
	! run no || fail "$1: a reward"
	grep -q "^error: step 1: grpo.reward: $2" "$tmp/no.log" || { cat "$tmp/no.log"; fail "what it says of $1"; }
}
refused 'exit 3' 'sh has ended with status 3 before the run had'
refused 'read -r x; echo good' 'sh has written "good"; expected a line with a finite number'
refused 'kill -SEGV $$' 'sh was ended by Segmentation fault'
refused 'exec sleep 100' 'sh has given 0 of 8 rewards, and nothing for 1 s'
policy no llama ''
jq '.grpo.reward = ["sh", "-c", "while read -r x; do echo 1; echo 1; done"]' "$tmp/no.json" >"$tmp/no-2.json"
! run no-2 || fail "two rewards for each completion"
grep -q '^error: step [12]: grpo.reward: sh has written more lines than it was given' "$tmp/no-2.log" || { cat "$tmp/no-2.log"; fail "what it says of two rewards"; }
policy no llama '"reward_model": "llama"'
! run no || fail "a model of tokens gives rewards"
grep -q "^error: grpo.reward_model: llama is a model of tokens; one that gives scores is needed" "$tmp/no.log" || { cat "$tmp/no.log"; fail "what it says of a model of tokens"; }
policy no llama ''
jq '.grpo.reward = ["no-such-program"]' "$tmp/no.json" >"$tmp/no-2.json"
! run no-2 || fail "no program, and a reward"
grep -q '^error: grpo.reward: cannot start no-such-program: No such file' "$tmp/no-2.log" || { cat "$tmp/no-2.log"; fail "what it says of no program"; }
echo "grpo: as transformers, ranks, resume, held-out prompts, precisions, adapters, rewards"
