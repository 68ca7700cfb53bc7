/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the instruction sets that the kernels are compiled for this processor has. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "engine/device/sizes.h"

static enum cpu_isa best_isa(void)
{
#if defined(KERNELS_X86)
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
	    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("bmi2") &&
	    __builtin_cpu_supports("fma"))
		return __builtin_cpu_supports("avx512bf16") ? CPU_ISA_BF16 : CPU_ISA_V4;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
		return CPU_ISA_V3;
#endif
	return CPU_ISA_GENERIC;
}

/* DTRAIN_CPU_ISA (generic, v3, v4 or bf16) names a set below the best one, so that tests on one machine can
 * run all of them. */
enum cpu_isa cpu_isa(void)
{
	static const char *const names[] = {
	    [CPU_ISA_GENERIC] = "generic", [CPU_ISA_V3] = "v3", [CPU_ISA_V4] = "v4", [CPU_ISA_BF16] = "bf16"};
	const char *name = getenv("DTRAIN_CPU_ISA");
	enum cpu_isa best = best_isa();

	for (int i = 0; name && i < (int)best; i++)
		if (str_eq(names[i], name))
			return (enum cpu_isa)i;
	return best;
}

bool cpu_multiplies_bf16(void)
{
	return cpu_isa() == CPU_ISA_BF16;
}
