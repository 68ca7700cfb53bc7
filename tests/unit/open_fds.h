/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that nothing is left open. */
#pragma once

#include <fcntl.h>
#include <stddef.h>

/* Descriptors that this process has open. */
static inline size_t open_fds_count(void)
{
	size_t n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}
