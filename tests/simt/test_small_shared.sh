#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# On a GPU with 99 KiB of shared memory for a block (sm_86, sm_89, sm_120), instead of 227 as on an H200, kernels that need more use
# smaller tiles, or a smaller part of a row. The attention is that of the engine: cuDNN divides its own work.
cd "${top_builddir:-.}" || exit 1
SIMT_SHARED=99
export SIMT_SHARED
TEST_ATTENTION=own CK_RUN_CASE=cpu tests/simt/test_simt_attention && CK_RUN_CASE="loss and optimizer" tests/simt/test_simt &&
	CK_RUN_CASE=delta SIMT_ONLY=forward tests/simt/test_simt
