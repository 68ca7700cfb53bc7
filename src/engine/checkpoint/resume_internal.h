/* SPDX-License-Identifier: Apache-2.0 */
/* Of resume.h: what opening a checkpoint leaves to reading it. */
#pragma once

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/resume.h"

struct resume {
	struct ranks ranks;
	char *directory;
	bool plain; /* without an index */
	struct manifest_index index;
	char *text;          /* of the index */
	size_t each;         /* of a rank's part of `seen` */
	unsigned char *seen; /* [ranks][each]: of the files of each earlier rank; then of the index */
};

/* The k-th rank that finds the files of an earlier rank, counted around; -1: none does. */
int resume_finder(const struct resume *resume, int earlier, int k);
bool resume_all_find(const struct resume *resume, int earlier);
/* The file with the state of an earlier rank whose list this rank finds, owned by the caller; *path stays
 * NULL where the list names none: the rank held no state. A file that the list names and that is missing here
 * is an error of opening it. */
int resume_find_state(const struct resume *resume, int earlier, char **path, struct error *err);
