/* SPDX-License-Identifier: Apache-2.0 */
/* A directory for each test of a dataset, files in it, options that count warnings, and rows as text. */
#pragma once

#include "engine/dataset/dataset.h"
#include "unit.h"

#include "stub_tokenizer.h"

static char *dir; /* one per test, by the fixture */

static void setup(void)
{
	dir = unit_tmpdir();
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

/* Writes a file of the test's directory; its path is valid until the test ends. */
static const char *put(const char *name, const char *content)
{
	static char paths[8][256];
	static int next;
	char *path = paths[next++ % 8];
	struct error err = ERROR_INIT;

	snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
	ck_ok(file_write_atomic(path, content, strlen(content), 0644, &err), &err);
	return path;
}

struct notes {
	int warnings, builds, waits;
	char last[1024];
};

static void note_warning(void *context, const char *message)
{
	struct notes *n = context;

	n->warnings++;
	snprintf(n->last, sizeof(n->last), "%s", message);
}

static void note_progress(void *context, const char *what, int64_t done, int64_t total)
{
	struct notes *n = context;

	n->builds += str_eq(what, "tokenizing") && done == 0;
	n->waits += !str_eq(what, "tokenizing");
}

static const char *only[2]; /* paths */

static struct dataset_options options(const char *path, struct notes *notes)
{
	only[0] = path;
	return (struct dataset_options){
	    .task = DATASET_SFT,
	    .paths = only,
	    .template_name = "chatml",
	    .max_length = 1000,
	    .seed = 1,
	    .cache_dir = dir,
	    .warn = note_warning,
	    .warn_context = notes,
	    .progress = note_progress,
	    .progress_context = notes,
	};
}

/* Row `index` as text: "ids|labels", the labels unshifted again. */
static char *row_text(const struct dataset *data, int64_t index)
{
	struct dataset_row row;
	_cleanup_free_ char *ids = NULL, *targets = NULL;

	dataset_row(data, index, &row);
	ids = stub_text(row.ids, row.length);
	targets = stub_text(row.targets, row.length);
	return str_printf("%s|_%s", ids, targets);
}

#define ck_row(data, index, want)                                                                            \
	do {                                                                                                 \
		char *ck_text_ = row_text((data), (index));                                                  \
		ck_assert_str_eq(ck_text_, (want));                                                          \
		free(ck_text_);                                                                              \
	} while (0)
