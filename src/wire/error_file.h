/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that a rank of torch writes when it fails (TORCHELASTIC_ERROR_FILE), in torch's own form:
 * {"message": {"message": "…", "extraInfo": {…}}} or {"message": "…"}. Any program may write it, so whatever
 * else it contains is no error. So do native workers, with "lost_peer": true as extraInfo where another rank
 * has gone: their launcher reads it, and the node reports it until the controller has it, also while there is
 * none.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

/* A string, borrowed from json; NULL: there is none. */
const json_t *error_file_message(const json_t *json);
/* Another rank has gone: the failure is a consequence. */
bool error_file_lost_peer(const json_t *json);
/* NULL: out of memory, or the message is not UTF-8. */
json_t *error_file_make(const char *message, bool lost_peer);
