/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The readers of datasets: the first byte chooses between records of each kind (JSON ones go on through
 * format detection, conversion and encoding; of pairs, labels and prompts, too), dataset_info.json, the
 * mapping of columns and tags, and a cache file.
 */
#include <stdint.h>

#include "base/json.h"
#include "engine/chat/encode.h"
#include "engine/dataset/cache.h"
#include "engine/dataset/columns.h"
#include "engine/dataset/convert.h"
#include "engine/dataset/reader.h"
#include "engine/dataset/source.h"

#include "../unit/stub_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_record(struct source *s, const struct encoder *enc, enum dataset_task task,
                        const struct record *record, bool *detected)
{
	struct token_list ids = {0}, labels = {0}, prompt = {0};
	struct example e = {0};
	struct error err = ERROR_INIT;
	int64_t cut = 0;

	if (!*detected) {
		_cleanup_json_ json_t *value =
		    json_loadb(record->data, record->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

		*detected = value && source_detect(s, value, task, "f:1", &err) == 0;
		if (!*detected)
			return;
	}
	if (example_convert(s, task, record->data, record->len, "f:1", &e, &err) == 0 &&
	    task == DATASET_SFT && encoder_conversation(enc, &e, &ids, &labels, &cut, &err) == 0) {
		if (ids.len != labels.len || ids.len > (size_t)enc->cutoff + 1 || cut < 0)
			abort();
	}
	if ((task == DATASET_PAIRS || task == DATASET_LABELS) && err.code == 0 &&
	    encoder_answers(enc, &e, &prompt, &ids, task == DATASET_PAIRS ? &labels : NULL, &err) == 0 &&
	    e.count % 2)
		abort();
	if (task == DATASET_PROMPTS && err.code == 0 && encoder_prompt(enc, &e, &prompt, &err) == 0 &&
	    (e.count == 0 || e.count % 2))
		abort();
	if (err.code && !err.message[0])
		abort();
	example_clear(&e);
	token_list_free(&ids);
	token_list_free(&labels);
	token_list_free(&prompt);
}

static void fuzz_records(const uint8_t *data, size_t size, enum record_kind kind, uint8_t flags,
                         enum dataset_task task)
{
	static const char *const names[] = {"chatml", "mistral", "qwen3", "llama3", "alpaca", "seed_coder"};
	static const enum source_format formats[] = {FORMAT_AUTO, FORMAT_ALPACA, FORMAT_SHAREGPT,
	                                             FORMAT_OPENAI};
	struct encoder_options o = {.cutoff = 64, .mask_history = flags & 1};
	_cleanup_(records_closep) struct records *r = NULL;
	struct source s = {.format = formats[flags >> 1 & 3], .num_samples = -1};
	const struct template *t;
	struct tokenizer tok = {0};
	struct record record;
	struct encoder enc;
	struct error err = ERROR_INIT;
	bool detected = false;
	const char *at = (const char *)data;

	if (template_find(names[(flags >> 4) % ARRAY_SIZE(names)], &t, &err) < 0 ||
	    encoder_init(&enc, &o, &tok, t, &err) < 0)
		abort();
	if (records_open_memory(at, size, "f", kind, &r, &err) < 0)
		return;
	while (records_next(r, &record, &err) > 0) {
		/* Records come in order, inside of the input, and each takes a byte at least. */
		if (record.data < at || record.len == 0 ||
		    record.data + record.len > (const char *)data + size)
			abort();
		at = record.data + record.len;
		if (kind == RECORDS_JSON)
			fuzz_record(&s, &enc, task, &record, &detected);
	}
}

static void fuzz_info(const uint8_t *data, size_t size)
{
	struct source_list list = {0};
	struct error err = ERROR_INIT;

	source_list_add_info(&list, (const char *)data, size, "dataset_info.json", "/nonexistent", "a",
	                     DATASET_SFT, &err);
	source_list_free(&list);
}

static void fuzz_names(const uint8_t *data, size_t size)
{
	_cleanup_free_ char *text = strndup((const char *)data, size);
	const char *paths[] = {"/dev/null", NULL};
	struct dataset_options o = {.paths = paths, .columns_json = text, .tags_json = text};
	struct source_list list;
	struct error err = ERROR_INIT;

	if (source_list_resolve(&o, &list, &err) == 0)
		source_list_free(&list);
	o.tags_json = NULL;
	if (source_list_resolve(&o, &list, &err) == 0)
		source_list_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_free_ void *copy = NULL;
	struct cache cache;
	struct error err = ERROR_INIT;

	if (size < 2)
		return 0;
	switch (data[0]) {
	case 'i':
		fuzz_info(data + 1, size - 1);
		break;
	case 'n':
		fuzz_names(data + 1, size - 1);
		break;
	case 'c':
		copy = malloc(size - 1); /* aligned, as a mapping is */
		memcpy(copy, data + 1, size - 1);
		cache_check(copy, size - 1, NULL, &cache, &err);
		break;
	case 'l':
		fuzz_records(data + 1, size - 1, RECORDS_LINES, 0, DATASET_SFT);
		break;
	case 'p':
		fuzz_records(data + 1, size - 1, RECORDS_PARAGRAPHS, 0, DATASET_SFT);
		break;
	case 'f':
		fuzz_records(data + 1, size - 1, RECORDS_FILE, 0, DATASET_SFT);
		break;
	default:
		fuzz_records(data + 2, size - 2, RECORDS_JSON, data[1],
		             data[0] == 'P'   ? DATASET_PAIRS
		             : data[0] == 'L' ? DATASET_LABELS
		             : data[0] == 'Q' ? DATASET_PROMPTS
		             : data[1] & 8    ? DATASET_PRETRAIN
		                              : DATASET_SFT);
		break;
	}
	return 0;
}
