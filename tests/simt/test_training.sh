#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A small model trained by the CUDA engine's kernels on the emulated GPU: the CPU engine's losses and gradients.
simt=$(readlink -f "${DTRAIN_BUILD:-.}")/tests/simt/dtrain-worker-simt
[ -x "$simt" ] || { echo "no $simt: a C++ compiler and Check build it"; exit 77; }
. "$(dirname "$0")/../engine/worker.sh"
cpu=$worker

for precision in fp32 bf16; do
	case $precision in fp32) tolerance=2e-5 ;; bf16) tolerance=1e-2 ;; esac
	train="\"max_steps\": 4, \"precision\": \"$precision\", \"weight_decay\": 0.1"
	for engine in cpu simt; do
		worker=${!engine}
		json "$engine" "$tmp/$engine-$precision" "$train"
		run "$engine" || { cat "$tmp/$engine.log"; fail "$precision: the worker over $engine"; }
	done
	grep -q 'SIMT emulator' "$tmp/simt.log" || fail "$precision: $(head -1 "$tmp/simt.log")"
	for key in loss grad_norm; do
		for engine in cpu simt; do
			sed -n "s/.*\"$key\": *\([-+.0-9e]*\).*/\1/p" "$tmp/$engine-$precision/metrics.jsonl" >"$tmp/$engine.$key"
		done
		paste "$tmp/cpu.$key" "$tmp/simt.$key" | awk -v key=$key -v most=$tolerance -v precision=$precision '
			{ d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > worst) worst = d; if (!(d <= most)) bad = 1; n++ }
			END { printf "%s %s: %d steps, at most %.2g apart\n", precision, key, n, worst; exit bad || n != 4 }' ||
			fail "$precision: $key: $(paste "$tmp/cpu.$key" "$tmp/simt.$key" | tr '\t\n' ' ;')"
	done
done
