#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compares NF4 with bitsandbytes, where it can be imported: bytes, directories that transformers has saved, and adapters over it beside PEFT's.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python for comparisons: set DTRAIN_TEST_PYTHON"; exit 77; }
build=${DTRAIN_BUILD:-$src/build}
"$DTRAIN_TEST_PYTHON" "$src/tests/engine/nf4.py" "$build/tests/engine"
"$DTRAIN_TEST_PYTHON" -c 'from importlib.util import find_spec; exit(not find_spec("peft"))' || exit 0
HF_HUB_OFFLINE=1 "$DTRAIN_TEST_PYTHON" "$src/tests/engine/adapters.py" "$build/dtrain-worker-cpu" "$build" \
	steps=20 variants=qlora,qdora strategies=zero3 families=llama,phi3,gpt2
