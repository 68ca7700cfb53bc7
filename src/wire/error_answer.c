/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as answers. They are read leniently: whatever came, there is something to tell the user. */
#include "wire/error_answer.h"

#include "base/json.h"

json_t *error_answer_encode(const struct error_answer *answer)
{
	return json_pack("{s:{s:s,s:s,s:s*}}", "error", "code", answer->code, "message", answer->message,
	                 "leader", answer->leader);
}

void error_answer_read(const json_t *json, struct error_answer *out)
{
	const json_t *error = json_object_get(json, "error");

	*out =
	    (struct error_answer){json_get_string(error, "code", ""), json_get_string(error, "message", NULL),
	                          json_get_string(error, "leader", NULL)};
}
