#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters beside PEFT, in small; tests/engine/adapters.py with its defaults is the whole comparison.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
build=${DTRAIN_BUILD:-.}
[ -x "${DTRAIN_TEST_PYTHON:-}" ] && "$DTRAIN_TEST_PYTHON" -c 'from importlib.util import find_spec; exit(not find_spec("peft"))' 2>/dev/null || { echo "no Python with peft: set DTRAIN_TEST_PYTHON"; exit 77; }
[ -x "$build/tests/engine/grad_dump" ] && [ -x "$build/tests/engine/rows_dump" ] || { echo "no grad_dump or rows_dump in $build"; exit 77; }
export HF_HUB_OFFLINE=1
compare() {
	"$DTRAIN_TEST_PYTHON" "$src/tests/engine/adapters.py" "$build/dtrain-worker-cpu" "$build" "$@" 2>&1 | grep -v '[Ww]arning'
	return "${PIPESTATUS[0]}"
}
compare steps=16 strategies=zero3
compare steps=8 strategies= variants=lora families=phi3,gemma2,glm4,qwen3_5_text
compare steps=8 strategies= variants=whole families=qwen3_5_text
compare steps=8 strategies=zero3 variants=lora,pissa,dora families=gpt2
