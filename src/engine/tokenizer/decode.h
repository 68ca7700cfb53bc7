/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that turn the strings of tokens back into text. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/tokenizer/steps.h"

enum decode_kind {
	DECODE_BYTELEVEL,
	DECODE_METASPACE,
	DECODE_REPLACE,
	DECODE_BYTE_FALLBACK,
	DECODE_FUSE,
	DECODE_STRIP,
	DECODE_BPE
};

struct decode_step {
	enum decode_kind kind;
	struct matcher matcher;
	char *text; /* replacement, suffix, or the character */
	size_t len;
	int64_t start, stop;
	enum prepend_scheme scheme;
};

struct decoder {
	bool present;
	struct decode_step *v;
	size_t n, cap;
};

int decoder_parse(struct decoder *d, const json_t *json, const char *where, struct error *err);
void decoder_release(struct decoder *d);
