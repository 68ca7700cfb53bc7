#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Proximal policy optimization: advantages, losses, values and steps are those of TRL's definitions with transformers' models; two ranks, however they share
# the model, have the completions and losses of one; a resumed run has the same bits, on another number of ranks the same losses; precisions, adapters and
# weights in 4 bits; the reward rises, and the values learn it. LIKE="NAME…" compares these with transformers, and does nothing else.
task=ppo of_group='"max_new_tokens": 12' steps=8 saved='"save_steps": 8'
. "$(dirname "$0")/policy.sh"
like plain llama '' ''
like bounds llama '"epsilon": 0.01, "value_epsilon": 0.02, "value_learning_rate": 0.01, "value_weight": 0.5, "gamma": 0.95, "lambda": 0.8, "temperature": 0.7, "beta": 0.2' \
	'"micro_batch": 3, "accumulation": 2' epsilon=0.01 bound=0.02 value_rate=0.01 weight=0.5 gamma=0.95 lam=0.8 temperature=0.7 beta=0.2
like unbounded gemma2 '"truncation_penalty": 0.5, "beta": 0, "value_epsilon": 0, "generations": 2, "iterations": 2, "mask_truncated": true, "max_new_tokens": 40' '"recompute": "full"' beta=0 bound=0 iterations=2 mask=1 max_new_tokens=40 penalty=0.5
like scored llama '"reward_model": "reward-model", "iterations": 1' '' scores=1 iterations=1
like mini llama '"iterations": 2, "mini_batches": 2, "value_learning_rate": 0.01' '"accumulation": 2' iterations=2 mini=2 value_rate=0.01
like experts qwen3_moe '"value_learning_rate": 0.004' '' value_rate=0.004
all_alike

# One rank, and two that hold the model in any way: the same completions, the same losses. A tied head leaves the value head alone with the last norm.
own() { # NAME TRAIN GROUPS [OUTPUT [MODEL]]: on seven prompts, of which the last set has three: then one of two ranks has fewer
	policy "$1" "${5:-llama}" '"value_learning_rate": 0.01' "\"accumulation\": 4, \"micro_batch\": 1${2:+, $2}" "${4:-}"
	sed -i 's|"max_length": 96|&, "max_samples": 7|' "$tmp/$1.json"
	[ -z "${3:-}" ] || more "$1" "$3"
}
own one
own one-tied '' '' '' tied
for one in one one-tied; do run $one || { cat "$tmp/$one.log"; fail "one rank: $one"; }; done
two() { # NAME ONE GROUPS [MODEL]
	own "$1" '"accumulation": 2' "$3" '' "${4:-}"
	pair "$1" || { cat "$tmp/$1-0.log" "$tmp/$1-1.log"; fail "$1"; }
	near_policy "$2" "$1"
	same_completions "$2" "$1"
}
two ddp one '"parallel": {"strategy": "ddp"}'
two zero2 one '"parallel": {"strategy": "zero2"}'
two zero3 one '"parallel": {"strategy": "zero3", "prefetch": 0}'
two zero3-tied one-tied '"parallel": {"strategy": "zero3", "prefetch": 0, "persist_below": 0}' tied
# Each half of a set has a step of its own; of the last one, a rank has one completion, which is then in both.
for s in ddp zero3; do
	own mini-$s '"accumulation": 1, "max_steps": 16' '"parallel": {"strategy": "'$s'"}'
	sed -i 's|"value_learning_rate"|"mini_batches": 2, &|' "$tmp/mini-$s.json"
	pair mini-$s || { cat "$tmp/mini-$s-0.log" "$tmp/mini-$s-1.log"; fail "mini-batches, $s"; }
done
near_policy mini-ddp mini-zero3 16
same_completions mini-ddp mini-zero3
# Saved between two sets of completions; what a run that was killed after the first of them leaves is resumed.
cut_off() { # NAME [WEIGHTS]: leaves checkpoint-4 alone
	rm -r "$tmp/$1-out/checkpoint-8" "$tmp/$1-out/${2:-model}.safetensors"
	sed -i '/"step":[5-8]/d' "$tmp/$1-out/metrics.jsonl"
}
resumes() { # WEIGHTS TRAIN [GROUPS [OUTPUT [MODEL]]]
	own whole "$2" "${3:-}" "${4:-}" "${5:-}"
	own saved "$2" "${3:-}" "${4:-}" "${5:-}"
	sed -i 's|"save_steps": 0|"save_steps": 4|' "$tmp/saved.json"
	rm -rf "$tmp/whole-out" "$tmp/saved-out"
	run whole && run saved || { cat "$tmp/whole.log" "$tmp/saved.log"; fail "with checkpoints: ${*:2}"; }
	cut_off saved "$1"
	attempt=2 run saved || { cat "$tmp/saved.log"; fail "resumed: ${*:2}"; }
	grep -q '^resuming from .*checkpoint-4' "$tmp/saved.log" || fail "not resumed: ${*:2}"
	diff <(losses "$tmp/whole-out") <(losses "$tmp/saved-out") >/dev/null && cmp "$tmp/whole-out/$1.safetensors" "$tmp/saved-out/$1.safetensors" || fail "resumed: other bits: ${*:2}"
}
resumes model '' '' '"gather": true' tied
resumes model '"precision": "bf16", "master": "none"'
resumes model '"optimizer": "adamw_8bit", "freeze_trainable_layers": 1'
resumes model '"optimizer": "muon"'
resumes model '"optimizer": "adafactor"'
# An adapter is saved as PEFT has it, without the value head.
resumes adapter_model '' '"lora": {"rank": 4, "quantize": "nf4_double"}'
! grep -q v_head "$tmp/whole-out/adapter_model.safetensors" "$tmp/whole-out/adapter_config.json" || fail "an adapter has the value head"
# What two ranks have saved, one goes on from, and the other way round.
goes_on() { # FROM TO: of both 1 and 2 ranks
	local name=from-$1
	own "$name" "\"accumulation\": $((4 / $1))" '"parallel": {"strategy": "zero3"}'
	sed -i 's|"save_steps": 0|"save_steps": 4|' "$tmp/$name.json"
	all_ranks "$name" "$1" || { cat "$tmp/$name"-*.log; fail "$1 ranks, with checkpoints"; }
	cut_off "$name"
	sed -i "s|\"accumulation\": $((4 / $1))|\"accumulation\": $((4 / $2))|" "$tmp/$name.json"
	attempt=2 all_ranks "$name" "$2" || { cat "$tmp/$name"-*.log; fail "$2 ranks from $1"; }
	grep -q '^resuming from .*checkpoint-4' "$tmp/$name-0.log" || fail "not resumed: $2 ranks from $1"
	near_policy one "$name"
}
goes_on 2 1
goes_on 1 2
# Epochs end with the last step on a set: 8 steps on two sets are one of them.
own part
jq 'del(.train.max_steps) | .train.epochs = 1.3 | .output.save_steps = 4' "$tmp/part.json" >"$tmp/part-epochs.json"
run part-epochs || { cat "$tmp/part-epochs.log"; fail "a part of an epoch"; }
[ "$(lines "$tmp/part-out")" = 12 ] && [ -e "$tmp/part-out/checkpoint-12" ] || fail "a part of an epoch: $(lines "$tmp/part-out") steps"
# Runs of other tasks have no value head, and say so.
own mixed
jq '.task = "grpo" | .grpo = (.ppo | del(.value_learning_rate) | .generations = 2 | .beta = 0) | del(.ppo) | .train.max_steps = 4 | .output.save_steps = 4' "$tmp/mixed.json" >"$tmp/mixed-grpo.json"
run mixed-grpo || { cat "$tmp/mixed-grpo.log"; fail "grpo"; }
! run mixed || fail "ppo goes on from grpo"
grep -q '^error: .*/checkpoint-4 has no value head: it is not of a run with task = "ppo"; expected its own task, or a new run with this directory as model.path' "$tmp/mixed.log" || { cat "$tmp/mixed.log"; fail "what it says of a checkpoint of grpo"; }
jq '.output.dir = "from-1-out" | .train.max_steps = 12' "$tmp/mixed-grpo.json" >"$tmp/turned.json"
! run turned || fail "grpo goes on from ppo"
grep -q '^error: .*/checkpoint-8 has the state of a value head, which only a run with task = "ppo" uses; expected that task, or a new run' "$tmp/turned.log" || { cat "$tmp/turned.log"; fail "what it says of a checkpoint of ppo"; }
# Held-out prompts.
own held '"eval_steps": 2' '"parallel": {"strategy": "ddp"}'
sed -i 's|"max_samples": 7|"max_samples": 10, "eval_fraction": 3|' "$tmp/held.json"
run held || { cat "$tmp/held.log"; fail "held-out prompts"; }
losses "$tmp/held-out" | jq -s -e 'length == 8 and all(.[1, 3, 5, 7]; .eval_reward > 0 and .["eval_completions/mean_length"] > 0)' >/dev/null || { losses "$tmp/held-out"; fail "held-out prompts: what is reported"; }

# Offload, precisions.
own host '"recompute": "selective"' '"parallel": {"offload": "all"}'
run host || { cat "$tmp/host.log"; fail "offload"; }
near_policy one host
same_completions one host
for precision in bf16 fp16; do
	own $precision
	sed -i 's|"precision": "fp32"|"precision": "'$precision'"|' "$tmp/$precision.json"
	run $precision || { cat "$tmp/$precision.log"; fail "$precision"; }
	losses "$tmp/$precision-out" | jq -s -e 'length == 8 and (.[0]["objective/kl"] | fabs) < 1e-9 and .[4]["objective/kl"] != 0 and .[0]["policy/clipfrac_avg"] == 0 and .[7]["loss/value_avg"] > 0' >/dev/null ||
		{ losses "$tmp/$precision-out"; fail "$precision: its steps"; }
done
# What a run of many steps learns: rewards of nothing but the tokens' ids rise, and values explain them.
rises() { # NAME GROUPS RATE
	policy "$1" llama '"max_new_tokens": 8, "value_learning_rate": 0.01, "beta": 0.01' "\"micro_batch\": 16, \"accumulation\": 1, \"max_steps\": 80, \"learning_rate\": $3"
	[ -z "$2" ] || more "$1" "$2"
	run "$1" || { cat "$tmp/$1.log"; fail "$1"; }
	losses "$tmp/$1-out" | jq -r '"\(.reward) \(.["val/explained_variance"])"' | awk '{ r[NR] = $1; e = $2 } END { for (i = 1; i <= 12; i++) { a += r[i] / 12; b += r[NR - 12 + i] / 12 }
		printf "'"$1"': mean reward of the first twelve steps %.3f, of the last %.3f; explained %.2f\n", a, b, e; exit !(b > a + 0.1) }' || fail "$1: the reward does not rise"
}
rises whole-model '' 0.003
rises adapters '"lora": {"rank": 8, "quantize": "nf4"}' 0.01
echo "ppo: as transformers, ranks, resume, offload, precisions, adapters, rewards"
