/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the log-probabilities of a reference model in a file, so that a run that resumes compares with the
 * same numbers. The file: the key and a newline, the values as float64, and a hash of all before it.
 */
#include "worker/reference.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/weights.h"

static bool first_rank(const struct reference_file *f)
{
	return !f->comm || comm_rank(f->comm) == 0;
}

static size_t values_bytes(const struct reference_file *f)
{
	return (size_t)trainer_reference_count(f->trainer) * sizeof(double);
}

int reference_save(const struct reference_file *f, struct error *err)
{
	size_t key = strlen(f->key), bytes = values_bytes(f), total = key + 1 + bytes;
	_cleanup_free_ char *path = str_path_join(f->directory, REFERENCE_FILE);
	_cleanup_free_ double *values = malloc(bytes);
	_cleanup_free_ char *text = malloc(total + sizeof(uint64_t));
	uint64_t hash;

	if (!first_rank(f))
		return 0;
	if (!path || !values || !text)
		return error_oom(err);
	trainer_get_reference(f->trainer, values);
	memcpy(text, f->key, key);
	text[key] = '\n';
	memcpy(text + key + 1, values, bytes);
	hash = hash_bytes(text, total, 0);
	memcpy(text + total, &hash, sizeof(hash));
	return file_write_atomic(path, text, total + sizeof(hash), 0666, err);
}

/* The values of a whole file with the key. */
static bool read_values(const struct reference_file *f, double *values)
{
	size_t key = strlen(f->key), bytes = values_bytes(f), total = key + 1 + bytes, len;
	_cleanup_free_ char *path = str_path_join(f->directory, REFERENCE_FILE), *text = NULL;
	uint64_t hash;

	if (!path || file_read(path, 0, &text, &len, NULL) < 0 || len != total + sizeof(hash) ||
	    memcmp(text, f->key, key) != 0 || text[key] != '\n')
		return false;
	memcpy(&hash, text + total, sizeof(hash));
	if (hash != hash_bytes(text, total, 0))
		return false;
	memcpy(values, text + key + 1, bytes);
	return true;
}

int reference_load(const struct reference_file *f, bool *found, struct error *err)
{
	size_t bytes = values_bytes(f) + sizeof(double);
	_cleanup_free_ double *values = calloc(1, bytes); /* 1 where there is a file, and what it has */
	void *staging = NULL;
	int r = 0;

	if (!values)
		return error_oom(err);
	if (first_rank(f) && read_values(f, values + 1))
		values[0] = 1;
	if (f->comm)
		r = device_alloc(f->dev, bytes, &staging, err);
	if (r == 0)
		r = weights_broadcast(f->dev, f->comm, staging, values, bytes, err);
	if (staging)
		device_free(f->dev, staging);
	*found = r == 0 && values[0] > 0;
	if (*found)
		trainer_set_reference(f->trainer, values + 1);
	return r;
}
