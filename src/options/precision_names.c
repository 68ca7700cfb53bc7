/* SPDX-License-Identifier: Apache-2.0 */
/* The names that a run file has for precisions. */
#include "options/precision_names.h"

#include "base/str.h"

static const struct {
	const char *name;
	enum dtype type;
} precisions[] = {{"fp32", DTYPE_F32}, {"bf16", DTYPE_BF16}, {"fp16", DTYPE_F16}};

bool precision_parse(const char *name, enum dtype *type)
{
	for (size_t i = 0; i < ARRAY_SIZE(precisions); i++) {
		if (str_eq(name, precisions[i].name)) {
			*type = precisions[i].type;
			return true;
		}
	}
	return str_eq(name, "auto");
}

bool precision_is_fp8(const char *name)
{
	return str_eq(name, "fp8");
}

const char *precision_name(enum dtype type)
{
	for (size_t i = 0; i < ARRAY_SIZE(precisions); i++)
		if (precisions[i].type == type)
			return precisions[i].name;
	return "?";
}
