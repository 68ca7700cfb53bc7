/* SPDX-License-Identifier: Apache-2.0 */
/* Loads NCCL as a worker of several ranks does, and prints its version or the error. */
#include <nccl.h>
#include <stdio.h>

#include "engine/comm/nccl/library.h"

int main(void)
{
	struct error err = ERROR_INIT;
	int version = 0;

	if (nccl_load(&err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	if (ncclGetVersion(&version) != ncclSuccess)
		return 1;
	printf("%d\n", version);
	return 0;
}
