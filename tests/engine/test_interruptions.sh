#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A few random runs that are killed or stopped, and go on; tests/engine/interruptions.py says what is compared. SEED=N CASES=500: more of them;
# LOAD=1: transformers loads the models, too.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
worker=${DTRAIN_WORKER:-${DTRAIN_BUILD:-.}/dtrain-worker-cpu}
[ -x "$worker" ] || { echo "no worker at $worker: set DTRAIN_BUILD to a build directory"; exit 77; }
python=python3
[ "${LOAD:-0}" = 0 ] || python=${DTRAIN_TEST_PYTHON:?has to name a Python with transformers}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dtrain-engine-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
${CC:-cc} -shared -fPIC -O1 -D_GNU_SOURCE -o "$tmp/die_at.so" "$src/tests/engine/die_at.c" -ldl 2>/dev/null || { echo "no compiler for die_at.c"; exit 77; }
export HF_HUB_OFFLINE=1 SEED=${SEED:-$RANDOM} CASES=${CASES:-6}
"$python" "$src/tests/engine/interruptions.py" "$(readlink -f "$worker")" "$src" "$tmp/die_at.so"
