/* SPDX-License-Identifier: Apache-2.0 */
/* What kind of file each source is, by its name's format and its first records. */
#include "engine/dataset/detect.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/chat/exact_json.h"
#include "engine/dataset/columns.h"

enum record_kind source_record_kind(const struct source *s)
{
	switch (s->format) {
	case FORMAT_TEXT:
		return RECORDS_LINES;
	case FORMAT_PARAGRAPHS:
		return RECORDS_PARAGRAPHS;
	case FORMAT_FILES:
		return RECORDS_FILE;
	default:
		return RECORDS_JSON;
	}
}

/* JSON or plain text, for pretraining? By the first character that is no white space. */
static int sniff(struct source *s, struct error *err)
{
	_cleanup_(records_closep) struct records *file = NULL;
	struct record first;
	int r;

	r = records_open(s->path, RECORDS_LINES, &file, err);
	if (r < 0)
		return r;
	r = records_next(file, &first, err);
	if (r <= 0)
		return r;
	while (first.len && strchr(" \t", *first.data)) {
		first.data++;
		first.len--;
	}
	if (*first.data != '{' && *first.data != '[')
		s->format = FORMAT_TEXT;
	return 0;
}

/* Settles format, columns and tags of a file by its first record that tells them. Where none does, the first
 * record's error says why; a file without any JSON is left to be skipped, record by record. */
int dataset_detect_file(struct source *s, enum dataset_task task, struct error *err)
{
	_cleanup_(records_closep) struct records *file = NULL;
	struct error why = ERROR_INIT;
	struct record record;
	int r = 0, first = 0;
	bool any = false, json = false;

	if (s->format == FORMAT_AUTO && task == DATASET_PRETRAIN)
		r = sniff(s, err);
	if (r < 0 || (r = records_open(s->path, source_record_kind(s), &file, err)) < 0 ||
	    source_record_kind(s) != RECORDS_JSON)
		return r;
	while (r == 0 && (r = records_next(file, &record, err)) > 0) {
		_cleanup_free_ char *where = str_printf("%s:%lld", s->path, (long long)record.line);
		_cleanup_json_ json_t *value = exact_json_load(record.data, record.len, NULL);

		if (!where)
			return error_oom(err);
		any = true;
		r = 0;
		if (!value)
			continue;
		json = true;
		r = source_detect(s, value, task, where, first ? NULL : &why);
		if (r == 0)
			return 0;
		first = first ? first : r;
		r = 0;
	}
	if (r == 0 && any && !json && s->format == FORMAT_AUTO)
		return error_set(err, -EINVAL, "%s: neither a JSON array nor JSON lines", s->path);
	if (r < 0 || first == 0)
		return r;
	if (err)
		*err = why;
	return first;
}

int dataset_detect(const struct dataset_options *options, struct source_list *list, struct error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < list->count; i++)
		r = dataset_detect_file(&list->items[i], options->task, err);
	return r;
}
