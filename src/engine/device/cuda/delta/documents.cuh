// SPDX-License-Identifier: Apache-2.0
/* What all of linear attention shares: where documents are, and the sigmoid. */
#pragma once

#include <stdint.h>

static __device__ __forceinline__ float delta_sigmoid(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

/* The document of token t: starts[d] <= t < starts[d + 1]. */
static __device__ __forceinline__ int document_of(const int32_t *starts, int documents, int64_t t)
{
	int low = 0, high = documents - 1;

	while (low < high) {
		int middle = (low + high + 1) / 2;

		if (starts[middle] <= t)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}
