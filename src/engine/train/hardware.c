/* SPDX-License-Identifier: Apache-2.0 */
/* The table of devices that a run can be planned for, and the notation in which they are named. */
#include "engine/train/hardware.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

#define MIB          ((int64_t)1 << 20)
#define NODE_DEVICES 8
#define DEVICES_MAX  (1 << 20)

/* Memory is what CUDA reports (totalGlobalMem), the least that programs have published; the driver keeps the
 * rest of what nvidia-smi shows. Peaks and bandwidths are the makers' data sheets'; links are NVLink's or
 * PCIe's rate in one direction, and one network adapter a device (400 Gb/s for H100 and newer, 200 Gb/s for
 * A100 and L40S, 100 Gb/s for the others). The shares that are reached are published ones: products on H100
 * 620 to 680 TFLOP/s of 989 for long under its power limit, on A100 255 of 312; attention by cuDNN on H100
 * and H200 591 and 474 TFLOP/s forward and backward; NCCL's bus bandwidth about 0.8 of a link. The portable
 * kernels of attention were measured on an H200 (tests/bench/RESULTS.md); on a B200 a multiprocessor is taken
 * to be as fast with them.
 *
 * A communicator of NCCL takes memory at its first collectives: some 9 MiB for the connections of each
 * channel of its rings, of which there are 16 to 24 (32 on B200), and, where the switches of NVLink sum
 * (Hopper and newer), 2 MiB for each of 16 channels (24 to 32 on B200) and each rank of a node, 256 MiB with
 * 8 of them. A lane of two ranks, or of one rank of each node, has little or nothing of the latter, as have
 * GPUs without such switches, and GPUs without NVLink have fewer channels. The same is counted for all of
 * them, an upper estimate. */
#define GPU(name_, board_, cudnn_, comm_)                                                                    \
	.name = name_, .board = board_, .sizing = {.engine = DEVICE_ENGINE_CUDA, .cudnn = cudnn_},           \
	.outside = 1024 * MIB, .outside_comm = (comm_)*MIB, .outside_lane = (comm_)*MIB, .stream = 0.85,     \
	.link = 0.8, .start = 4e-6, .latency = 1.2e-5, .overlap = 0.15
static const struct hardware table[] = {
    {GPU("H100-80GB", "H100", true, 512), .memory = 81000 * MIB, .shown = 81559 * MIB, .fp32 = 66.9e12,
     .bf16 = 989.4e12, .fp16 = 989.4e12, .fp8 = 1978.9e12, .bandwidth = 3.35e12, .intra = 450e9,
     .inter = 50e9, .gemm = 0.66, .attention_forward = 0.58, .attention_backward = 0.46,
     .portable_forward = 0.29, .portable_backward = 0.18},
    {GPU("H200-141GB", "H200", true, 512), .memory = 143155 * MIB, .shown = 143771 * MIB, .fp32 = 66.9e12,
     .bf16 = 989.4e12, .fp16 = 989.4e12, .fp8 = 1978.9e12, .bandwidth = 4.8e12, .intra = 450e9, .inter = 50e9,
     .gemm = 0.66, .attention_forward = 0.58, .attention_backward = 0.46, .portable_forward = 0.29,
     .portable_backward = 0.18},
    {GPU("B200-180GB", "B200", true, 768), .memory = 182630 * MIB, .shown = 183359 * MIB, .fp32 = 75e12,
     .bf16 = 2250e12, .fp16 = 2250e12, .fp8 = 4500e12, .bandwidth = 7.7e12, .intra = 900e9, .inter = 50e9,
     .gemm = 0.62, .attention_forward = 0.5, .attention_backward = 0.4, .portable_forward = 0.15,
     .portable_backward = 0.1},
    {GPU("A100-80GB", "A100", false, 512), .memory = 81152 * MIB, .shown = 81920 * MIB, .fp32 = 19.5e12,
     .bf16 = 312e12, .fp16 = 312e12, .bandwidth = 2.039e12, .intra = 300e9, .inter = 25e9, .gemm = 0.82,
     .attention_forward = 0.55, .attention_backward = 0.45},
    {GPU("A100-40GB", "A100", false, 512), .memory = 40325 * MIB, .shown = 40960 * MIB, .fp32 = 19.5e12,
     .bf16 = 312e12, .fp16 = 312e12, .bandwidth = 1.555e12, .intra = 300e9, .inter = 25e9, .gemm = 0.82,
     .attention_forward = 0.55, .attention_backward = 0.45},
    {GPU("L40S-48GB", "L40S", false, 512), .memory = 45486 * MIB, .shown = 46068 * MIB, .fp32 = 91.6e12,
     .bf16 = 362e12, .fp16 = 362e12, .fp8 = 733e12, .bandwidth = 864e9, .intra = 25e9, .inter = 25e9,
     .gemm = 0.65, .attention_forward = 0.5, .attention_backward = 0.4},
    {GPU("RTX4090-24GB", "RTX 4090", false, 512), .memory = 24084 * MIB, .shown = 24564 * MIB,
     .fp32 = 82.6e12, .bf16 = 165.2e12, .fp16 = 165.2e12, .fp8 = 330.3e12, .bandwidth = 1.008e12,
     .intra = 20e9, .inter = 12.5e9, .gemm = 0.85, .attention_forward = 0.6, .attention_backward = 0.5},
    {GPU("RTX3090-24GB", "RTX 3090", false, 512), .memory = 24125 * MIB, .shown = 24576 * MIB,
     .fp32 = 35.6e12, .bf16 = 71e12, .fp16 = 71e12, .bandwidth = 936e9, .intra = 20e9, .inter = 12.5e9,
     .gemm = 0.85, .attention_forward = 0.6, .attention_backward = 0.5},
    /* A thread of the processor that tests/bench/RESULTS.md describes; --measure makes better figures. */
    {.name = "cpu",
     .board = "",
     .sizing = {.engine = DEVICE_ENGINE_CPU, .threads = 1},
     .fp32 = 267e9,
     .bf16 = 541e9,
     .bandwidth = 12e9,
     .intra = 6e9,
     .inter = 1.25e9,
     .outside = 128 * MIB / 10,
     .outside_bf16 = 27 * MIB / 10,
     .outside_adapters = 10 * MIB,
     .outside_comm = 106 * MIB / 10,
     .outside_lane = 83 * MIB / 10,
     .gemm = 0.85,
     .attention_forward = 0.3,
     .attention_backward = 0.3,
     .stream = 0.8,
     .link = 0.8,
     .start = 2e-6,
     .latency = 1e-5,
     .overlap = 1},
};

const struct hardware *hardware_at(size_t i)
{
	return i < ARRAY_SIZE(table) ? &table[i] : NULL;
}

bool hardware_find(const char *name, struct hardware *out)
{
	const struct hardware *of_board = NULL;
	int boards = 0;

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		size_t board = strcspn(table[i].name, "-");

		if (strcasecmp(name, table[i].name) == 0) {
			*out = table[i];
			return true;
		}
		if (strlen(name) == board && strncasecmp(name, table[i].name, board) == 0) {
			of_board = &table[i];
			boards++;
		}
	}
	if (boards != 1)
		return false;
	*out = *of_board;
	return true;
}

/* Where threads do not divide evenly among processors, those that share one with more make the others wait at
 * each collective, until they are moved: that share of the difference was measured with 3 threads on 2. */
static double crowd(int slots, int threads, int processors)
{
	double even = MAX((double)slots * threads / processors, 1);

	return even + 0.2 * (ceil(even) - even);
}

void hardware_fill_cpu(struct hardware *h, int slots, int threads, int processors)
{
	double n;

	if (processors <= 0)
		processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
	if (threads <= 0)
		threads = MAX(processors / slots, 1);
	n = threads;
	h->memory = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE) / slots;
	h->slots = slots;
	h->crowd = crowd(slots, threads, processors);
	h->sizing.threads = threads;
	h->sizing.native_bf16 = cpu_multiplies_bf16();
	h->fp32 *= n;
	h->bf16 = h->sizing.native_bf16 ? h->bf16 * n : 0;
	h->fp16 = h->fp32; /* in which it is multiplied */
	h->bandwidth *= n;
}

const struct hardware *hardware_by_board(const char *board, int64_t memory)
{
	const struct hardware *best = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		const struct hardware *h = &table[i];

		if (!h->board[0] || !strstr(board, h->board))
			continue;
		if (!best || llabs(h->shown - memory) < llabs(best->shown - memory))
			best = h;
	}
	return best;
}

int64_t hardware_usable(const struct hardware *h, int64_t shown)
{
	return (int64_t)((double)shown * ((double)h->memory / (double)h->shown));
}

double hardware_peak(const struct hardware *h, enum dtype type)
{
	return type == DTYPE_F32 ? h->fp32 : type == DTYPE_F16 ? h->fp16 : h->bf16;
}

char *hardware_rates_path(enum device_engine engine)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	const char *name = engine == DEVICE_ENGINE_CUDA ? "rates-cuda.json" : "rates-cpu.json";

	if (cache && cache[0] == '/')
		return str_printf("%s/dtrain/%s", cache, name);
	return str_printf("%s/.cache/dtrain/%s", home && home[0] ? home : "/root", name);
}

int hardware_read_rates(const struct hardware *h, struct rates **out, struct error *err)
{
	_cleanup_free_ char *path = hardware_rates_path(h->sizing.engine);
	_cleanup_free_ struct rates *rates = NULL;
	int r;

	*out = NULL;
	if (!path)
		return error_oom(err);
	if (!file_exists(path))
		return 0;
	if ((r = rates_read(path, &rates, err)) < 0)
		return r;
	if (strstr(rates->device, h->board))
		*out = steal_pointer(rates);
	return 0;
}

static int unknown_name(const char *name, struct error *err)
{
	size_t best = strlen(name) / 2 + 1;
	const char *near = NULL;
	char names[256] = "";

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		size_t n = strlen(names), d;
		char begin[24];

		snprintf(names + n, sizeof(names) - n, "%s%s", i ? ", " : "", table[i].name);
		/* "A100" could be "A100-80GB", and "H10" is nearest to "H100-80GB". */
		snprintf(begin, sizeof(begin), "%.*s", (int)strcspn(table[i].name, "-"), table[i].name);
		d = MIN(str_distance(name, table[i].name), str_distance(name, begin));
		if (d < best) {
			best = d;
			near = table[i].name;
		}
	}
	return error_set(err, -EINVAL, "no device \"%.40s\" is known%s%s%s one of %s, or cluster", name,
	                 near ? "; did you mean " : "", near ? near : "", near ? "? Expected" : "; expected",
	                 names);
}

/* "8x": the number before an x, and the text behind it; 0: there is none. */
static int read_count(const char **text, int64_t *out, struct error *err)
{
	size_t digits = strspn(*text, "0123456789");
	char number[16];

	*out = 0;
	if (digits == 0 || ((*text)[digits] != 'x' && (*text)[digits] != 'X'))
		return 0;
	snprintf(number, sizeof(number), "%.*s", (int)MIN(digits, sizeof(number) - 1), *text);
	if (str_to_int64(number, 1, DEVICES_MAX, out) < 0)
		return error_set(err, -EINVAL, "%s devices: expected 1 to %d", number, DEVICES_MAX);
	*text += digits + 1;
	return 0;
}

int hardware_parse(const char *text, struct hardware_set *out, struct error *err)
{
	int64_t first, second = 0;
	const char *name = text;
	int r;

	if ((r = read_count(&name, &first, err)) < 0 || (first && (r = read_count(&name, &second, err)) < 0))
		return r;
	if (!hardware_find(name, &out->device))
		return unknown_name(name, err);
	if (second == 0 && first > NODE_DEVICES && out->device.sizing.engine == DEVICE_ENGINE_CUDA) {
		if (first % NODE_DEVICES)
			return error_set(err, -EINVAL,
			                 "%lld devices are no whole nodes of %d; expected NODESxDEVICESx%s",
			                 (long long)first, NODE_DEVICES, out->device.name);
		second = NODE_DEVICES;
		first /= NODE_DEVICES;
	}
	if (first * MAX(second, 1) > DEVICES_MAX)
		return error_set(err, -EINVAL, "%s: more than %d devices", text, DEVICES_MAX);
	out->nodes = first == 0 ? 0 : second == 0 ? 1 : (int)first;
	out->per_node = (int)(second == 0 ? first : second);
	return 0;
}
