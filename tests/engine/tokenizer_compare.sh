#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares with Hugging Face's tokenizers library; skipped (77) where that or ../shared is absent. PYTHON names an
# interpreter that has it.
srcdir=${srcdir:-.}
shared=${DTRAIN_SHARED:-$srcdir/../shared}
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "SKIP: tokenizer_compare: no $python"; exit 77; }
exec "$python" "$srcdir/tests/engine/tokenizer_compare.py" tests/engine/tok_dump "$shared"
