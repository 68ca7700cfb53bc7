#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Proximal policy optimization: advantages, losses, values and steps are those of TRL's definitions with transformers' models; two ranks, however they share
# the model, have the completions and losses of one; a resumed run has the same bits, on another number of ranks the same losses; precisions, adapters and
# weights in 4 bits; the reward rises, and the values learn it. LIKE="NAME…" compares these with transformers, and does nothing else.
. "$(dirname "$0")/worker.sh"
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
python() { OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$DTRAIN_TEST_PYTHON" -W ignore "$src/tests/engine/ppo.py" "$@"; }
python make "$src/tests/engine/bytes" "$tmp" || fail "make"

rate=0.002
# policy NAME MODEL PPO [TRAIN [OUTPUT]]: a configuration; the groups' members are added.
policy() {
	cat >"$tmp/$1.json" <<-END
		{"task": "ppo", "directory": "$tmp", "model": {"path": "$tmp/$2"},
		 "data": {"path": ["prompts.jsonl"], "template": "default", "max_length": 96, "cache_dir": "$tmp/cache"},
		 "train": {"learning_rate": $rate, "schedule": "constant", "weight_decay": 0, "micro_batch": 2, "accumulation": 4, "max_steps": 8, "precision": "fp32", "seed": 7${4:+, $4}},
		 "ppo": {"reward": ["python3", "$src/tests/engine/reward_program.py", "$tmp/$1.asked"], "max_new_tokens": 12${3:+, $3}},
		 "output": {"dir": "$tmp/$1-out", "log_steps": 1, "save_steps": 0${5:+, $5}}}
	END
}
compared=
like() { # NAME MODEL PPO TRAIN SETTINGS…: as with transformers
	case " ${LIKE:-$1} " in *" $1 "*) ;; *) return ;; esac
	compared="$compared $1"
	policy "$1" "$2" "$3" "$4" '"save_steps": 8'
	run "$1" || { cat "$tmp/$1.log"; fail "$1"; }
	! grep warning "$tmp/$1.log" | grep -v 'tensor cores' || fail "$1: a warning"
	echo "$tmp" $rate "$1" "$2" "${@:5}" >>"$tmp/replays"
}
like plain llama '' ''
like bounds llama '"epsilon": 0.01, "value_epsilon": 0.02, "value_learning_rate": 0.01, "value_weight": 0.5, "gamma": 0.95, "lambda": 0.8, "temperature": 0.7, "beta": 0.2' \
	'"micro_batch": 3, "accumulation": 2' epsilon=0.01 bound=0.02 value_rate=0.01 weight=0.5 gamma=0.95 lam=0.8 temperature=0.7 beta=0.2
like unbounded gemma2 '"beta": 0, "value_epsilon": 0, "generations": 2, "iterations": 2, "mask_truncated": true, "max_new_tokens": 40' '"recompute": "full"' beta=0 bound=0 iterations=2 mask=1 max_new_tokens=40
like scored llama '"reward_model": "reward-model", "iterations": 1' '"optimizer": "adamw"' scores=1 iterations=1
like experts qwen3_moe '"value_learning_rate": 0.004' '' value_rate=0.004
[ ! -e "$tmp/replays" ] || python replays "$tmp/replays" || fail "the first of $compared that is not above: not as transformers"
if [ -n "${LIKE:-}" ]; then
	[ "$(wc -w <<<"$compared")" = "$(wc -w <<<"$LIKE")" ] || fail "LIKE=\"$LIKE\": there are only$compared of these"
	exit 0
fi

# One rank, and two that hold the model in any way: the same completions, the same losses.
own() { # NAME TRAIN GROUPS: of the model llama, on seven prompts, of which the last set has three: then one of two ranks has fewer
	policy "$1" llama '"value_learning_rate": 0.01' "\"accumulation\": 4, \"micro_batch\": 1${2:+, $2}"
	sed -i 's|"max_length": 96|&, "max_samples": 7|' "$tmp/$1.json"
	[ -z "${3:-}" ] || more "$1" "$3"
}
near_policy() { # A B: losses, gradient norms and the part of the returns that values explain
	paste -d ' ' <(losses "$tmp/$1-out" | jq -r '"\(.loss) \(.grad_norm) \(.["val/explained_variance"])"') <(losses "$tmp/$2-out" | jq -r '"\(.loss) \(.grad_norm) \(.["val/explained_variance"])"') |
		awk '{ d = $1 - $4; if (d < 0) d = -d; if (d > max) max = d; g = ($2 - $5) / $2; if (g < 0) g = -g; if (g > norm) norm = g; e = $3 - $6; if (e < 0) e = -e; if (e > of) of = e; n++ }
			END { printf "'"$2"': largest difference of the losses %.1e, of the gradient norms %.1e of them, of what values explain %.1e\n", max, norm, of; exit !(n == 8 && max <= 1e-5 && norm <= 1e-3 && of <= 1e-4) }' || fail "$2: other losses than $1"
	diff <(jq -c '[.row, .completion_ids]' "$tmp/$1.asked" | sort) <(jq -c '[.row, .completion_ids]' "$tmp/$2.asked" | sort) >/dev/null || fail "$2: other completions than $1"
}
own one
run one || { cat "$tmp/one.log"; fail "one rank"; }
for s in ddp zero1 zero3; do
	own $s '"accumulation": 2' "\"parallel\": {\"strategy\": \"$s\", \"prefetch\": 0}"
	pair $s || { cat "$tmp/$s-0.log" "$tmp/$s-1.log"; fail "$s"; }
	near_policy one $s
done
# Saved between two sets of completions; what a run that was killed after the first of them leaves is resumed.
cut_off() { # NAME [WEIGHTS]: leaves checkpoint-4 alone
	rm -r "$tmp/$1-out/checkpoint-8" "$tmp/$1-out/${2:-model}.safetensors"
	sed -i '/"step":[5-8]/d' "$tmp/$1-out/metrics.jsonl"
}
for saved in '' '"precision": "bf16"' '"optimizer": "adamw_8bit"' '"optimizer": "muon"' '"optimizer": "adafactor"'; do
	own whole "$saved"
	own saved "$saved"
	sed -i 's|"save_steps": 0|"save_steps": 4|' "$tmp/saved.json"
	rm -rf "$tmp/whole-out" "$tmp/saved-out"
	run whole && run saved || { cat "$tmp/whole.log" "$tmp/saved.log"; fail "with checkpoints: $saved"; }
	cut_off saved
	attempt=2 run saved || { cat "$tmp/saved.log"; fail "resumed: $saved"; }
	grep -q '^resuming from .*checkpoint-4' "$tmp/saved.log" || fail "not resumed: $saved"
	diff <(losses "$tmp/whole-out") <(losses "$tmp/saved-out") >/dev/null && cmp "$tmp/whole-out/model.safetensors" "$tmp/saved-out/model.safetensors" || fail "resumed: other bits: $saved"
done
# What two ranks have saved, one goes on from, and the other way round.
own shared '"accumulation": 2' '"parallel": {"strategy": "zero3"}'
sed -i 's|"save_steps": 0|"save_steps": 4|' "$tmp/shared.json"
pair shared || { cat "$tmp/shared-0.log" "$tmp/shared-1.log"; fail "two ranks, with checkpoints"; }
cut_off shared
cp -r "$tmp/shared-out" "$tmp/from-two"
own apart
sed -i 's|"save_steps": 0|"save_steps": 4|; s|apart-out|shared-out|' "$tmp/apart.json"
attempt=2 run apart || { cat "$tmp/apart.log"; fail "one rank from two"; }
cat "$tmp/apart.asked" >>"$tmp/shared.asked"
paste -d ' ' <(loss_values one-out) <(loss_values shared-out) | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > max) max = d; n++ } END { exit !(n == 8 && max <= 1e-5) }' || fail "one rank from two: other losses"

# Offload, precisions.
own host '"recompute": "selective"' '"parallel": {"offload": "all"}'
run host || { cat "$tmp/host.log"; fail "offload"; }
near_policy one host
for precision in bf16 fp16; do
	own $precision
	sed -i 's|"precision": "fp32"|"precision": "'$precision'"|' "$tmp/$precision.json"
	run $precision || { cat "$tmp/$precision.log"; fail "$precision"; }
	losses "$tmp/$precision-out" | jq -s -e 'length == 8 and (.[0]["objective/kl"] | fabs) < 1e-9 and .[4]["objective/kl"] != 0 and .[0]["policy/clipfrac_avg"] == 0 and .[7]["loss/value_avg"] > 0' >/dev/null ||
		{ losses "$tmp/$precision-out"; fail "$precision: its steps"; }
done
# An adapter is saved as PEFT has it, without the head of values, and its run is resumed to the bit.
adapted='"lora": {"rank": 4, "quantize": "nf4_double"}'
own four '' "$adapted"
own four-saved '' "$adapted"
sed -i 's|"save_steps": 0|"save_steps": 4|' "$tmp/four-saved.json"
run four && run four-saved || { cat "$tmp/four.log" "$tmp/four-saved.log"; fail "adapters"; }
cut_off four-saved adapter_model
attempt=2 run four-saved || { cat "$tmp/four-saved.log"; fail "adapters, resumed"; }
diff <(losses "$tmp/four-out") <(losses "$tmp/four-saved-out") >/dev/null && cmp "$tmp/four-out/adapter_model.safetensors" "$tmp/four-saved-out/adapter_model.safetensors" || fail "adapters, resumed: other bits"
! grep -q v_head "$tmp/four-out/adapter_model.safetensors" "$tmp/four-out/adapter_config.json" || fail "an adapter has the head of values"

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
