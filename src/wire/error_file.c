/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the error file of a rank, leniently. */
#include "wire/error_file.h"

const json_t *error_file_message(const json_t *json)
{
	const json_t *message = json_object_get(json, "message");

	if (json_is_object(message))
		message = json_object_get(message, "message");
	return json_is_string(message) ? message : NULL;
}
