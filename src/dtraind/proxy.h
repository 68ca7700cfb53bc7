/* SPDX-License-Identifier: Apache-2.0 */
/* Another service's answer, passed on as it comes. */
#pragma once

#include "controller/peers.h"
#include "dtraind/daemon.h"

/* Sends the request on to the controller, answer and all. True: this service is not the controller, and the
 * request is taken care of. */
bool forward_to_controller(struct daemon *d, struct http_request *r);
/* The controller has changed: what waits for an answer of the one before asks the new one. */
void proxy_follow(struct daemon *d);

/* A transfer's body poured into a request's answer, no faster than the caller takes it. Answers with 502 and
 * `code` where the other service cannot be reached. headers: NULL-terminated, or NULL. */
void pipe_call(struct daemon *d, struct http_request *r, const struct peer *to, const char *target,
               const char *const *headers);
