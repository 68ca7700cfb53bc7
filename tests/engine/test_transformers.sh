#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# transformers loads saved models with from_pretrained and computes the same logits; this engine loads models that transformers saved.
. "$(dirname "$0")/worker.sh"
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
logits=${DTRAIN_LOGITS:-${DTRAIN_BUILD:-.}/tests/engine/logits}
[ -x "$logits" ] || { echo "no $logits"; exit 77; }
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error \
	"$DTRAIN_TEST_PYTHON" "$src/tests/engine/save_load.py" "$worker" "$(readlink -f "$logits")" "$src" "$tmp" || fail "save_load.py"
