/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service: what its parts share. daemon_create builds them in order, daemon_destroy takes them down in
 * the mirrored order; running attempts outlive it.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "config/daemon.h"
#include "config/hosts.h"
#include "http/client.h"
#include "http/identity.h"
#include "http/server.h"
#include "node/node.h"

struct background;
struct controller;
struct heartbeats;
struct leader;
struct log_quotas;
struct log_streams;
struct metrics_listener;
struct retention;
struct pipe;
struct shutdown;
struct timers;

/* The two files as they were read and checked together: who we are, who decides, how we are reached. */
struct settings {
	struct daemon_config *config;
	struct hosts *hosts; /* of a single node: one made up */
	/* of the keys certificate, certificate_key and ca_file; NULL: cluster_key */
	struct identity *identity;
	struct identity *metrics_identity; /* for metrics_listen; NULL: it is not set */
	bool cluster;                      /* several hosts: peers are served, and a key is needed */
	bool alone;                        /* there is no hosts file, or no host in it */
	bool candidate;                    /* with etcd: this node may become the controller */
	/* With etcd, controller is the first candidate; which one is it now: leader.h. */
	char *name, *controller, *controller_address;
	int port, controller_port;
	int hosts_slots; /* slots= of our own line; 0: not said */
};

/* Without hosts the cluster is this machine; but not where a hosts file was asked for, or where state_dir
 * says that this node was in a cluster before: then -ENOENT or -ENODATA. */
int settings_read(const char *config_path, struct settings **out, struct error *err);

struct settings_reading {
	char *path;
	struct settings *settings; /* NULL: failed, for `err`; the callback may take it */
	struct error err;
};

/* The same off the event loop: files may lie on a slow file system, and the name of a host may have to be
 * looked up. `done` as in base/background.h, with a struct settings_reading. */
int settings_read_background(sd_event *event, const char *path, double deadline,
                             void (*done)(void *context, void *reading), void *context,
                             struct background **out, struct error *err);
/* Writes into state_dir whether this node is in a cluster, and syncs it. */
int settings_remember(const struct settings *s, struct error *err);
/* The same off the event loop, into the state_dir of `place`. Takes the settings, also where it fails; the
 * callback may take them back from its struct settings_reading, whose err says whether the record was
 * written. */
int settings_remember_background(sd_event *event, struct settings *settings,
                                 const struct daemon_config *place, double deadline,
                                 void (*done)(void *context, void *reading), void *context,
                                 struct background **out, struct error *err);
void settings_free(struct settings *s);
DEFINE_CLEANUP(struct settings *, settings_free)

struct daemon {
	const char *config_path; /* NULL: the default place */
	struct settings *settings;
	struct identity *identity; /* NULL: a single node */
	sd_event *event;
	sd_event_source *sighup, *sigterm, *sigint;
	struct node *node;
	struct http_server *server;
	struct http_client *client; /* for requests that are passed on, and logs */
	/* For heartbeats, reports, starts and stops only, so that no other request
	 * occupies its connections. */
	struct http_client *peer_client;
	struct controller *controller; /* NULL: another node is it */
	struct timers *timers;         /* the controller's; NULL likewise */
	struct leader *leader;         /* who is the controller, with etcd; NULL: the settings say so */
	struct pipe *pipes;            /* requests that are being sent on to the controller, with etcd */
	bool backup;                   /* the store is being copied */
	struct heartbeats *heartbeats;
	struct log_streams *logs;
	struct log_quotas *log_quotas;
	struct metrics_listener *metrics; /* NULL: none is asked for */
	struct retention *retention;
	struct shutdown *shutdown; /* NULL: attempts go on */
	struct background *reload; /* the files are being read again; NULL: they are not */
	bool reload_again;         /* SIGHUP came meanwhile */
	bool tls_listening;
	double loop_lag, loop_lag_max; /* seconds by which the last heartbeat was late, and the most so far */
	int locks[2];                  /* on runtime_dir and state_dir */
	char instance[40];             /* tells this process from the one before it */
};

int daemon_create(const char *config_path, struct daemon **out, struct error *err);
int daemon_run(struct daemon *d, struct error *err); /* until SIGTERM or SIGINT, or no controller any more */
void daemon_destroy(struct daemon *d);
DEFINE_CLEANUP(struct daemon *, daemon_destroy)
