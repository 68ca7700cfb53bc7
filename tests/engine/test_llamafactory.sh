#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compares the rows of random conversations with those of LLaMA-Factory. DTRAIN_LLAMAFACTORY_PYTHON: a Python with llamafactory 0.9.5
# and the modules that its data module imports (torch, transformers, datasets, peft); default: the Python of the tests.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
dump=${DTRAIN_BUILD:-.}/tests/engine/dataset_dump
python=${DTRAIN_LLAMAFACTORY_PYTHON:-${DTRAIN_TEST_PYTHON:-}}
[ -x "$python" ] || { echo "skipped: no Python with llamafactory: set DTRAIN_LLAMAFACTORY_PYTHON"; exit 77; }
[ -x "$dump" ] || { echo "no $dump"; exit 77; }
HF_HUB_OFFLINE=1 exec "$python" "$src/tests/engine/llamafactory_compare.py" "$dump" "$src/../shared" ${SEED:+"$SEED"}
