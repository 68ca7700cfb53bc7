#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Mixtures of experts by the kernels of the CUDA engine on the emulated GPU: losses, logits and every gradient are those of the CPU engine.
build=$(readlink -f "${DTRAIN_BUILD:-.}")
for program in tests/engine/grad_dump tests/simt/grad_dump_simt tests/simt/dtrain-worker-simt; do
	[ -x "$build/$program" ] || { echo "no $build/$program: a C++ compiler and Check build it"; exit 77; }
done
. "$(dirname "$0")/../engine/worker.sh"
# shellcheck disable=SC2034 # read as ${!engine}
cpu=$worker simt=$build/tests/simt/dtrain-worker-simt
export SIMT_PROTECT=1 # neither may the host touch the emulated GPU's memory, nor its kernels the host's

# model NAME TYPE TOKENS MEMBERS: a model of random weights, and a batch of four documents with so many tokens
model() {
	cp -r "$src/tests/engine/bytes" "$tmp/$1-init"
	chmod -R u+w "$tmp/$1-init"
	sed -i "s/\"model_type\": \"[a-z0-9]*\"/\"model_type\": \"$2\", \"num_experts_per_tok\": 2, $4/; s/\"initializer_range\": 0.02/\"initializer_range\": 0.2/" \
		"$tmp/$1-init/config.json"
	json "$1" "$tmp/$1" '"max_steps": 1'
	sed -i "s|$src/tests/engine/bytes|$tmp/$1-init|" "$tmp/$1.json"
	run "$1" || { cat "$tmp/$1.log"; fail "$1: no model"; }
	awk -v n="$3" 'BEGIN {
		printf "{\"documents\": [["
		for (i = 0; i < n; i++)
			printf "%s%d", i == 1 || i == int(n / 3) || i == n - 2 ? "], [" : i ? ", " : "", (i * i * 7 + 3 * i) % 251
		print "]], \"masked\": [0, 2, 0, 1]}"
	}' >"$tmp/$1-batch.json"
}

# compare NAME [OPTION…]: the options are those of grad_dump. Where bf16 is one, the results of the emulated GPU may be about as far from those in fp32 as
# the results of the CPU engine are, since a rounded logit may be the largest one on one of them alone.
compare() {
	local dump=$build/tests/engine/grad_dump exact=
	"$dump" "$tmp/$1" "$tmp/$1-batch.json" "$tmp/$1-cpu" "${@:2}" || fail "$1: the CPU engine"
	"$build/tests/simt/grad_dump_simt" "$tmp/$1" "$tmp/$1-batch.json" "$tmp/$1-simt" "${@:2}" || fail "$1: the emulated GPU"
	if [ "${2:-}" = bf16 ]; then
		exact=$tmp/$1-exact/model.safetensors
		"$dump" "$tmp/$1" "$tmp/$1-batch.json" "$tmp/$1-exact" || fail "$1: the CPU engine in fp32"
	fi
	python3 - "$1${2:+, ${*:2}}" "$tmp/$1-cpu/model.safetensors" "$tmp/$1-simt/model.safetensors" ${exact:+"$exact"} <<-'EOT' || fail "$1 ${*:2}"
		import array, json, math, sys


		def read(path):
		    data = open(path, "rb").read()
		    first = 8 + int.from_bytes(data[:8], "little")
		    return {name: array.array("f", data[first + t["data_offsets"][0]:first + t["data_offsets"][1]])
		            for name, t in json.loads(data[8:first]).items() if name != "__metadata__"}


		def norm(numbers):
		    return math.sqrt(sum(x * x for x in numbers))


		def apart(a, b):  # relative to a, of each tensor
		    return {name: norm(x - y for x, y in zip(a[name], b[name], strict=True)) / (norm(a[name]) or 1) for name in b}


		cpu, simt = read(sys.argv[2]), read(sys.argv[3])
		assert cpu.keys() == simt.keys() and sum("experts" in name for name in cpu) >= 2 * 5 * 3, sorted(cpu)
		if len(sys.argv) == 4:
		    error, most = apart(cpu, simt), dict.fromkeys(cpu, 1e-5)
		else:
		    exact = read(sys.argv[4])
		    error, most = apart(exact, simt), {name: 1.5 * e + 0.004 for name, e in apart(exact, cpu).items()}
		share = {name: error[name] / most[name] if math.isfinite(error[name]) else math.inf for name in cpu}
		worst = max(share, key=lambda name: share[name])
		print(f"{sys.argv[1]}: {len(cpu)} tensors; {worst}: {error[worst]:.2g} apart of {most[worst]:.2g}")
		sys.exit(share[worst] > 1)
	EOT
}
model qwen3_moe qwen3_moe 200 '"num_experts": 5, "moe_intermediate_size": 40, "norm_topk_prob": true'
for how in '' selective recompute outputs; do
	compare qwen3_moe $how
done
compare qwen3_moe bf16
model mixtral mixtral 150 '"num_local_experts": 5, "sliding_window": 7, "output_router_logits": true, "router_aux_loss_coef": 0.1'
compare mixtral
compare mixtral bf16 recompute
# Most of the experts have no tokens.
model few qwen3_moe 9 '"num_experts": 40, "moe_intermediate_size": 7, "output_router_logits": true'
compare few

# One token at a time, and several prompts at once.
printf 'The licence\nof this work is\na\nWork\n' >"$tmp/prompts.txt"
for name in qwen3_moe mixtral few; do
	for engine in cpu simt; do
		worker=${!engine}
		cat >"$tmp/$engine.json" <<-EOT
			{"task": "generate", "model": {"path": "$tmp/$name"}, "train": {"precision": "fp32"},
			 "generate": {"prompts": "$tmp/prompts.txt", "batch": 3, "max_new_tokens": 20, "temperature": 0}}
		EOT
		run $engine || { cat "$tmp/$engine.log"; fail "generating with $name over $engine"; }
	done
	cmp "$tmp/cpu.log" "$tmp/simt.log" && [ "$(grep -c '"completion"' "$tmp/cpu.log")" = 4 ] || fail "other texts of $name: $(cat "$tmp/cpu.log" "$tmp/simt.log")"
	echo "$name: 4 texts are the same"
done
