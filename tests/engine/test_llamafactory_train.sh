#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Training beside LLaMA-Factory's trainers (tests/engine/llamafactory_train.py). DTRAIN_LLAMAFACTORY_PYTHON: a Python with llamafactory 0.9.5 and the newest
# versions of torch, transformers, datasets, peft and trl that it goes with; default: the Python of the tests, which has no llamafactory. Arguments: only these comparisons.
. "$(dirname "$0")/worker.sh"
python=${DTRAIN_LLAMAFACTORY_PYTHON:-${DTRAIN_TEST_PYTHON:-}}
[ -x "$python" ] || { echo "skipped: no Python with llamafactory: set DTRAIN_LLAMAFACTORY_PYTHON"; exit 77; }
OMP_NUM_THREADS=1 "$python" "$src/tests/engine/llamafactory_train.py" "$worker" "$src" "$tmp" "$@" 2>"$tmp/err" && exit
code=$?
[ "$code" -eq 77 ] && exit 77
tail -n 20 "$tmp/err" >&2
fail "training beside LLaMA-Factory"
