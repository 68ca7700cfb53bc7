#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A mixture of experts is trained as in transformers, with the loss that balances its experts: the same losses and the same weights.
. "$(dirname "$0")/worker.sh"
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
rows=$(readlink -f "${DTRAIN_BUILD:-.}/tests/engine/rows_dump")
[ -x "$rows" ] || { echo "no tests/engine/rows_dump: set DTRAIN_BUILD to a build directory"; exit 77; }
python() { OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$DTRAIN_TEST_PYTHON" -W ignore "$src/tests/engine/experts.py" "$@"; }
steps=30 rate=0.002
python make "$src/tests/engine/bytes" "$tmp" || fail "make"
for family in qwen3_moe mixtral; do
	cat >"$tmp/$family.json" <<-EOF
		{"task": "pretrain", "directory": "$tmp", "model": {"path": "$tmp/$family"},
		 "data": {"path": ["$src/LICENSE"], "format": "text", "max_length": 64, "packing": true, "cache_dir": "$tmp/cache"},
		 "train": {"learning_rate": $rate, "schedule": "constant", "weight_decay": 0, "micro_batch": 6, "max_steps": $steps, "precision": "fp32", "seed": 7},
		 "output": {"dir": "$tmp/$family-out", "log_steps": 1, "save_steps": 0}}
	EOF
	run $family || { cat "$tmp/$family.log"; fail "$family"; }
	"$rows" "$tmp/$family" "$tmp/cache" text default 64 6 7 $steps "$src/LICENSE" >"$tmp/$family.rows" || fail "rows_dump"
done
python compare "$tmp" $rate || fail "not as transformers"
