#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compares NF4 with bitsandbytes, where it can be imported: bytes, and directories that transformers has saved.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python for comparisons: set DTRAIN_TEST_PYTHON"; exit 77; }
exec "$DTRAIN_TEST_PYTHON" "$src/tests/engine/nf4.py" "${DTRAIN_BUILD:-$src/build}/tests/engine"
