/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker tells of itself: POST /v1/runs/ID/events. Any program that a run starts may send it, too. */
#pragma once

#include "wire/message.h"

#define WORKER_ERROR     "error"     /* this rank has failed by itself */
#define WORKER_PEER_LOST "peer-lost" /* another rank has gone: this one fails as a consequence */

struct worker_event {
	int64_t rank;
	char *kind;    /* one of the above; others are accepted and have no effect */
	char *message; /* in words; optional */
};

MESSAGE_DECLARE(worker_event)
