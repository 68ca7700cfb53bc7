/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that a rank of torch writes when it fails (TORCHELASTIC_ERROR_FILE), in torch's own form:
 * {"message": {"message": "…", "extraInfo": {…}}} or {"message": "…"}. Any program may write it, so whatever
 * else it contains is no error.
 */
#pragma once

#include <jansson.h>

/* A string, borrowed from json; NULL: there is none. */
const json_t *error_file_message(const json_t *json);
