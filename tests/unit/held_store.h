/* SPDX-License-Identifier: Apache-2.0 */
/* A store for tests whose commits take as long as the test wants, or fail: an SQLite store behind it. */
#pragma once

#include <stdbool.h>

#include "cluster/store.h"

struct held_store;

/* *store is what the code under test gets, and closes; *held is freed with held_store_free after it. Commits
 * that are held when the store is closed go on. */
void held_store_open(const char *path, struct held_store **held, struct store **store);
void held_store_free(struct held_store *h);
/* Commits wait from now on, before they write, until they are let go on. */
void held_store_hold(struct held_store *h);
void held_store_release(struct held_store *h);
/* A copy that does not end, from when it has been begun. */
void held_store_begin_endless_copy(struct held_store *h, struct store *s, const char *path);
/* The next so many commits fail with EIO. */
void held_store_fail(struct held_store *h, int count);
/* Commits refuse what they have of this run, until the next call; 0: of none. */
void held_store_refuse(struct held_store *h, int64_t id);
/* How many commits have refused something. */
int held_store_refusals(struct held_store *h);
/* How many commits have been begun, held ones included. */
int held_store_begun(struct held_store *h);
/* Until one is being held; until store_dispatch has something to do. */
void held_store_await_held(struct held_store *h);
void held_store_await_done(const struct store *s);
/* What is on disk, whatever waits to be committed. */
bool held_store_is_drained(struct held_store *h, const char *node);
