/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lease under which this node keeps its attempts: each answer of the controller to a heartbeat grants a
 * new one, from the moment at which the heartbeat was sent. Its time is that of CLOCK_BOOTTIME, which goes on
 * while the machine sleeps. runtime_dir/lease has its end (base/lease_file.h) for dtrain-launch, which ends
 * its ranks also while no service runs, and for workers: what they publish later may be another attempt's to
 * write.
 */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"

struct lease;

/* The lease is about to run out: `seconds` are left, in which everything that must not outlive it has to
 * end. */
typedef void (*lease_ending_fn)(void *context, double seconds);

int lease_create(sd_event *event, const char *runtime_dir, lease_ending_fn ending, void *context,
                 struct lease **out, struct error *err);
void lease_destroy(struct lease *lease);
DEFINE_CLEANUP(struct lease *, lease_destroy)

/* The lease that the file has, which an earlier instance of the service got since the machine was started. It
 * is not prolonged: where it has run out meanwhile, `ending` is called from the event loop. */
void lease_load(struct lease *lease);
/* sent: lease_clock() when the heartbeat was sent; seconds: 0 for no limit, as older controllers have it. The
 * newest answer counts, also where its lease is the shorter one: it is what the controller relies on. */
void lease_renew(struct lease *lease, double sent, double seconds);
double lease_clock(void);
/* Has one been granted, or the word that there is none, since the machine was started? */
bool lease_is_known(const struct lease *lease);
/* It ends soon, or has ended: nothing is to be started. */
bool lease_is_ending(const struct lease *lease);
/* Writes the file; without a lease, there is none. */
void lease_save(struct lease *lease);
const char *lease_path(const struct lease *lease);
