#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares rows with tests/engine/dataset_reference.py; skipped (77) where ../shared or Hugging Face's tokenizers
# library is absent. PYTHON names an interpreter that has it.
srcdir=${srcdir:-.}
shared=${DTRAIN_SHARED:-$srcdir/../shared}
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "SKIP: dataset_reference: no $python"; exit 77; }
exec "$python" "$srcdir/tests/engine/dataset_reference.py" tests/engine/dataset_dump "$shared"
