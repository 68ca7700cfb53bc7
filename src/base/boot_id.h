/* SPDX-License-Identifier: Apache-2.0 */
/* Which boot of the machine this is. */
#pragma once

enum { BOOT_ID_SIZE = 40 };

/* The kernel's random id of this boot; empty where it is not known. */
void boot_id_read(char boot[BOOT_ID_SIZE]);
