#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The language models of multimodal models, trained and saved as parts of these, compared with transformers and PEFT.
. "$(dirname "$0")/worker.sh"
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
logits=${DTRAIN_LOGITS:-${DTRAIN_BUILD:-.}/tests/engine/logits}
[ -x "$logits" ] || { echo "no $logits"; exit 77; }
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error \
	"$DTRAIN_TEST_PYTHON" "$src/tests/engine/multimodal.py" "$worker" "$(readlink -f "$logits")" "$(readlink -f "${DTRAIN_BUILD:-.}/dtrain")" "$src" "$tmp" || fail "multimodal.py"
