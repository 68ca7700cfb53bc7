/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes report, compared with what they should have. */
#pragma once

#include <jansson.h>

#include "base/error.h"

struct controller;

/* The state of one attempt on one node, as node.h has it. */
void controller_report(struct controller *c, const json_t *report);
/* *answer: {"forget":[{"run","attempt"}…],"time","cluster","epoch","highest_run"}: the ends that are on disk,
 * our clock, and what the node is to remember of the store; "cluster" null: its epoch is not on disk yet.
 * -ENOENT: the node is not in the hosts file. */
int controller_heartbeat(struct controller *c, const json_t *heartbeat, json_t **answer, struct error *err);
