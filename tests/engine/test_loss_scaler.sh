#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compares the sequences of tests/unit/scaler_cases.h with what DeepSpeed's own class does, where DeepSpeed can be imported.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python for comparisons: set DTRAIN_TEST_PYTHON"; exit 77; }
exec "$DTRAIN_TEST_PYTHON" "$src/tests/engine/loss_scaler.py" --check "$src/tests/unit/scaler_cases.h"
