/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to commands, which are given once what they have changed is on disk. */
#pragma once

#include <jansson.h>

#include "http/server.h"

struct controller;

/* After a change of the controller's: answers with it, or with 500 (store) where the store cannot be written.
 * run: as commit_waiter_create has it. Takes the reference. */
void reply_when_committed(struct controller *c, struct http_request *r, int64_t run, int status,
                          json_t *json);
