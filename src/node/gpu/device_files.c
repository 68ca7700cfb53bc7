/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the device files of a run, by NVIDIA's names for them. */
#include "node/gpu/device_files.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

/* What a user may open of these is decided by their permissions. */
static const char *const of_all[] = {
    "/dev/infiniband/*", "/dev/gdrdrv", "/dev/knem", "/dev/xpmem", "/dev/fuse", "/dev/net/tun",
};
static const char *const of_gpus[] = {
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    "/dev/nvidia-caps-imex-channels/*",
};

struct list {
	const char *root;
	char **paths;
	size_t count;
	bool failed;
};

/* All devices of that pattern, without the root: systemd refuses a unit with another file. */
static void add(struct list *list, const char *pattern)
{
	_cleanup_free_ char *full = str_printf("%s%s", list->root, pattern);
	glob_t found = {0};

	if (full && glob(full, GLOB_NOSORT, NULL, &found) == 0) {
		char **grown = reallocarray(list->paths, list->count + found.gl_pathc + 1, sizeof(*grown));

		list->failed = list->failed || !grown;
		list->paths = grown ? grown : list->paths;
		for (size_t i = 0; grown && i < found.gl_pathc && !list->failed; i++) {
			struct stat st;

			if (stat(found.gl_pathv[i], &st) < 0 || !(S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)))
				continue;
			grown[list->count] = strdup(found.gl_pathv[i] + strlen(list->root));
			list->failed = !grown[list->count];
			list->count += !list->failed;
		}
		if (grown)
			grown[list->count] = NULL;
	}
	globfree(&found);
	list->failed = list->failed || !full;
}

/* "DeviceFileMinor: 12" of a file in /proc/driver/nvidia/capabilities. */
static void add_capability(struct list *list, const char *name)
{
	_cleanup_free_ char *path =
	                        str_printf("%s/proc/driver/nvidia/capabilities/%s/access", list->root, name),
	                    *text = NULL;
	const char *line;
	char file[64];
	int minor;

	if (!path || file_read(path, 4096, &text, NULL, NULL) < 0)
		return;
	line = strstr(text, "DeviceFileMinor:");
	if (!line || sscanf(line, "DeviceFileMinor: %d", &minor) != 1)
		return;
	snprintf(file, sizeof(file), "/dev/nvidia-caps/nvidia-cap%d", minor);
	add(list, file);
}

static void add_gpu(struct list *list, const struct node_device *d)
{
	char name[100];

	/* Where the driver does not say which file belongs to the GPU, the run may open those of all GPUs. */
	if (d->minor < 0) {
		add(list, "/dev/nvidia[0-9]*");
		if (d->mig)
			add(list, "/dev/nvidia-caps/*");
		return;
	}
	snprintf(name, sizeof(name), "/dev/nvidia%d", d->minor);
	add(list, name);
	if (!d->mig)
		return;
	snprintf(name, sizeof(name), "gpu%d/mig/gi%u", d->minor, d->gpu_instance);
	add_capability(list, name);
	snprintf(name, sizeof(name), "gpu%d/mig/gi%u/ci%u", d->minor, d->gpu_instance, d->compute_instance);
	add_capability(list, name);
}

char **device_files(const char *root, const struct devices *devices, const int *slots, size_t count,
                    char *const *more)
{
	struct list list = {.root = root, .paths = calloc(1, sizeof(char *))};
	bool gpu = false;

	list.failed = !list.paths;
	for (size_t i = 0; i < count; i++) {
		const struct node_device *d = &devices->list[slots[i]];

		if (d->gpu)
			add_gpu(&list, d);
		gpu = gpu || d->gpu;
	}
	for (size_t i = 0; gpu && i < ARRAY_SIZE(of_gpus); i++)
		add(&list, of_gpus[i]);
	for (size_t i = 0; i < ARRAY_SIZE(of_all); i++)
		add(&list, of_all[i]);
	for (; more && *more; more++)
		add(&list, *more);
	if (!list.failed)
		return list.paths;
	str_list_free(list.paths);
	return NULL;
}

char *device_files_unmatched(const char *root, char *const *patterns)
{
	for (; patterns && *patterns; patterns++) {
		struct list list = {.root = root};
		bool matched;

		add(&list, *patterns);
		matched = list.failed || list.count > 0;
		str_list_free(list.paths);
		if (!matched)
			return strdup(*patterns);
	}
	return NULL;
}
