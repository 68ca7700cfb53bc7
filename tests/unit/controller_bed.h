/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster in simulated time, for tests of the controller that read like stories: submit a run, lose a node,
 * see what follows. The controller and its store are real; nodes, network, clock and event loop are
 * stand-ins. Nothing happens but in bed_pass and in the functions that wait, which are built on it.
 *
 * A node sends a heartbeat each second, unless the controller asks for fewer, half a second after the moments
 * at which bed_create and bed_pass with whole seconds return: what a story expects within less does not wait
 * for a heartbeat. It takes a start whose slots are free, and runs what it was given until the test ends it.
 * What is sent arrives a millisecond later; the controller's own node answers at once.
 *
 * Whatever the story, the bed checks at every start that the attempt is on disk by then, and at every event
 * that the end of a run is.
 */
#pragma once

#include "cluster/run.h"
#include "unit.h"

struct bed;
struct controller;
struct submission;

/* hosts: as in a hosts file, with slots= in each line; the controller is on the first node. All nodes have
 * reported when this returns. */
/* Heartbeats of a node that were answered, and short ones that were refused; the controller's own sends whole
 * ones alone. */
struct heartbeat_counts {
	int whole, brief, refused;
};

struct bed *bed_create(const char *hosts);
void bed_free(struct bed *b);
void bed_pass(struct bed *b, double seconds); /* time passes */

/* The controller, for tests that call its functions. */
struct controller *bed_controller(struct bed *b);

/* What users do, and see. */
int64_t bed_submit(struct bed *b, int nodes, int per_node); /* it has to be accepted; returns its id */
/* A run of one rank with this configuration, in JSON. */
int64_t bed_submit_config(struct bed *b, const char *json);
/* The same: a command on CPU slots with these resources, members of JSON. */
int64_t bed_submit_resources(struct bed *b, const char *resources);
/* bed_submit without waiting. The id is -1 until it is answered, with a refusal, too. */
struct submission *bed_begin_submission(struct bed *b, int nodes, int per_node);
int64_t bed_submitted(const struct bed *b);
int bed_submit_failing(struct bed *b); /* one on a single slot, which has to be refused: why, -errno */
/* Whose the runs are that are submitted from now on [alice, 1000]. */
void bed_set_user(struct bed *b, const char *name, int64_t uid);
void bed_cancel(struct bed *b, int64_t run);
/* Valid until the next call of any function here. */
const struct run *bed_run(struct bed *b, int64_t run);
/* Waits until the run is in this state, for at most a minute; a test fails after that. */
void bed_await(struct bed *b, int64_t run, enum run_state state);
/* How often the words are in the feed of events. */
int bed_count_events(const struct bed *b, const char *words);

/* What nodes do. */
void bed_end_ranks(struct bed *b, const char *node, int64_t run, int exit_status);    /* they report it */
void bed_refuse_next(struct bed *b, const char *node, int code, const char *message); /* the next start */
/* A member of that node in the list of nodes; NULL: it has none. To be freed. */
char *bed_node_text(struct bed *b, size_t index, const char *key);
/* The next start arrives, but the answer to it does not: the controller waits for 30 seconds. */
void bed_lose_answer(struct bed *b, const char *node);
void bed_lose_stops(struct bed *b, const char *node, bool lose);       /* none arrives */
void bed_cut_off(struct bed *b, const char *node, bool cut_off);       /* nothing reaches or leaves it */
void bed_reboot(struct bed *b, const char *node);                      /* all that it had is gone */
void bed_rename(struct bed *b, const char *node, const char *name);    /* its service is restarted for it */
void bed_shut_down(struct bed *b, const char *node);                   /* it says so, and takes no new runs */
void bed_delay_start(struct bed *b, const char *node, double seconds); /* the next one is so long under way */
void bed_set_preflight(struct bed *b, const char *node, double seconds); /* that of the next start */
void bed_give_up_calls(struct bed *b); /* no answer comes to starts under way, which arrive nevertheless */
void bed_set_delay(struct bed *b, const char *node, double seconds); /* of reports and heartbeats from it */
void bed_send_heartbeat(struct bed *b, const char *node);            /* one now, beside the others */
struct heartbeat_counts bed_heartbeats(struct bed *b, const char *node); /* since it was asked last */
void bed_repeat_heartbeat(struct bed *b, const char *node);              /* the last one once more */
/* Puts attempt 1 of this run, started by another controller, on slot 0 of the node. */
void bed_plant(struct bed *b, const char *node, const char *cluster, int64_t run);
/* The step of the newest checkpoint, and where it was saved ("": not said), by the start of the attempt that
 * runs there. */
int64_t bed_checkpoint_of(const struct bed *b, const char *node, int64_t run, const char **saved_on);
struct stop_times bed_last_stop(const struct bed *b);  /* as the controller asked last */
int bed_starts(const struct bed *b, const char *node); /* how many starts have reached it */
/* The slots of the first rank of the start that was sent last, where it has a list of them. */
const int64_t *bed_last_slots(const struct bed *b, size_t *count);
/* The attempt of the run that is on the node and has not ended; 0: none. */
int64_t bed_attempt_on(const struct bed *b, const char *node, int64_t run);

/* What the controller's machine does. */
void bed_break_store(struct bed *b, bool broken); /* while broken, every commit fails */
void bed_break_ports(struct bed *b, int code);    /* this error, instead of a port; 0: none */
const char *bed_state_dir(const struct bed *b);
void bed_set_lease(struct bed *b, double seconds);         /* of the configuration, for the next controller */
void bed_set_most_heartbeats(struct bed *b, int a_second); /* that it asks for, the next one too; 0: any */
/* user_runs and user_slots of the configuration, from now on. */
void bed_set_user_limits(struct bed *b, int64_t runs, int64_t slots);
void bed_restart_controller(struct bed *b);
void bed_set_clock_ahead(struct bed *b, double seconds); /* the clock of days, of what the other shows */
void bed_restart_later(struct bed *b, double seconds);   /* there is none meanwhile, and nothing happens */
void bed_crash_controller(struct bed *b);                /* the same, but what is not on disk is lost */
void bed_set_hosts(struct bed *b, const char *hosts);    /* no nodes but those that the bed began with */
void bed_restart_with_hosts(struct bed *b, const char *hosts); /* the same, but the controller is restarted */
/* Restarts the controller, with a copy of its store taken meanwhile, or (back) put into its place. */
void bed_copy_store(struct bed *b, bool back);
