#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compares the rows of datasets with an implementation of the same rules in Python over Hugging Face's tokenizers.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
dump=${DTRAIN_BUILD:-.}/tests/engine/dataset_dump
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with tokenizers: set DTRAIN_TEST_PYTHON"; exit 77; }
[ -x "$dump" ] || { echo "no $dump"; exit 77; }
HF_HUB_OFFLINE=1 exec "$DTRAIN_TEST_PYTHON" "$src/tests/engine/dataset_reference.py" "$dump" "$src/../shared"
