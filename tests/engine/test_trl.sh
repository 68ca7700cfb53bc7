#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tasks of preferences beside TRL's trainers (tests/engine/trl_compare.py). DTRAIN_TRL_PYTHON: a Python with trl 1.16 or newer, and with
# the torch and transformers of the other comparisons; default: the Python of the tests, which has no trl. STEPS: of each comparison, 100 by default.
. "$(dirname "$0")/worker.sh"
python=${DTRAIN_TRL_PYTHON:-${DTRAIN_TEST_PYTHON:-}}
[ -n "$python" ] && "$python" -c 'from importlib.util import find_spec as f; exit(not (f("trl") and f("datasets")))' 2>/dev/null || { echo "skipped: no Python with trl and datasets: set DTRAIN_TRL_PYTHON"; exit 77; }
shared=$src/../shared
[ -f "$shared/data/sft/dpo_en_demo.json" ] || { echo "skipped: no $shared/data/sft/dpo_en_demo.json"; exit 77; }
dump=$(readlink -f "${DTRAIN_BUILD:-.}")/tests/engine/dataset_dump
[ -x "$dump" ] || { echo "no $dump"; exit 77; }
OMP_NUM_THREADS=1 "$python" "$src/tests/engine/trl_compare.py" "$worker" "$dump" "$src" "$shared" "$tmp" "${STEPS:-100}" "$@" || fail "preferences beside TRL"
