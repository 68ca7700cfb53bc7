/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a library at run time, and checks its version and functions. */
#include "engine/device/cuda/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* The directory of a toolkit that was not installed by apt. Packages configure the dynamic loader instead. */
#define TOOLKIT "/usr/local/cuda/lib64"

const char *library_version_text(int version, char *text, size_t size)
{
	if (version % 100)
		snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
	else
		snprintf(text, size, "%d.%d", version / 10000, version / 100 % 100);
	return text;
}

/* The loader's message, if a file exists and cannot be used; "" if there is none. */
struct attempt {
	void *handle;
	char words[256];
};

static bool try(const char *file, struct attempt *a)
{
	size_t n = strlen(file);
	const char *words;

	a->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (a->handle)
		return true;
	words = dlerror();
	/* "FILE: cannot open shared object file: …" is said of the file itself or of one that it needs. */
	if (words && !*a->words &&
	    !(strncmp(words, file, n) == 0 &&
	      strstr(words, ": cannot open shared object file: No such file")))
		snprintf(a->words, sizeof(a->words), "%s", words);
	return false;
}

/* `directory` need not end in a zero after its n characters. */
static bool try_in(const char *directory, size_t n, const char *soname, struct attempt *a)
{
	char file[LIBRARY_PATH_MAX];

	return n && snprintf(file, sizeof(file), "%.*s/%s", (int)n, directory, soname) < (int)sizeof(file) &&
	       try(file, a);
}

static void find(const char *soname, struct attempt *a)
{
	const char *list = getenv("DTRAIN_LIBRARY_PATH");

	while (list && *list) {
		size_t n = strcspn(list, ":");

		if (try_in(list, n, soname, a))
			return;
		list += n + (list[n] == ':');
	}
	if (!try(soname, a))
		try_in(TOOLKIT, strlen(TOOLKIT), soname, a);
}

static void path_of(void *handle, const char *soname, char *path, size_t size)
{
	struct link_map *map = NULL;

	if (dlinfo(handle, RTLD_DI_LINKMAP, &map) < 0 || !map || !*map->l_name)
		snprintf(path, size, "%s", soname);
	else
		snprintf(path, size, "%s", map->l_name);
}

static int check(const struct library *l, void *handle, const char *path, int *version, struct error *err)
{
	void *function = dlsym(handle, l->version_symbol);
	char want[24], have[24];
	int v = function ? l->version(function) : -1;

	library_version_text(l->minimum, want, sizeof(want));
	if (v < 0)
		return error_set(err, -ELIBBAD,
		                 "%s does not say its version: %s %s or newer is needed: apt install %s",
		                 path, l->title, want, l->package);
	library_version_text(v, have, sizeof(have));
	if (v < l->minimum)
		return error_set(err, -ELIBBAD,
		                 "%s is too old: it is %s %s, %s or newer is needed: apt install %s", path,
		                 l->title, have, want, l->package);
	for (size_t i = 0; i < l->symbol_count; i++)
		if (!dlsym(handle, l->symbols[i].name))
			return error_set(err, -ELIBBAD,
			                 "%s (%s %s) lacks %s, which this engine calls: apt install %s", path,
			                 l->title, have, l->symbols[i].name, l->package);
	*version = v;
	return 0;
}

int library_load(const struct library *l, struct library_found *found, struct error *err)
{
	char path[LIBRARY_PATH_MAX], want[24];
	struct attempt a = {0};
	int version = 0, r;

	find(l->soname, &a);
	if (!a.handle && *a.words)
		return error_set(err, -ELIBBAD, "%s cannot be loaded: %s", l->soname, a.words);
	if (!a.handle)
		return error_set(err, -ENOENT,
		                 "%s is not installed: %s %s or newer is needed: apt install %s, or name its "
		                 "directory in DTRAIN_LIBRARY_PATH",
		                 l->soname, l->title, library_version_text(l->minimum, want, sizeof(want)),
		                 l->package);
	path_of(a.handle, l->soname, path, sizeof(path));
	r = check(l, a.handle, path, &version, err);
	if (r < 0) {
		dlclose(a.handle);
		return r;
	}
	for (size_t i = 0; i < l->symbol_count; i++)
		*l->symbols[i].to = dlsym(a.handle, l->symbols[i].name);
	for (size_t i = 0; i < l->optional_count; i++)
		*l->optional[i].to = dlsym(a.handle, l->optional[i].name);
	if (found) {
		found->version = version;
		memcpy(found->path, path, sizeof(path));
	}
	return 0;
}
