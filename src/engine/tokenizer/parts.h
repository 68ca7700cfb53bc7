/* SPDX-License-Identifier: Apache-2.0 */
/* struct tokenizer: all parts of a loaded tokenizer together. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/tokenizer/added.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/decode.h"
#include "engine/tokenizer/steps.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/vocab.h"

struct tokenizer {
	char *where;
	struct unicode unicode;
	struct vocab vocab;
	struct bpe bpe;
	struct added added;
	struct step_list normalizer, pretokenizer;
	struct decoder decoder;
	/* Post-processor: ids before and after the text. */
	struct token_list before, after;
	int32_t size;                     /* highest id + 1 */
	struct added_token **added_by_id; /* [size], NULL: not an added token */
	int32_t limit;                    /* ids below it may be given out */
	int32_t bos, eos, pad;
	bool adds_bos;
	char *chat_template;
	uint64_t hash;
};

int postprocessor_parse(struct tokenizer *t, const json_t *json, const char *where, struct error *err);
/* tokenizer_config.json and special_tokens_map.json beside it; either may be absent. */
int tokenizer_read_config(struct tokenizer *t, const char *directory, struct error *err);
void tokenizer_guess_specials(struct tokenizer *t);
