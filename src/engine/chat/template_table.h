/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "engine/chat/template.h"

extern const struct template template_table[]; /* ends with a NULL name */
