#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compares loss, logits and every gradient of each family with the models of transformers.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
dump=${DTRAIN_BUILD:-.}/tests/engine/grad_dump
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
[ -x "$dump" ] || { echo "no $dump"; exit 77; }
HF_HUB_OFFLINE=1 "$DTRAIN_TEST_PYTHON" "$src/tests/engine/families.py" "$dump" fp32 bf16
