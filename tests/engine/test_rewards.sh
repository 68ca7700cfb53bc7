#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Reward models against transformers and PEFT (tests/engine/rewards.py).
. "$(dirname "$0")/worker.sh"
python=${DTRAIN_TEST_PYTHON:-}
[ -n "$python" ] && "$python" -c 'from importlib.util import find_spec as f; exit(not (f("torch") and f("transformers") and f("peft")))' 2>/dev/null || { echo "no torch, transformers and peft: set DTRAIN_TEST_PYTHON"; exit 77; }
build=$(readlink -f "${DTRAIN_BUILD:-.}")
OMP_NUM_THREADS=1 "$python" "$src/tests/engine/rewards.py" "$worker" "$build/dtrain" "$build/tests/engine/dataset_dump" "$src" "$tmp" || fail "reward models"
