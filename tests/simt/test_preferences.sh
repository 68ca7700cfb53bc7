#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tasks of preferences by the kernels of the CUDA engine on the emulated GPU: losses, norms of gradients and rewards are those of the CPU engine.
simt=$(readlink -f "${DTRAIN_BUILD:-.}")/tests/simt/dtrain-worker-simt
[ -x "$simt" ] || { echo "no $simt: a C++ compiler and Check build it"; exit 77; }
. "$(dirname "$0")/../engine/worker.sh"
# shellcheck disable=SC2034 # read as ${!engine}
cpu=$worker
export SIMT_PROTECT=1 # neither may the host touch the emulated GPU's memory, nor its kernels the host's
pairs=$src/etc/examples/preferences.json
sed -E 's/"instruction"/"prompt"/; s/"chosen"/"completion"/; s/, "rejected": .*\}/, "label": true}/' "$pairs" >"$tmp/labels.json"
sed -E -i '0~2s/true\}/false}/' "$tmp/labels.json"

lora=
# compare TASK PRECISION TOLERANCE METRIC… [, GROUPS]
compare() {
	local data=$pairs engine key
	[ "$1" != kto ] || data=$tmp/labels.json
	for engine in cpu simt; do
		worker=${!engine}
		cat >"$tmp/$engine.json" <<-EOF
			{"task": "$1", "directory": "$tmp", "model": {"init": "$src/tests/engine/bytes"},
			 "data": {"path": ["$data"], "template": "default", "max_length": 48, "cache_dir": "$tmp/cache"},
			 "train": {"max_steps": 3, "micro_batch": 2, "learning_rate": 0.001, "schedule": "constant", "precision": "$2"}$lora,
			 "output": {"dir": "$tmp/$1-$2-$engine", "log_steps": 1, "overwrite": true}}
		EOF
		run "$engine" || { cat "$tmp/$engine.log"; fail "$1: the worker over $engine"; }
	done
	grep -q 'SIMT emulator' "$tmp/simt.log" || fail "$1: $(head -1 "$tmp/simt.log")"
	for key in loss grad_norm "${@:4}"; do
		for engine in cpu simt; do
			grep -o "\"$key\":[^,}]*" "$tmp/$1-$2-$engine/metrics.jsonl" | cut -d: -f2 >"$tmp/$engine.values"
		done
		paste "$tmp/cpu.values" "$tmp/simt.values" | awk -v what="$1 in $2$lora: $key" -v most="$3" '
			{ d = $1 - $2; s = $1 < 0 ? -$1 : $1; d = (d < 0 ? -d : d) / (s > 1 ? s : 1); if (d > worst) worst = d; if (!(d <= most)) bad = 1; n++ }
			END { printf "%s: at most %.2g apart\n", what, worst; exit bad || n < 1 }' || fail "$1: $key: $(paste "$tmp/cpu.values" "$tmp/simt.values" | tr '\t\n' ' ;')"
	done
}
for task in dpo kto; do
	compare $task fp32 2e-5 rewards/chosen rewards/rejected
done
compare reward fp32 2e-5 margin mean_reward
compare reward bf16 2e-2 margin mean_reward
lora=', "lora": {"rank": 4}' compare reward fp32 2e-5 margin mean_reward
