/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the kernels of one instruction set; compiled once for each. */
#include "engine/device/cpu/kernels.h"

#define TABLE_CAT_(isa) kernels_##isa
#define TABLE_CAT(isa)  TABLE_CAT_(isa)
#define TABLE_STR_(isa) #isa
#define TABLE_STR(isa)  TABLE_STR_(isa)

const struct kernels TABLE_CAT(KERNEL_ISA) = {.isa = TABLE_STR(KERNEL_ISA),
#ifdef __AVX512BF16__
                                              .bf16_dot = true,
#endif
#define X(name, args) .name = KERNEL(name),
                                              KERNELS(X)
#undef X
};
