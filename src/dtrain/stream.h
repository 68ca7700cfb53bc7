/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs and reports of a run, each byte once: after a broken connection, as when the service is restarted, the
 * stream goes on where it was. Where that cannot be known, a line on stderr says that lines may be missing or
 * repeated.
 */
#pragma once

#include "dtrain/client.h"

struct stream_request {
	int64_t run;
	bool metrics; /* the reports, to the end of the run; otherwise logs */
	/* Of the reports: the step of the newest one that has come, which `piece` keeps; -1: none has. */
	const int64_t *step;
	/* Of logs: */
	int64_t rank;    /* -1: of all, line by line with "[RANK] " */
	int64_t attempt; /* 0: the newest */
	int64_t tail;    /* -1: all */
	bool follow;
	client_piece_fn piece; /* what there is to show */
	void *context;
};

/* 0, or the exit status for the error in err. *begun (may be NULL): something came before it. */
int stream_read(struct client *client, const struct stream_request *request, bool *begun, struct error *err);
