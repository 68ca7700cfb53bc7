/* SPDX-License-Identifier: Apache-2.0 */
/* The input is a tokenizer.json; where it parses, a text is encoded and decoded with it. */
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char text[] =
	    "Hello's  wor\xc3\xa9ld 12 \xe2\x96\x81\xff<s>ab\n \xf0\x9f\x98\x80 aab<0x0A>";
	struct tokenizer *tok = NULL;
	struct token_list ids = {0};
	struct error err = ERROR_INIT;
	char *back = NULL;

	if (tokenizer_parse((const char *)data, size, "fuzz", &tok, &err) < 0) {
		if (!err.message[0] || strchr(err.message, '\n'))
			abort();
		return 0;
	}
	if (tokenizer_encode(tok, text, sizeof(text) - 1, true, &ids, &err) == 0 &&
	    tokenizer_decode(tok, ids.ids, ids.len, false, &back, NULL, &err) < 0 && !err.message[0])
		abort();
	free(back);
	token_list_free(&ids);
	tokenizer_free(tok);
	return 0;
}
