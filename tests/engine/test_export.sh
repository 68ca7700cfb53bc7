#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# dtrain export computes the weights that PEFT's merge_and_unload computes, casts and reshards, in little memory, and publishes at the end.
. "$(dirname "$0")/worker.sh"
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
dtrain=$(readlink -f "${DTRAIN_BUILD:-.}/dtrain")
[ -x "$dtrain" ] || { echo "no $dtrain: set DTRAIN_BUILD to a build directory"; exit 77; }
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$DTRAIN_TEST_PYTHON" -W ignore "$src/tests/engine/export_peft.py" "$dtrain" "$tmp" || fail "export_peft.py"
