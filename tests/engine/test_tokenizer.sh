#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ids and texts equal to those of Hugging Face's tokenizers library, on the tokenizers and texts of ../shared.
set -e
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
dump=${DTRAIN_BUILD:-.}/tests/engine/tok_dump
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with tokenizers: set DTRAIN_TEST_PYTHON"; exit 77; }
[ -x "$dump" ] || { echo "no $dump"; exit 77; }
HF_HUB_OFFLINE=1 exec "$DTRAIN_TEST_PYTHON" "$src/tests/engine/tokenizer_compare.py" "$dump" "$src/../shared"
