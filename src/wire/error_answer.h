/* SPDX-License-Identifier: Apache-2.0 */
/* The body of every answer that is an error: {"error":{"code":"no-such-run","message":"there is no run
 * 17"}}. */
#pragma once

#include <jansson.h>

struct error_answer {
	const char *code;    /* a word for programs, dtrain-api(7); "": none was sent */
	const char *message; /* a sentence for a person; NULL: none was sent */
	const char *leader;  /* with code "not-controller": the node that is; NULL: not known */
};

/* A new reference; NULL: out of memory, or not UTF-8. */
json_t *error_answer_encode(const struct error_answer *answer);
/* Of any answer, NULL included: what is not there, or of another type, was not sent. Borrows from json. */
void error_answer_read(const json_t *json, struct error_answer *out);
