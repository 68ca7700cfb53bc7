/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The errors that libmicrohttpd answers by itself, of what it cannot read as a request, in the form of all
 * other errors. It sends a page of HTML, and up to 1.0 no option and no callback changes that. But it sends
 * the page through its own public function MHD_queue_response(), and calls that as any program does: by the
 * symbol, which the dynamic linker resolves to the first definition there is. The definition here comes
 * first, since it is the program's. Where the library is linked such that it calls itself directly
 * (-Bsymbolic-functions), its pages remain.
 */
#include <dlfcn.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "wire/error_answer.h"

typedef enum MHD_Result (*queue_fn)(struct MHD_Connection *, unsigned, struct MHD_Response *);

/* http_reply_json() and its like name a type, which is never this one. */
static bool is_page(struct MHD_Response *response)
{
	const char *type = MHD_get_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE);

	return !type || str_starts(type, "text/html");
}

static struct MHD_Response *make_answer(unsigned status)
{
	static const struct {
		unsigned status;
		const char *code, *message;
	} answers[] = {
	    {400, "bad-http", "the request line, a header or the encoding of the body is malformed"},
	    {413, "too-large", "the request is too large"},
	    {414, "too-large", "the request line is too long"},
	    {431, "too-large", "the head of the request is too large"},
	    {505, "bad-http", "this version of HTTP is not known; it has to be 1.0 or 1.1"},
	};
	struct error_answer answer = {.code = status < 500 ? "bad-http" : "internal",
	                              .message = MHD_get_reason_phrase_for(status)};
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *text = NULL;
	struct MHD_Response *response;

	for (size_t i = 0; i < ARRAY_SIZE(answers); i++)
		if (answers[i].status == status) {
			answer.code = answers[i].code;
			answer.message = answers[i].message;
		}
	json = error_answer_encode(&answer);
	text = json ? json_to_string(json) : NULL;
	if (!text)
		return NULL;
	response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_COPY);
	if (response)
		MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
	return response;
}

enum MHD_Result MHD_queue_response(struct MHD_Connection *connection, unsigned status,
                                   struct MHD_Response *response)
{
	static queue_fn queue;
	struct MHD_Response *own;
	enum MHD_Result result;

	/* Of the two ways to write it this one has no warning about data that becomes a function. */
	if (!queue)
		*(void **)&queue = dlsym(RTLD_NEXT, "MHD_queue_response");
	own = is_page(response) ? make_answer(status) : NULL;
	result = queue(connection, status, own ? own : response);
	if (own)
		MHD_destroy_response(own);
	return result;
}
