/* SPDX-License-Identifier: Apache-2.0 */
/* What the node makes of the answers of NVML: its devices, their links, and readings. Each function of the
 * driver is one of this file, or is missing, as in older drivers. */
#include "unit.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "node/gpu/affinity.h"
#include "node/gpu/devices.h"
#include "node/gpu/nvml.h"
#include "node/gpu/read.h"

enum { PARTS = 4, LINKS = 6 };

struct link {
	int code, inactive, remote_code, type_code, type;
	unsigned bus;
};

/* A GPU, or a part of one. */
struct gpu {
	int handle, uuid, name, memory, mig_mode, mig_count, pci, minor, numa, cpus; /* codes */
	unsigned mig, parts, bus, minor_number, numa_bit, cpu_bits[2];
	int part_codes[PARTS];
	struct gpu *part;
	struct link links[LINKS]; /* one that is all zeros is the end */
	int level, level_code;
};

static struct gpu gpus[4];
static unsigned gpu_count;
static int count_code;
static struct nvml nvml;

static int get_count(unsigned *count)
{
	*count = gpu_count;
	return count_code;
}

static int get_handle(unsigned index, void **handle)
{
	*handle = &gpus[index];
	return gpus[index].handle;
}

static int get_name(void *gpu, char *name, unsigned size)
{
	snprintf(name, size, "H200");
	return ((struct gpu *)gpu)->name;
}

static int get_uuid(void *gpu, char *uuid, unsigned size)
{
	snprintf(uuid, size, "U-%u", ((struct gpu *)gpu)->bus);
	return ((struct gpu *)gpu)->uuid;
}

static int get_memory(void *gpu, struct nvml_memory *memory)
{
	*memory = (struct nvml_memory){100, 60, 40};
	return ((struct gpu *)gpu)->memory;
}

static const char *get_error(int code)
{
	return code == NVML_GPU_IS_LOST ? "GPU is lost" : "some error";
}

static int get_pci(void *gpu, struct nvml_pci *pci)
{
	*pci = (struct nvml_pci){.domain = 0x10a, .bus = ((struct gpu *)gpu)->bus, .device = 3};
	return ((struct gpu *)gpu)->pci;
}

static int get_minor(void *gpu, unsigned *minor)
{
	*minor = ((struct gpu *)gpu)->minor_number;
	return ((struct gpu *)gpu)->minor;
}

static int get_cpus(void *gpu, unsigned size, unsigned long *set)
{
	for (size_t i = 0; i < 2; i++)
		set[((struct gpu *)gpu)->cpu_bits[i] / 64] |= 1UL << ((struct gpu *)gpu)->cpu_bits[i] % 64;
	return ((struct gpu *)gpu)->cpus;
}

static int get_numa(void *gpu, unsigned size, unsigned long *set, unsigned scope)
{
	ck_assert_uint_eq(scope, 0);
	set[((struct gpu *)gpu)->numa_bit / 64] = 1UL << ((struct gpu *)gpu)->numa_bit % 64;
	set[size - 1] |= 1UL << 63;
	return ((struct gpu *)gpu)->numa;
}

static int get_mig_mode(void *gpu, unsigned *mode, unsigned *pending)
{
	*mode = ((struct gpu *)gpu)->mig;
	*pending = 1;
	return ((struct gpu *)gpu)->mig_mode;
}

static int get_mig_count(void *gpu, unsigned *count)
{
	*count = ((struct gpu *)gpu)->parts;
	return ((struct gpu *)gpu)->mig_count;
}

static int get_mig_handle(void *gpu, unsigned i, void **out)
{
	*out = &((struct gpu *)gpu)->part[i];
	return ((struct gpu *)gpu)->part_codes[i];
}

static int get_gpu_instance(void *gpu, unsigned *id)
{
	*id = ((struct gpu *)gpu)->bus + 100;
	return NVML_SUCCESS;
}

static int get_compute_instance(void *gpu, unsigned *id)
{
	*id = ((struct gpu *)gpu)->bus + 200;
	return NVML_SUCCESS;
}

static int get_level(void *a, void *b, int *level)
{
	ck_assert_ptr_ne(a, b);
	*level = ((struct gpu *)a)->level;
	return ((struct gpu *)a)->level_code;
}

static const struct link *link_of(void *gpu, unsigned i)
{
	static const struct link none;
	const struct link *l = i < LINKS ? &((struct gpu *)gpu)->links[i] : &none;

	return memcmp(l, &none, sizeof(none)) == 0 ? NULL : l;
}

static int get_link_state(void *gpu, unsigned i, int *active)
{
	const struct link *l = link_of(gpu, i);

	*active = !l || !l->inactive;
	return l ? l->code : NVML_INVALID_ARGUMENT;
}

static int get_link_pci(void *gpu, unsigned i, struct nvml_pci *pci)
{
	*pci = (struct nvml_pci){.domain = 0x10a, .bus = link_of(gpu, i)->bus, .device = 3};
	return link_of(gpu, i)->remote_code;
}

static int get_link_type(void *gpu, unsigned i, int *type)
{
	*type = link_of(gpu, i)->type;
	return link_of(gpu, i)->type_code;
}

static void setup(void)
{
	memset(gpus, 0, sizeof(gpus));
	for (unsigned i = 0; i < ARRAY_SIZE(gpus); i++)
		gpus[i].bus = i + 1;
	gpu_count = 1;
	count_code = NVML_SUCCESS;
	nvml = (struct nvml){.count = get_count,
	                     .handle = get_handle,
	                     .name = get_name,
	                     .uuid = get_uuid,
	                     .memory = get_memory,
	                     .error = get_error,
	                     .pci = get_pci,
	                     .minor = get_minor,
	                     .cpu_affinity = get_cpus,
	                     .memory_affinity = get_numa,
	                     .mig_mode = get_mig_mode,
	                     .mig_count = get_mig_count,
	                     .mig_handle = get_mig_handle,
	                     .gpu_instance = get_gpu_instance,
	                     .compute_instance = get_compute_instance,
	                     .common_ancestor = get_level,
	                     .link_state = get_link_state,
	                     .link_remote_pci = get_link_pci,
	                     .link_remote_type = get_link_type};
}

static struct devices find(void)
{
	struct devices devices = {0};
	struct error err = ERROR_INIT;

	ck_ok(gpus_find(&nvml, &devices.list, &devices.count, &err), &err);
	devices.nvml = &nvml;
	return devices;
}

static struct devices find_and_connect(void)
{
	struct devices devices = find();
	struct error err = ERROR_INIT;

	ck_ok(gpus_connect(&devices, &err), &err);
	return devices;
}

static void release(struct devices *devices)
{
	free(devices->list);
	free(devices->links);
}

/* The link of the first GPU to the second one. */
static void check_link(const char *name)
{
	struct devices found = find_and_connect();

	ck_assert_str_eq(found.links[1], name);
	release(&found);
}

static void check_second_is_whole(void)
{
	struct devices found = find();

	ck_assert_uint_eq(found.count, 2);
	ck_assert(!found.list[1].mig);
	release(&found);
}

START_TEST(a_gpu_is_identified)
{
	struct devices found;
	const struct node_device *d;

	gpus[0].minor_number = 5;
	gpus[0].numa_bit = 70;
	gpus[0].cpu_bits[0] = 3;
	gpus[0].cpu_bits[1] = 66;
	found = find();
	d = &found.list[0];
	ck_assert_uint_eq(found.count, 1);
	ck_assert(d->gpu);
	ck_assert(!d->mig);
	ck_assert_int_eq(d->index, 0);
	ck_assert_str_eq(d->name, "H200");
	ck_assert_str_eq(d->uuid, "U-1");
	ck_assert_uint_eq(d->memory, 100);
	ck_assert_ptr_eq(d->handle, &gpus[0]);
	ck_assert_ptr_eq(d->parent, &gpus[0]);
	ck_assert_str_eq(d->pci, "010a:01:03.0");
	ck_assert_int_eq(d->minor, 5);
	ck_assert_int_eq(d->numa, 70);
	ck_assert_int_eq(CPU_COUNT(&d->cpus), 2);
	ck_assert(CPU_ISSET(3, &d->cpus));
	ck_assert(CPU_ISSET(66, &d->cpus));
	ck_assert_str_eq(d->fault, "");
	release(&found);
}
END_TEST

/* What it does not say is not known; without it the GPU is there all the same. */
START_TEST(a_driver_may_not_say_all)
{
	struct devices found;
	const struct node_device *d;
	cpu_set_t cpus;

	gpus[0].name = NVML_NOT_SUPPORTED;
	if (_i == 0) {
		gpus[0].pci = gpus[0].minor = gpus[0].numa = gpus[0].cpus = NVML_NOT_SUPPORTED;
	} else {
		nvml.pci = NULL;
		nvml.minor = NULL;
		nvml.memory_affinity = NULL;
		nvml.cpu_affinity = NULL;
		nvml.mig_mode = NULL;
	}
	found = find();
	d = &found.list[0];
	ck_assert_str_eq(d->name, "GPU");
	ck_assert_str_eq(d->pci, "");
	ck_assert_int_eq(d->minor, -1);
	ck_assert_int_eq(d->numa, -1);
	ck_assert_int_eq(CPU_COUNT(&d->cpus), 0);
	ck_assert_ptr_eq(d->handle, &gpus[0]);
	release(&found);
	/* The CPUs are those of the node that its memory is of. */
	gpus[0].cpus = NVML_NOT_SUPPORTED;
	nvml.memory_affinity = get_numa;
	gpus[0].numa = NVML_SUCCESS;
	found = find();
	affinity_numa_cpus(0, &cpus);
	ck_assert_int_eq(found.list[0].numa, 0);
	ck_assert(CPU_EQUAL(&found.list[0].cpus, &cpus));
	release(&found);
}
END_TEST

/* Without identity or memory it is broken, and keeps its place. */
START_TEST(a_gpu_that_does_not_answer_is_broken)
{
	int *const codes[] = {&gpus[1].handle, &gpus[1].uuid, &gpus[1].memory};

	gpu_count = 3;
	for (size_t i = 0; i < ARRAY_SIZE(codes); i++) {
		struct devices found;

		*codes[i] = NVML_GPU_IS_LOST;
		found = find_and_connect();
		ck_assert_uint_eq(found.count, 3);
		ck_assert_str_eq(found.list[1].fault, "GPU is lost");
		ck_assert_str_eq(found.list[1].name, "GPU");
		ck_assert_str_eq(found.list[1].uuid, "");
		ck_assert_ptr_null(found.list[1].handle);
		ck_assert_ptr_null(found.list[1].parent);
		ck_assert_int_eq(found.list[1].index, 1);
		ck_assert(found.list[1].gpu);
		ck_assert_str_eq(found.list[2].fault, "");
		ck_assert_str_eq(found.links[1 * 3 + 1], "X");
		ck_assert_str_eq(found.links[1 * 3 + 2], "");
		ck_assert_str_eq(found.links[0 * 3 + 1], "");
		ck_assert_str_eq(found.links[0 * 3 + 2], "PIX");
		release(&found);
		*codes[i] = NVML_SUCCESS;
	}
	count_code = NVML_GPU_IS_LOST;
	ck_assert_uint_eq(find().count, 0);
}
END_TEST

START_TEST(a_gpu_in_mig_mode_gives_its_parts)
{
	static struct gpu parts[PARTS];
	struct devices found;

	for (unsigned i = 0; i < PARTS; i++)
		parts[i].bus = 10 + i;
	gpu_count = 2;
	gpus[1].mig = 1;
	gpus[1].parts = PARTS;
	gpus[1].part = parts;
	gpus[1].minor_number = 7;
	gpus[1].part_codes[0] = NVML_NOT_FOUND;
	parts[1].uuid = NVML_NOT_SUPPORTED;
	parts[3].name = NVML_NOT_SUPPORTED;
	found = find_and_connect();
	ck_assert_uint_eq(found.count, 3);
	ck_assert(!found.list[0].mig);
	for (size_t i = 1; i < 3; i++) {
		const struct node_device *d = &found.list[i];

		ck_assert(d->mig);
		ck_assert_int_eq(d->index, 1);
		ck_assert_ptr_eq(d->handle, &parts[i + 1]);
		ck_assert_ptr_eq(d->parent, &gpus[1]);
		ck_assert_uint_eq(d->gpu_instance, 110 + i + 1);
		ck_assert_uint_eq(d->compute_instance, 210 + i + 1);
		ck_assert_int_eq(d->minor, 7);
		ck_assert_str_eq(d->pci, "010a:02:03.0");
	}
	ck_assert_str_eq(found.list[1].name, "H200");
	ck_assert_str_eq(found.list[2].name, "MIG device");
	ck_assert_str_eq(found.list[2].uuid, "U-13");
	ck_assert_str_eq(found.links[1 * 3 + 2], "MIG");
	ck_assert_str_eq(found.links[2 * 3 + 2], "X");
	ck_assert_str_eq(found.links[0 * 3 + 2], "PIX");
	release(&found);
	/* One that cannot be spoken to is left out, the others are not. */
	gpus[1].part_codes[2] = NVML_GPU_IS_LOST;
	nvml.gpu_instance = nvml.compute_instance = NULL;
	found = find();
	ck_assert_uint_eq(found.count, 2);
	ck_assert_uint_eq(found.list[1].gpu_instance, NVML_NO_INSTANCE);
	ck_assert_uint_eq(found.list[1].compute_instance, NVML_NO_INSTANCE);
	release(&found);
	gpus[1].mig_count = NVML_NOT_SUPPORTED;
	found = find();
	ck_assert_uint_eq(found.count, 1);
	release(&found);
	/* Where its mode is not known, or it is not in it, it is a device itself. */
	gpus[1].mig_mode = NVML_NOT_SUPPORTED;
	check_second_is_whole();
	gpus[1].mig_mode = NVML_SUCCESS;
	gpus[1].mig = 0;
	check_second_is_whole();
	gpus[1].mig = 1;
	nvml.mig_handle = NULL;
	check_second_is_whole();
	nvml.mig_handle = get_mig_handle;
	nvml.mig_count = NULL;
	check_second_is_whole();
}
END_TEST

START_TEST(a_path_has_a_name)
{
	static const struct {
		int level, code;
		const char *name;
	} cases[] = {
	    {0, 0, "PIX"},
	    {10, 0, "PIX"},
	    {11, 0, "PXB"},
	    {20, 0, "PXB"},
	    {21, 0, "PHB"},
	    {30, 0, "PHB"},
	    {31, 0, "NODE"},
	    {40, 0, "NODE"},
	    {41, 0, "SYS"},
	    {50, 0, "SYS"},
	    {10, NVML_NOT_SUPPORTED, ""},
	};
	struct devices found;

	gpu_count = 2;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		gpus[0].level = cases[i].level;
		gpus[0].level_code = cases[i].code;
		found = find_and_connect();
		ck_assert_str_eq(found.links[1], cases[i].name);
		ck_assert_str_eq(found.links[0], "X");
		release(&found);
	}
	nvml.common_ancestor = NULL;
	check_link("");
}
END_TEST

/* Two GPUs; what the wires of the first lead to. */
START_TEST(wires_are_counted)
{
	static const struct {
		struct link links[LINKS], others[LINKS];
		const char *name, *reverse;
	} cases[] = {
	    {{{.bus = 2}, {.bus = 2}}, {{.bus = 1}, {.bus = 1}}, "NV2", "NV2"},
	    /* one that is not active, or not to be asked about, is none; those behind it are */
	    {{{.bus = 2, .inactive = 1}, {.bus = 2}}, {{.bus = 1}}, "NV1", "NV1"},
	    {{{.bus = 2, .code = NVML_NOT_SUPPORTED}, {.bus = 2}}, {{.bus = 1}}, "NV1", "NV1"},
	    /* behind the last one there is none */
	    {{{.bus = 2}, {0}, {.bus = 2}}, {{.bus = 1}}, "NV1", "NV1"},
	    /* into a switch: the fewer of both count */
	    {{{.bus = 9, .type = NVML_REMOTE_SWITCH}, {.bus = 9, .type = NVML_REMOTE_SWITCH}},
	     {{.bus = 9, .type = NVML_REMOTE_SWITCH}},
	     "NV1",
	     "NV1"},
	    /* where it is not said, it is a switch; to another GPU it is none */
	    {{{.bus = 9, .type_code = NVML_NOT_SUPPORTED}},
	     {{.bus = 9, .remote_code = NVML_NOT_SUPPORTED, .type = 1}},
	     "NV1",
	     "NV1"},
	    {{{.bus = 9, .type = NVML_REMOTE_GPU}}, {{.bus = 9, .type = NVML_REMOTE_SWITCH}}, "PXB", "PIX"},
	    /* a direct one counts more than a switch */
	    {{{.bus = 2}, {.bus = 9, .type = 2}, {.bus = 9, .type = 2}},
	     {{.bus = 9, .type = 2}, {.bus = 9, .type = 2}},
	     "NV1",
	     "NV2"},
	};
	struct devices found;

	gpu_count = 2;
	gpus[0].level = NVML_PATH_SWITCHES;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		memcpy(gpus[0].links, cases[i].links, sizeof(cases[i].links));
		memcpy(gpus[1].links, cases[i].others, sizeof(cases[i].others));
		found = find_and_connect();
		ck_assert_msg(str_eq(found.links[1], cases[i].name), "case %zu: %s", i, found.links[1]);
		ck_assert_msg(str_eq(found.links[2], cases[i].reverse), "case %zu: %s", i, found.links[2]);
		release(&found);
	}
	/* Without the functions that tell more, all active ones lead to a switch; without the first, there
	 * are none. */
	nvml.link_remote_pci = NULL;
	nvml.link_remote_type = NULL;
	check_link("NV2");
	nvml.link_state = NULL;
	check_link("PXB");
}
END_TEST

/* ---- CPU slots ---- */

START_TEST(a_machine_without_gpus_has_cpu_slots)
{
	static const struct {
		int cpu_slots, slot_threads, hosts_slots, count, threads; /* threads 0: the share of a slot */
	} cases[] = {
	    {0, 0, 0, 1, 0}, {3, 0, 0, 3, 0}, {3, 7, 2, 3, 7}, {0, 2, 2, 2, 2}, {0, 0, 4096, 4096, 1}};
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	cpu_set_t allowed;
	int cores;

	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	ck_assert_int_eq(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	cores = CPU_COUNT(&allowed);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct daemon_config config = {.cpu_slots = cases[i].cpu_slots,
		                                     .slot_threads = cases[i].slot_threads};
		int threads = cases[i].threads ? cases[i].threads : MAX(cores / cases[i].count, 1);
		struct devices found;
		struct error err = ERROR_INIT;
		char text[64], want[64];

		ck_ok(devices_find(&config, cases[i].hosts_slots, &found, &err), &err);
		ck_assert_uint_eq(found.count, (size_t)cases[i].count);
		ck_assert_ptr_null(found.nvml);
		for (int k = 0; k < cases[i].count; k++) {
			const struct node_device *d = &found.list[k];

			ck_assert(!d->gpu);
			ck_assert_int_eq(d->index, k);
			ck_assert_int_eq(d->numa, -1);
			ck_assert_int_eq(d->threads, threads);
			ck_assert_uint_eq(d->memory, memory / (uint64_t)cases[i].count);
			ck_assert_str_eq(d->name, found.list[0].name);
			ck_assert_str_ne(d->name, "");
			snprintf(want, sizeof(want), "CPU slot %d", k);
			ck_assert_str_eq(node_device_describe(d, text, sizeof(text)), want);
		}
		devices_release(&found);
		ck_assert_ptr_null(found.list);
	}
}
END_TEST

START_TEST(a_device_is_described)
{
	static const struct {
		struct node_device device;
		const char *text;
	} cases[] = {{{.gpu = true, .index = 3, .uuid = "GPU-1"}, "GPU 3 (GPU-1)"},
	             {{.gpu = true, .index = 3}, "GPU 3"},
	             {{.gpu = true, .index = 3, .uuid = "MIG-1", .mig = true}, "MIG device MIG-1 of GPU 3"}};
	char text[64];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		ck_assert_str_eq(node_device_describe(&cases[i].device, text, sizeof(text)), cases[i].text);
}
END_TEST

/* ---- readings ---- */

enum reader {
	MEMORY,
	UTILIZATION,
	TEMPERATURE,
	TEMPERATURE_V,
	POWER,
	POWER_LIMIT,
	ECC,
	ROWS,
	PAGES,
	READERS
};
static int codes[READERS];
static char asked[READERS + 1]; /* a letter for each call, in order */

static int answer(enum reader which)
{
	size_t n = strlen(asked);

	ck_assert_uint_lt(n, READERS);
	asked[n] = "mutvplerg"[which];
	return codes[which];
}

static int read_memory(void *gpu, struct nvml_memory *memory)
{
	*memory = (struct nvml_memory){100, 60, 40};
	ck_assert_ptr_eq(gpu, &gpus[1]);
	return answer(MEMORY);
}

static int read_utilization(void *gpu, struct nvml_utilization *use)
{
	*use = (struct nvml_utilization){81, 82};
	ck_assert_ptr_eq(gpu, &gpus[0]);
	return answer(UTILIZATION);
}

static int read_temperature(void *gpu, int sensor, unsigned *out)
{
	*out = 55;
	ck_assert_int_eq(sensor, NVML_TEMPERATURE_GPU);
	return answer(TEMPERATURE);
}

static int read_temperature_v(void *gpu, struct nvml_temperature *out)
{
	ck_assert_uint_eq(out->version, NVML_TEMPERATURE_V1);
	out->temperature = -3;
	return answer(TEMPERATURE_V);
}

static int read_power(void *gpu, unsigned *out)
{
	*out = 400;
	return answer(POWER);
}

static int read_power_limit(void *gpu, unsigned *out)
{
	*out = 700;
	return answer(POWER_LIMIT);
}

static int read_ecc(void *gpu, int type, int counter, unsigned long long *out)
{
	*out = type == NVML_ECC_UNCORRECTED && counter == NVML_ECC_VOLATILE ? 6 : 99;
	return answer(ECC);
}

static unsigned pending, failed;

static int read_rows(void *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *p, unsigned *q)
{
	*corrected = *uncorrected = 1;
	*p = pending;
	*q = failed;
	return answer(ROWS);
}

static int read_pages(void *gpu, int *enabled)
{
	*enabled = (int)pending;
	return answer(PAGES);
}

static struct gpu_reading read_gpu(bool mig)
{
	const struct node_device device = {.gpu = true, .handle = &gpus[1], .parent = &gpus[0], .mig = mig};
	struct gpu_reading reading;
	double before = clock_realtime();

	memset(asked, 0, sizeof(asked));
	gpu_read(&nvml, &device, &reading);
	ck_assert_double_ge(reading.time, before - 0.01);
	ck_assert_double_le(reading.time, clock_realtime() + 0.01);
	return reading;
}

/* time does not count. */
static void check_reading(const struct gpu_reading *r, const struct gpu_reading *want)
{
	ck_assert_int_eq(r->fault, want->fault);
	ck_assert_int_eq(r->memory_used, want->memory_used);
	ck_assert_int_eq(r->utilization, want->utilization);
	ck_assert_int_eq(r->temperature, want->temperature);
	ck_assert_int_eq(r->power, want->power);
	ck_assert_int_eq(r->power_limit, want->power_limit);
	ck_assert_int_eq(r->ecc_errors, want->ecc_errors);
	ck_assert_int_eq(r->retirement_pending, want->retirement_pending);
	ck_assert_int_eq(r->retirement_failed, want->retirement_failed);
}

static void setup_reading(void)
{
	setup();
	memset(codes, 0, sizeof(codes));
	pending = failed = 0;
	nvml.memory = read_memory;
	nvml.utilization = read_utilization;
	nvml.temperature = read_temperature;
	nvml.temperature_v = read_temperature_v;
	nvml.power = read_power;
	nvml.power_limit = read_power_limit;
	nvml.ecc_errors = read_ecc;
	nvml.remapped_rows = read_rows;
	nvml.retired_pending = read_pages;
}

START_TEST(all_values_are_read)
{
	struct gpu_reading want = {.memory_used = 40,
	                           .utilization = 81,
	                           .temperature = 55,
	                           .power = 400,
	                           .power_limit = 700,
	                           .ecc_errors = 6};
	struct gpu_reading r = read_gpu(false);

	ck_assert_str_eq(asked, "mutpler");
	check_reading(&r, &want);
	pending = 3;
	want.retirement_pending = 1;
	r = read_gpu(false);
	check_reading(&r, &want);
	pending = 0;
	failed = 2;
	want.retirement_pending = 0;
	want.retirement_failed = 1;
	r = read_gpu(false);
	check_reading(&r, &want);
}
END_TEST

START_TEST(what_is_not_supported_is_not_known)
{
	static const struct gpu_reading unknown = {.memory_used = -1,
	                                           .utilization = -1,
	                                           .temperature = -1,
	                                           .power = -1,
	                                           .power_limit = -1,
	                                           .ecc_errors = -1,
	                                           .retirement_pending = -1,
	                                           .retirement_failed = -1};
	struct gpu_reading r;

	for (size_t i = 0; i < READERS; i++)
		codes[i] = NVML_NOT_SUPPORTED;
	if (_i == 1) {
		nvml.utilization = NULL;
		nvml.temperature = NULL;
		nvml.temperature_v = NULL;
		nvml.power = NULL;
		nvml.power_limit = NULL;
		nvml.ecc_errors = NULL;
		nvml.remapped_rows = NULL;
		nvml.retired_pending = NULL;
	}
	r = read_gpu(false);
	ck_assert_str_eq(asked, _i == 1 ? "m" : "mutvplerg");
	check_reading(&r, &unknown);
}
END_TEST

START_TEST(the_other_function_is_asked_then)
{
	struct gpu_reading r;

	codes[TEMPERATURE] = codes[ROWS] = NVML_NOT_SUPPORTED;
	pending = 2;
	r = read_gpu(false);
	ck_assert_str_eq(asked, "mutvplerg");
	ck_assert_int_eq(r.temperature, -3);
	ck_assert_int_eq(r.retirement_pending, 1);
	ck_assert_int_eq(r.retirement_failed, -1);
	nvml.temperature = NULL;
	nvml.remapped_rows = NULL;
	pending = 0;
	r = read_gpu(false);
	ck_assert_str_eq(asked, "muvpleg");
	ck_assert_int_eq(r.temperature, -3);
	ck_assert_int_eq(r.retirement_pending, 0);
}
END_TEST

/* A part has no utilization, and temperature and errors of the whole. */
START_TEST(a_part_is_read_with_its_gpu)
{
	struct gpu_reading r = read_gpu(true);

	ck_assert_str_eq(asked, "mtpler");
	ck_assert_int_eq(r.utilization, -1);
	ck_assert_int_eq(r.memory_used, 40);
	/* It was taken away. */
	codes[MEMORY] = _i ? NVML_NOT_FOUND : NVML_INVALID_ARGUMENT;
	r = read_gpu(true);
	ck_assert_str_eq(asked, "m");
	ck_assert_int_eq(r.fault, NVML_NOT_FOUND);
	ck_assert_int_eq(r.memory_used, -1);
	r = read_gpu(false);
	ck_assert_int_eq(r.fault, 0);
}
END_TEST

/* The first that says so says enough: what comes after it is not asked. */
START_TEST(a_fault_of_the_gpu_ends_a_reading)
{
	static const int faults[] = {NVML_INSUFFICIENT_POWER, NVML_IRQ_ISSUE, NVML_GPU_IS_LOST,
	                             NVML_RESET_REQUIRED};
	static const struct {
		enum reader reader;
		const char *asked;
	} cases[] = {{MEMORY, "m"},    {UTILIZATION, "mu"}, {TEMPERATURE_V, "mutv"},
	             {POWER, "mutvp"}, {ECC, "mutvple"},    {PAGES, "mutvplerg"}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		for (size_t k = 0; k < ARRAY_SIZE(faults); k++) {
			memset(codes, 0, sizeof(codes));
			codes[TEMPERATURE] = codes[ROWS] = NVML_NOT_SUPPORTED;
			codes[cases[i].reader] = faults[k];
			ck_assert_int_eq(read_gpu(false).fault, faults[k]);
			ck_assert_str_eq(asked, cases[i].asked);
		}
	/* A limit that cannot be read says nothing about the GPU. */
	memset(codes, 0, sizeof(codes));
	codes[POWER_LIMIT] = NVML_GPU_IS_LOST;
	ck_assert_int_eq(read_gpu(false).fault, 0);
	ck_assert_int_eq(read_gpu(false).power_limit, -1);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gpus");
	TCase *tc = tcase_create("devices"), *reading = tcase_create("readings");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, a_gpu_is_identified);
	tcase_add_loop_test(tc, a_driver_may_not_say_all, 0, 2);
	tcase_add_test(tc, a_gpu_that_does_not_answer_is_broken);
	tcase_add_test(tc, a_gpu_in_mig_mode_gives_its_parts);
	tcase_add_test(tc, a_path_has_a_name);
	tcase_add_test(tc, wires_are_counted);
	tcase_add_test(tc, a_machine_without_gpus_has_cpu_slots);
	tcase_add_test(tc, a_device_is_described);
	suite_add_tcase(suite, tc);
	tcase_add_checked_fixture(reading, setup_reading, NULL);
	tcase_add_test(reading, all_values_are_read);
	tcase_add_loop_test(reading, what_is_not_supported_is_not_known, 0, 2);
	tcase_add_test(reading, the_other_function_is_asked_then);
	tcase_add_loop_test(reading, a_part_is_read_with_its_gpu, 0, 2);
	tcase_add_test(reading, a_fault_of_the_gpu_ends_a_reading);
	suite_add_tcase(suite, reading);
	return unit_run(suite);
}
