/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper's kernel of attention, for the files in C. */
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

bool attention_hopper_built(void); /* whether this engine has its code */

#ifdef __cplusplus
}
#endif
