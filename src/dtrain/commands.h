/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of dtrain: one file each. They print what goes wrong themselves and return the exit
 * status. */
#pragma once

#include "dtrain/client.h"

struct command {
	const char *name, *summary;
	int (*run)(struct client *client, int argc, char **argv);
};

extern const struct command commands[];
extern const size_t command_count;

const struct command *command_find(const char *name); /* NULL: there is none */
/* What may have been meant, or NULL. */
const char *command_nearest(const char *name);

int cmd_backup(struct client *client, int argc, char **argv);
int cmd_cancel(struct client *client, int argc, char **argv);
int cmd_check(struct client *client, int argc, char **argv);
int cmd_devices(struct client *client, int argc, char **argv);
int cmd_kill(struct client *client, int argc, char **argv);
int cmd_prune(struct client *client, int argc, char **argv);
int cmd_fence(struct client *client, int argc, char **argv);
int cmd_drain(struct client *client, int argc, char **argv);
int cmd_estimate(struct client *client, int argc, char **argv);
int cmd_export(struct client *client, int argc, char **argv);
int cmd_generate(struct client *client, int argc, char **argv);
int cmd_keygen(struct client *client, int argc, char **argv);
int cmd_logs(struct client *client, int argc, char **argv);
int cmd_nodes(struct client *client, int argc, char **argv);
int cmd_resume(struct client *client, int argc, char **argv);
int cmd_runs(struct client *client, int argc, char **argv);
int cmd_show(struct client *client, int argc, char **argv);
int cmd_submit(struct client *client, int argc, char **argv);
int cmd_tokenizer(struct client *client, int argc, char **argv);
int cmd_watch(struct client *client, int argc, char **argv);
