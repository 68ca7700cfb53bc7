#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The task generate chooses tokens as transformers does, with adapters, penalties, stop strings and files of prompts.
. "$(dirname "$0")/worker.sh"
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
dump=$(readlink -f "${DTRAIN_BUILD:-.}/tests/engine/sampling_dump")
[ -x "$dump" ] || { echo "no tests/engine/sampling_dump: set DTRAIN_BUILD to a build directory"; exit 77; }
SEED=$SEED OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$DTRAIN_TEST_PYTHON" -W ignore "$src/tests/engine/generate.py" "$worker" "$dump" "$src" "$tmp" || fail "generate.py"
