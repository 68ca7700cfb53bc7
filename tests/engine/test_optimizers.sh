#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compares 100 steps of each optimizer with those of PyTorch: on the CPU, one rank and three; on the emulated GPU one.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
dump=${DTRAIN_BUILD:-.}/tests/engine/optimizer_dump
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with PyTorch: set DTRAIN_TEST_PYTHON"; exit 77; }
[ -x "$dump" ] || { echo "no $dump"; exit 77; }
export OMP_NUM_THREADS=1
"$DTRAIN_TEST_PYTHON" "$src/tests/engine/optimizers.py" "$dump" 100 1 3
simt=${DTRAIN_BUILD:-.}/tests/simt/optimizer_dump
[ ! -x "$simt" ] || "$DTRAIN_TEST_PYTHON" "$src/tests/engine/optimizers.py" "$simt" 10 1
