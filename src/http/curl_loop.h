/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl's multi interface on an sd-event loop: many transfers at a time, none of which blocks. */
#pragma once

#include <curl/curl.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"

struct curl_loop;

/* kept: so many connections are kept open for later transfers. `ended` is called from the event loop, never
 * within one of these functions, once for each transfer that has ended, with its result; the handle is then
 * to be removed, which may be done from there, as may the removal of others. */
int curl_loop_create(sd_event *event, long kept, void (*ended)(void *context, CURL *easy, CURLcode code),
                     void *context, struct curl_loop **out, struct error *err);
void curl_loop_destroy(struct curl_loop *loop); /* after all handles were removed; takes NULL */
DEFINE_CLEANUP(struct curl_loop *, curl_loop_destroy)

/* The transfer of a handle begins; the handle remains the caller's. -EIO: libcurl does not take it. */
int curl_loop_add(struct curl_loop *loop, CURL *easy);
/* It ends, without a call of `ended`; not from a callback of the handle itself. */
void curl_loop_remove(struct curl_loop *loop, CURL *easy);
