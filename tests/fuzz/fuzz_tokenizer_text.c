/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes any bytes with a few small tokenizers that together have every kind of step; a byte-level tokenizer
 * without normalizer decodes to the input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"
#include "tokenizers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void one(const struct tokenizer *tok, const char *text, size_t len, bool exact)
{
	struct token_list ids = {0};
	struct error err = ERROR_INIT;
	struct strbuf clean = {0};
	char *back = NULL;
	size_t n = 0;

	if (tokenizer_encode(tok, text, len, true, &ids, &err) == 0) {
		if (tokenizer_decode(tok, ids.ids, ids.len, false, &back, &n, &err) < 0)
			abort();
		utf8_sanitize(&clean, text, len);
		if (exact && (n != clean.len || (n && memcmp(back, clean.data, n) != 0)))
			abort();
	}
	strbuf_free(&clean);
	free(back);
	token_list_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct tokenizer *toks[ARRAY_SIZE(fuzz_tokenizers)];
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(fuzz_tokenizers); i++) {
		if (!toks[i] && fuzz_tokenizer(fuzz_tokenizers[i].parts, &toks[i], &err) < 0) {
			fprintf(stderr, "%s\n", err.message);
			abort();
		}
		one(toks[i], (const char *)data, size, fuzz_tokenizers[i].exact);
	}
	return 0;
}
