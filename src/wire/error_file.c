/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the error file of a rank, and reads it leniently. */
#include "wire/error_file.h"

const json_t *error_file_message(const json_t *json)
{
	const json_t *message = json_object_get(json, "message");

	if (json_is_object(message))
		message = json_object_get(message, "message");
	return json_is_string(message) ? message : NULL;
}

bool error_file_lost_peer(const json_t *json)
{
	const json_t *extra = json_object_get(json_object_get(json, "message"), "extraInfo");

	return json_is_true(json_object_get(extra, "lost_peer"));
}

json_t *error_file_make(const char *message, bool lost_peer)
{
	return json_pack("{s:{s:s,s:{s:b}}}", "message", "message", message, "extraInfo", "lost_peer",
	                 lost_peer);
}
