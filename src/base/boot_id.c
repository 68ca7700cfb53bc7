/* SPDX-License-Identifier: Apache-2.0 */
/* Which boot of the machine this is, from /proc. */
#include "base/boot_id.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

void boot_id_read(char boot[BOOT_ID_SIZE])
{
	_cleanup_fclose_ FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (!f || !fgets(boot, BOOT_ID_SIZE, f))
		boot[0] = '\0';
	boot[strcspn(boot, "\n")] = '\0';
}
