/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the bed, for controller_bed.c (clock, network, stories) and controller_bed_nodes.c. */
#pragma once

#include <jansson.h>

#include "base/str.h"
#include "config/hosts.h"
#include "controller/controller.h"
#include "controller_bed.h"
#include "wire/heartbeat_state.h"

#define LATENCY      0.001 /* seconds that a message takes */
#define HEARTBEAT    1.0
#define NODE_TIMEOUT 10.0
#define LEASE        60.0
#define CALL_TIMEOUT 30.0
#define EPOCH        1700000000.0 /* Unix seconds at monotonic time 0 */
#define LONGEST_WAIT 60.0

struct feed_listener;
struct held_store;
struct store;

enum { NODES = 9, SLOTS = 8, ATTEMPTS = 48, STOPPED = 64 };

enum life { NONE, RUNNING, ENDED };

struct attempt {
	int64_t run, attempt, epoch;
	char cluster[80];
	enum life state;
	size_t ranks;
	int64_t rank[SLOTS], slot[SLOTS];
	int exit_status; /* of all ranks, once it has ended */
	bool stopped;
	double ended;
	bool keeps;       /* it outlives a partition, */
	bool unconfirmed; /* but not before an answer to a heartbeat that names it */
	double started;
	double until; /* as start_request has it, and so */
	int64_t checkpoint;
	char checkpoint_node[32];
};

struct node {
	char name[32], instance[32];
	int slots, boots, starts;
	int64_t sequence;
	double rate;  /* of its clock within a lease */
	double lease; /* until when it may keep its attempts; 0: none was granted yet */
	struct {
		int64_t run, attempt;
	} stopped[STOPPED]; /* what it was asked to stop and did not have, or was told to forget */
	size_t stopped_count, stopped_next;
	/* What the answers of a controller to its heartbeats said. */
	char cluster[80];
	int64_t epoch, highest_run;
	struct attempt attempts[ATTEMPTS];
	double next_heartbeat, delay;
	double interval;              /* of heartbeats, as the controller asks for it */
	struct heartbeat_state state; /* what the controller has of it */
	bool unanswered;              /* its last heartbeat */
	int whole, brief, refused; /* how many of each kind were answered, and how many short ones refused */
	bool cut_off, shutting_down, drained[SLOTS];
	/* What happens to the next start. */
	int refuse_code;
	const char *refuse_message;
	bool lose_answer, lose_stops;
	double start_delay, preflight;
};

/* PREFLIGHT: a start that the node has taken, and whose preflight ends when it is due. */
enum packet_kind { START, PREFLIGHT, STOP, SET_DEVICE, ANSWER, REPORT, BEAT };

struct packet {
	enum packet_kind kind;
	struct packet *next;
	double due;
	struct node *node; /* that it goes to, or comes from */
	struct attempt attempt;
	int64_t slot;
	bool drained;
	/* Calls and their answers. */
	peer_done_fn done;
	void *context;
	struct peer_result result;
	json_t *body; /* of reports and heartbeats */
	double sent;
};

/* A network that loses, repeats and delays messages; all of it is a function of `state`. */
struct chaos {
	unsigned state;
	double drop, repeat; /* shares of the messages */
	double most_delay;   /* seconds */
};

struct bed {
	struct chaos *chaos; /* NULL: the network is perfect */
	double clock_jump;   /* seconds by which the controller's realtime clock was set */
	int64_t steps;       /* events handled so far */
	void (*watch)(struct bed *b, void *context); /* after each of them; NULL */
	void *watch_context;
	char *dir;
	struct hosts *hosts;
	struct controller *controller;
	struct store *store; /* the controller's, of which the bed reads what is on disk */
	struct held_store *held;
	double now;
	double lease; /* that the controller grants, once it is started again */
	int most_heartbeats;
	int flushes; /* of the controller, so far */
	struct user_limits user_limits;
	char user[32]; /* who submits */
	int64_t uid;
	double timers[CONTROLLER_TIMERS]; /* negative: off */
	struct node nodes[NODES];
	size_t node_count;
	struct packet *packets; /* in the order of their arrival */
	struct run *owned;      /* what bed_run has returned, where it is ours */
	struct feed_listener *listener;
	struct strbuf events;
	struct stop_times stop; /* of the newest request to stop */
	int64_t slots[SLOTS];   /* of the first rank of the newest start */
	size_t slot_count;
	int port_code; /* what goes wrong with ports; 0: nothing */
	/* The submission under way. */
	int64_t submitted;
	int refused;
};

/* controller_bed.c */
void bed_send(struct bed *b, struct packet packet, double delay);
void bed_answer(struct bed *b, const struct packet *call, struct peer_result result, double delay);
void bed_answer_never(struct bed *b, const struct packet *call); /* the caller gives up */

/* controller_bed_nodes.c */
struct node *node_find(const struct bed *b, const char *name);
struct node *node_find_peer(const struct bed *b, const char *name); /* NULL: none has this name now */
struct attempt *node_find_attempt(const struct node *n, int64_t run, int64_t number); /* 0: that runs */
void node_end_attempt(struct bed *b, struct node *n, struct attempt *a, int exit_status, bool stopped);
void node_send_heartbeat(struct bed *b, struct node *n);
void node_take_start(struct bed *b, struct packet *m);
void node_end_preflight(struct bed *b, struct packet *m);
void node_take_stop(struct bed *b, struct packet *m);
void node_set_device(struct bed *b, struct packet *m);
void node_take_refusal(struct bed *b, struct node *n, bool is_short);
void node_take_heartbeat_answer(struct node *n, const struct heartbeat_answer *reply, double sent);
void node_end_lease(struct bed *b, struct node *n); /* it has run out */
