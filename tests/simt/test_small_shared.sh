#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# On a GPU that gives a block 99 KiB of shared memory (sm_86, sm_89, sm_120) instead of an H200's 227: kernels that hold more take
# smaller tiles, or less of a row.
cd "${top_builddir:-.}" || exit 1
SIMT_SHARED=99
export SIMT_SHARED
CK_RUN_CASE=cpu tests/simt/test_simt_attention && CK_RUN_CASE="loss and optimizer" tests/simt/test_simt
