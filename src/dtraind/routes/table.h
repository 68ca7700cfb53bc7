/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all routes, for http_server_options: its context is the struct daemon. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "http/server.h"

extern const struct http_route route_table[];
extern const size_t route_table_count;
/* What the listener of metrics_listen serves. */
extern const struct http_route metrics_route_table[];
extern const size_t metrics_route_table_count;

/* Sends on to the controller what it alone can answer, where this node is not the controller. */
bool route_intercept(void *context, struct http_request *r, unsigned bits);
