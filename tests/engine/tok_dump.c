/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tok_dump TOKENIZER [plain|special|decode|skip|time]: texts on stdin, each a decimal length, a newline, and
 * that many bytes; ids on stdout, one line for each text. decode and skip read lines of ids and write texts
 * in that framing. time encodes every text ten times and prints the best rate in MB/s.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/tokenizer/tokenizer.h"

static int fail(const struct error *err)
{
	fprintf(stderr, "error: %s\n", err->message);
	return 1;
}

static int encode(const struct tokenizer *tok, const char *mode, const char *text, size_t len,
                  struct error *err)
{
	struct token_list ids = {0};
	double best = 1e30;
	int r = 0;

	for (int i = 0; i < (strcmp(mode, "time") ? 1 : 10) && r == 0; i++) {
		double start = clock_monotonic();

		ids.len = 0;
		r = tokenizer_encode(tok, text, len, !strcmp(mode, "special"), &ids, err);
		best = MIN(best, clock_monotonic() - start);
	}
	if (!strcmp(mode, "time")) {
		printf("%.1f MB/s (%zu bytes, %zu tokens)\n", (double)len / best * 1e-6, len, ids.len);
	} else {
		for (size_t i = 0; i < ids.len; i++)
			printf(i ? " %d" : "%d", ids.ids[i]);
		putchar('\n');
	}
	token_list_free(&ids);
	return r;
}

static int encode_all(const struct tokenizer *tok, const char *mode, struct error *err)
{
	char line[32];

	while (fgets(line, sizeof(line), stdin)) {
		size_t len = strtoull(line, NULL, 10);
		_cleanup_free_ char *text = malloc(len + 1);

		if (!text || fread(text, 1, len, stdin) != len)
			return error_set(err, -1, "the input ends too early");
		if (encode(tok, mode, text, len, err) < 0)
			return -1;
	}
	return 0;
}

static int decode_all(const struct tokenizer *tok, bool skip, struct error *err)
{
	_cleanup_free_ char *line = NULL;
	size_t cap = 0;

	while (getline(&line, &cap, stdin) > 0) {
		_cleanup_free_ char *text = NULL;
		struct token_list ids = {0};
		size_t len = 0;
		int r = 0;

		for (char *p = line, *end;; p = end) {
			int32_t id = (int32_t)strtol(p, &end, 10);

			if (end == p)
				break;
			token_list_add(&ids, &id, 1);
		}
		r = tokenizer_decode(tok, ids.ids, ids.len, skip, &text, &len, err);
		token_list_free(&ids);
		if (r < 0)
			return r;
		printf("%zu\n", len);
		fwrite(text, 1, len, stdout);
	}
	return 0;
}

/* Reads one framed text from stdin. */
static int next_text(void *context, const char **text, size_t *len, struct error *err)
{
	char **buffer = context, line[32];

	if (!fgets(line, sizeof(line), stdin))
		return 0;
	*len = strtoull(line, NULL, 10);
	free(*buffer);
	*text = *buffer = malloc(*len + 1);
	if (!*buffer || fread(*buffer, 1, *len, stdin) != *len)
		return error_set(err, -1, "the input ends too early");
	return 1;
}

static int train(const char *directory, int32_t size)
{
	static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", NULL};
	const struct tokenizer_train_options options = {.vocab_size = size,
	                                                .special_tokens = special,
	                                                .bos = special[1],
	                                                .eos = special[2],
	                                                .pad = special[0],
	                                                .chat_template = "{{ messages }}",
	                                                .min_frequency = 2};
	_cleanup_free_ char *buffer = NULL;
	struct error err = ERROR_INIT;

	return tokenizer_train(&options, next_text, &buffer, directory, &err) < 0 ? fail(&err) : 0;
}

int main(int argc, char **argv)
{
	_cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
	const char *mode = argc > 2 ? argv[2] : "plain";
	struct error err = ERROR_INIT;
	double start = clock_monotonic();
	int r;

	if (argc < 2) {
		fprintf(stderr, "usage: tok_dump TOKENIZER [plain|special|decode|skip|time]\n");
		return 2;
	}
	if (argc == 4 && !strcmp(mode, "train"))
		return train(argv[1], atoi(argv[3]));
	if (tokenizer_load(argv[1], &tok, &err) < 0)
		return fail(&err);
	if (!strcmp(mode, "time"))
		printf("loaded in %.0f ms; ", (clock_monotonic() - start) * 1e3);
	if (!strcmp(mode, "decode") || !strcmp(mode, "skip"))
		r = decode_all(tok, mode[0] == 's', &err);
	else
		r = encode_all(tok, mode, &err);
	return r < 0 ? fail(&err) : 0;
}
