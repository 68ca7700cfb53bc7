/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store that several controllers share: etcd has the runs that have not ended, their configurations and
 * attempts, the newest ones of those that have ended, and the drains. It does not have the progress of runs.
 * All of it, and the runs that ended longer ago, are in an SQLite file of this machine, too, from which
 * everything is read.
 */
#pragma once

#include "cluster/election.h"
#include "cluster/store.h"

/*
 * For the candidate that leads: takes up what the controllers before it have left. Blocks; from any thread.
 * The store is only written while the election holds; what cannot be decided otherwise ends the election
 * (election_lose). election is borrowed, and closed after the store. directory: of the SQLite file.
 */
int store_etcd_open(const struct etcd_place *place, struct election *election, const char *directory,
                    struct store **out, struct error *err);
