#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compares loss and every gradient in fp8 with PyTorch's conversions to it.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
dump=${DTRAIN_BUILD:-.}/tests/engine/grad_dump
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
[ -x "$dump" ] || { echo "no $dump"; exit 77; }
HF_HUB_OFFLINE=1 "$DTRAIN_TEST_PYTHON" "$src/tests/engine/fp8.py" "$dump"
