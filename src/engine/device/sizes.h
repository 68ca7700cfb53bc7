/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sizes that an engine chooses, or needs, by the shapes of a run alone. The engines answer
 * device_logits_bytes and device_scratch_bytes with them, and an estimate asks the same functions without a
 * device, so that it plans what a worker allocates.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/device/device.h"

enum device_engine { DEVICE_ENGINE_CPU, DEVICE_ENGINE_CUDA };

/* What of an engine the sizes depend on. */
struct device_sizing {
	enum device_engine engine;
	int threads;      /* CPU */
	bool native_bf16; /* CPU: it multiplies bf16 without widening it */
	bool cudnn;       /* CUDA: cuDNN computes attention */
};

/* Of a device, and the bytes of its memory, which the slots of a CPU share; each engine defines it. */
void device_get_sizing(const struct device *dev, struct device_sizing *out, int64_t *memory);

size_t device_sizing_logits(enum device_engine engine); /* device_logits_bytes */
/* device_scratch_bytes. cuDNN alone knows its workspace: with it this is what its backward pass is known to
 * take, a sum of the queries' gradients in fp32. */
size_t device_sizing_scratch(const struct device_sizing *s, const struct device_shapes *shapes);

/* Channels of linear attention's convolution: q, k and v. */
static inline int device_delta_channels(const struct device_delta_shape *d)
{
	return 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim;
}

/* Which kernels compute attention. */
enum device_attention_kernels {
	DEVICE_ATTENTION_FAST,     /* the fastest that the engine has, of a library, too */
	DEVICE_ATTENTION_PORTABLE, /* CUDA: its own for any GPU's tensor cores */
	DEVICE_ATTENTION_PLAIN     /* CUDA: its own in fp32 arithmetic, which is tens of times slower */
};
enum device_attention_kernels device_sizing_attention(const struct device_sizing *s, enum dtype type,
                                                      int head_dim, bool capped);

/* What the engine's libraries keep of the products of a run, beyond the scratch. accumulates: gradients are
 * added to by further micro-steps. */
size_t device_sizing_packing(const struct device_sizing *s, const struct device_shapes *shapes,
                             bool accumulates);

/* cpu/isa.c: the instruction sets that the CPU's kernels are compiled for, each with those before it. */
enum cpu_isa { CPU_ISA_GENERIC, CPU_ISA_V3, CPU_ISA_V4, CPU_ISA_BF16 };
/* This processor's best, or the lesser one that the environment's DTRAIN_CPU_ISA names. */
enum cpu_isa cpu_isa(void);
bool cpu_multiplies_bf16(void);

/* With up to this many rows, reading B takes most of the time of a product. gemv reads B once; a library
 * would also copy it into a packed form. */
#define CPU_SMALL_ROWS 4

/* cpu/sizes.c */
size_t cpu_logits_bytes(void);
size_t cpu_scratch_bytes(const struct device_shapes *s, int threads, bool native_bf16);
/* cpu/library_sizes.c: parts of matrices that OpenBLAS or oneDNN copies, and of oneDNN the code and the
 * scratch memory of each product. */
size_t cpu_packing_bytes(const struct device_shapes *s, bool accumulates, int threads, bool native_bf16);

/* cuda/sizes.c; without cuDNN's. */
size_t cuda_logits_bytes(void);
size_t cuda_scratch_bytes(const struct device_shapes *s);
enum device_attention_kernels cuda_attention_kernels(enum dtype type, int head_dim, bool capped);
