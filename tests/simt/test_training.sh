#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Small models trained by the kernels of the CUDA engine on the emulated GPU have the losses, gradients and text of the CPU engine.
simt=$(readlink -f "${DTRAIN_BUILD:-.}")/tests/simt/dtrain-worker-simt
[ -x "$simt" ] || { echo "no $simt: a C++ compiler and Check build it"; exit 77; }
. "$(dirname "$0")/../engine/worker.sh"
# shellcheck disable=SC2034 # read as ${!engine}
cpu=$worker
export SIMT_PROTECT=1 # neither may the host touch the emulated GPU's memory, nor its kernels the host's

# compare NAME PRECISION HEAD-DIM TOLERANCE [TRAIN [GROUPS]]; the tensor-core kernels are used for heads of 64 in bf16 and fp16
compare() {
	cp -r "$src/tests/engine/bytes" "$tmp/$1"
	chmod -R u+w "$tmp/$1"
	sed -i "s/\"head_dim\": 16/\"head_dim\": $3/; s/\"hidden_size\": 48/\"hidden_size\": $((3 * $3))/" "$tmp/$1/config.json"
	[ "${1%biases}" = "$1" ] || sed -i 's/"model_type": "[a-z0-9]*"/"model_type": "qwen2"/' "$tmp/$1/config.json"
	case $1 in
	qwen3_moe*) sed -i 's/"model_type": "[a-z0-9]*"/"model_type": "qwen3_moe", "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "output_router_logits": true/' "$tmp/$1/config.json" ;;
	mixtral*) sed -i 's/"model_type": "[a-z0-9]*"/"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2/' "$tmp/$1/config.json" ;;
	esac
	for engine in cpu simt; do
		worker=${!engine}
		json "$engine" "$tmp/$1-$engine" "\"max_steps\": 4, \"precision\": \"$2\", \"weight_decay\": 0.1$5"
		sed -i "s|$src/tests/engine/bytes|$tmp/$1|; s|\"train\": {|${6:+$6, }&|" "$tmp/$engine.json"
		run "$engine" || { cat "$tmp/$engine.log"; fail "$1: the worker over $engine"; }
	done
	grep -q 'SIMT emulator' "$tmp/simt.log" || fail "$1: $(head -1 "$tmp/simt.log")"
	for key in loss grad_norm; do
		for engine in cpu simt; do
			sed -n "s/.*\"$key\": *\([-+.0-9e]*\).*/\1/p" "$tmp/$1-$engine/metrics.jsonl" >"$tmp/$engine.$key"
		done
		paste "$tmp/cpu.$key" "$tmp/simt.$key" | awk -v key=$key -v most="$4" -v name="$1" '
			{ d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > worst) worst = d; if (!(d <= most)) bad = 1; n++ }
			END { printf "%s: %s of %d steps, at most %.2g apart\n", name, key, n, worst; exit bad || n != 4 }' ||
			fail "$1: $key: $(paste "$tmp/cpu.$key" "$tmp/simt.$key" | tr '\t\n' ' ;')"
	done
}
compare fp32 fp32 16 2e-5
grep -q '^warning: attention with heads of 16 does not use the tensor cores' "$tmp/simt.log" || fail "no warning of slow attention: $(cat "$tmp/simt.log")"
! grep -q '^warning: attention' "$tmp/cpu.log" || fail "a warning of attention on a processor: $(cat "$tmp/cpu.log")"
compare bf16 bf16 16 1e-2
compare biases bf16 16 1e-2
compare none bf16 16 1e-2 ', "master": "none", "loss": "dft"'
compare gradients bf16 16 1e-2 ', "gradient_type": "bf16"'
compare tiles bf16 64 1e-2
! grep -q '^warning: attention' "$tmp/simt.log" || fail "a warning of attention on tensor cores: $(cat "$tmp/simt.log")"
compare half fp16 64 5e-4
! grep -q '^warning: attention' "$tmp/simt.log" || fail "a warning of attention in fp16: $(cat "$tmp/simt.log")"
json slow "$tmp/slow" '"max_steps": 1, "precision": "fp32"'
sed -i "s|$src/tests/engine/bytes|$tmp/tiles|" "$tmp/slow.json"
worker=$simt
run slow || { cat "$tmp/slow.log"; fail "fp32 with heads of 64"; }
grep -q '^warning: attention in fp32 .* train.precision = "bf16"' "$tmp/slow.log" || fail "no warning of fp32: $(cat "$tmp/slow.log")"
compare cudnn bf16 64 1e-2 ', "attention": "cudnn"' # the stand-in for it
grep -q 'attention: cuDNN' "$tmp/simt.log" || fail "whose attention: $(head -1 "$tmp/simt.log")"
# A code of fp8 is rounded otherwise where the number before it is.
compare fp8 fp8 16 2e-2
compare fp8-biases fp8 16 2e-2 ', "recompute": "selective", "accumulation": 2'
compare fp8-adapters fp8 16 2e-2 '' '"lora": {"rank": 4}'
# DoRA, its masks and 4 bits, also where the state and the frozen blocks come from the host; noise and smoothed targets.
compare dora fp32 16 2e-5 ', "neftune_alpha": 5, "label_smoothing": 0.1' '"lora": {"rank": 4, "dora": true, "dropout": 0.1, "quantize": "nf4_double"}'
compare dora-host bf16 16 1e-2 '' '"lora": {"rank": 4, "dora": true, "modules_to_save": ["norm"]}, "parallel": {"offload": "all"}'
compare four-host fp32 16 2e-5 '' '"lora": {"rank": 4, "quantize": "nf4"}, "parallel": {"offload": "all", "prefetch": 0}'
# With a teacher of another size.
compare taught fp32 16 2e-5 '' "\"distillation\": {\"teacher\": \"$tmp/tiles-cpu\", \"temperature\": 2.0}"
compare taught-half bf16 64 1e-2 ', "accumulation": 2' "\"distillation\": {\"teacher\": \"$tmp/fp32-cpu\", \"weight\": 1.0}"
# Mixtures of experts.
compare qwen3_moe fp32 16 2e-5 ', "router_loss": 0.1'
compare qwen3_moe-half fp16 64 5e-4 ', "recompute": "full", "accumulation": 2'
compare qwen3_moe-four fp32 16 2e-5 '' '"lora": {"rank": 4, "quantize": "nf4"}, "parallel": {"offload": "all"}'
compare mixtral fp32 16 2e-5 ', "recompute": "selective"'
compare mixtral-bf16 bf16 64 1e-2 ', "gradient_type": "bf16", "optimizer": "adamw_8bit"'

# Learning from rewards: the same completions on both, and losses and gradients of these.
printf '{"prompt": "%s"}\n' one two three four >"$tmp/prompts.jsonl"
for engine in cpu simt; do
	worker=${!engine}
	cat >"$tmp/$engine.json" <<-EOT
		{"task": "grpo", "directory": "$tmp", "model": {"path": "$tmp/fp32-cpu"}, "data": {"path": ["prompts.jsonl"], "template": "default", "cache_dir": "$tmp/cache"},
		 "train": {"learning_rate": 0.003, "micro_batch": 2, "accumulation": 2, "max_steps": 4, "precision": "fp32"},
		 "grpo": {"reward": ["python3", "$src/tests/engine/reward_program.py", "$tmp/$engine.asked"], "generations": 4, "max_new_tokens": 8, "beta": 0.1, "iterations": 2},
		 "output": {"dir": "$tmp/rewards-$engine", "log_steps": 1}}
	EOT
	run "$engine" || { cat "$tmp/$engine.log"; fail "rewards over $engine"; }
done
diff <(jq -c .completion_ids "$tmp/cpu.asked") <(jq -c .completion_ids "$tmp/simt.asked") || fail "rewards: other completions"
paste -d ' ' <(losses "$tmp/rewards-cpu" | jq -r '"\(.loss) \(.grad_norm)"') <(losses "$tmp/rewards-simt" | jq -r '"\(.loss) \(.grad_norm)"') |
	awk '{ for (i = 1; i <= 2; i++) { d = $i - $(i + 2); d = d < 0 ? -d : d; if (d > worst) worst = d }; n++ } END { printf "rewards: losses and gradient norms at most %.1e apart\n", worst; exit !(n == 4 && worst < 2e-5) }' ||
	fail "rewards: other losses"
for precision in fp32 bf16 fp16; do
	for engine in cpu simt; do
		worker=${!engine}
		cat >"$tmp/generate.json" <<-EOT
			{"task": "generate", "model": {"path": "$tmp/fp32-cpu"}, "train": {"precision": "$precision"},
			 "generate": {"prompt": "The licence of this work", "max_new_tokens": 60, "temperature": 0}}
		EOT
		run generate "text-$engine" || { cat "$tmp/text-$engine.log"; fail "generating in $precision over $engine"; }
	done
	cmp "$tmp/text-cpu.log" "$tmp/text-simt.log" || fail "another text in $precision: $(cat "$tmp/text-cpu.log" "$tmp/text-simt.log")"
	echo "60 tokens are the same in $precision"
done
# The same of prompts in batches, which end at different lengths, with an adapter.
printf 'The licence\nof this work is\na\nWork\n"You"\n' >"$tmp/prompts.txt"
for engine in cpu simt; do
	worker=${!engine}
	cat >"$tmp/batch.json" <<-EOT
		{"task": "generate", "model": {"path": "$tmp/fp32-cpu"},
		 "generate": {"prompts": "$tmp/prompts.txt", "batch": 3, "max_new_tokens": 20, "adapter": "$tmp/adapter-cpu", "stop": ["e"]}}
	EOT
	[ "$engine" = simt ] || { json adapter "$tmp/adapter-cpu" '"max_steps": 3' && sed -i 's|"model": {[^}]*}|"model": {"path": "'"$tmp/fp32-cpu"'"}, "lora": {"rank": 4, "dora": true}|' "$tmp/adapter.json" &&
		run adapter || { cat "$tmp/adapter.log"; fail "an adapter"; }; }
	run batch "batch-$engine" || { cat "$tmp/batch-$engine.log"; fail "generating in batches over $engine"; }
done
cmp "$tmp/batch-cpu.log" "$tmp/batch-simt.log" && [ "$(grep -c '"completion"' "$tmp/batch-cpu.log")" = 5 ] || fail "other texts in batches: $(cat "$tmp/batch-cpu.log" "$tmp/batch-simt.log")"
echo "5 texts in batches are the same"

# A GPU before Ada and Hopper multiplies no fp8.
json ampere "$tmp/ampere" '"max_steps": 2, "precision": "fp8"'
env -i PATH="$PATH" SIMT_MAJOR=8 DTRAIN_CONFIG="$tmp/ampere.json" "$simt" >"$tmp/ampere.log" 2>&1 && fail "fp8 on a GPU without it: $(cat "$tmp/ampere.log")"
grep -q 'train.precision = "fp8": .* has no fp8 arithmetic; bf16 works' "$tmp/ampere.log" || fail "fp8 on a GPU without it: $(cat "$tmp/ampere.log")"

# On a GPU in compute mode EXCLUSIVE_PROCESS a rank checks Hopper's kernels by itself, and the next start goes on with the choice.
alone() { env -i PATH="$PATH" SIMT_PROTECT=1 SIMT_COMPUTE_MODE=3 "$@" 2>&1; }
alone SIMT_HOLDER=1 "$simt" --check-attention 0 64 64 1 1 64 0 1 0 >"$tmp/alone.log" && fail "two processes have a GPU that is for one"
[ $? = 2 ] && grep -q 'busy or unavailable' "$tmp/alone.log" || fail "a GPU that another process has: $(cat "$tmp/alone.log")"
json alone "$tmp/alone" '"max_steps": 1, "precision": "bf16"' '"overwrite": true'
sed -i "s|$src/tests/engine/bytes|$tmp/tiles|" "$tmp/alone.json"
for start in first second; do
	alone DTRAIN_CONFIG="$tmp/alone.json" "$simt" >"$tmp/alone.log" || fail "alone on a GPU: $(cat "$tmp/alone.log")"
	! grep 'warning: .*attention' "$tmp/alone.log" || fail "alone on a GPU, $start start"
	cp "$tmp/alone/algorithms.json" "$tmp/$start"
	[ "$start" = second ] || [ "$(grep -c 'pass of attention has the .* ms with the portable one, .* ms with Hopper' "$tmp/alone.log")" = 2 ] ||
		fail "no check of Hopper's kernels: $(cat "$tmp/alone.log")"
	find "$tmp/alone" -mindepth 1 ! -name algorithms.json -delete
done
cmp "$tmp/first" "$tmp/second" || fail "the choice has changed"

# A rank uses the GPU that its node names; the emulator has one.
json device "$tmp/device"
env -i PATH="$PATH" DTRAIN_DEVICE=1 DTRAIN_CONFIG="$tmp/device.json" "$simt" >"$tmp/device.log" 2>&1 && fail "a second GPU was found: $(cat "$tmp/device.log")"
grep -q "GPU 1 is asked for, 1 is visible" "$tmp/device.log" || fail "another GPU: $(cat "$tmp/device.log")"
