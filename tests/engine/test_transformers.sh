#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What we save loads in transformers with from_pretrained and gives our logits; what transformers saves loads here.
. "$(dirname "$0")/worker.sh"
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
logits=${DTRAIN_LOGITS:-${DTRAIN_BUILD:-.}/tests/engine/logits}
[ -x "$logits" ] || { echo "no $logits"; exit 77; }
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error \
	"$DTRAIN_TEST_PYTHON" "$src/tests/engine/save_load.py" "$worker" "$(readlink -f "$logits")" "$src" "$tmp" || fail "save_load.py"
