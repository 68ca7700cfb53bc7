/* SPDX-License-Identifier: Apache-2.0 */
/* dtraind.conf (libconfig): every key is optional and has a default; an unknown key or a wrong type is an
 * error with file and line. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

struct daemon_config {
	char *node;         /* this node's name in the hosts file; NULL: found by host name or address */
	char *controller;   /* NULL: the first host */
	char *store;        /* "sqlite", or "etcd:" and URLs with commas between them */
	char **etcd_urls;   /* the same as a list; NULL: sqlite */
	char **controllers; /* the candidates, with etcd alone */
	char *etcd_certificate, *etcd_key, *etcd_ca; /* NULL: http:// alone */
	char *hosts_file, *cluster_key;
	char *certificate, *certificate_key, *ca_file; /* all or none: then cluster_key is not used */
	bool hosts_file_given;                         /* dtraind.conf has the key; it is not the default */
	char *socket;                                  /* the Unix socket for clients */
	char *state_dir, *runtime_dir, *log_dir;
	char *worker_dir;  /* holds dtrain-launch and dtrain-worker-* */
	char *admin_group; /* its members may do what root may; NULL or "": only root may */
	bool allow_root;   /* runs of root are accepted and started */
	char *group;       /* may use the socket; NULL or "": only the daemon's own user and root */
	char *listen;      /* address of the peer port */
	char *metrics_listen, *metrics_ca; /* both or none: /metrics on a listener of its own */
	char *metrics_address;             /* the same, apart; NULL and 0: none */
	int metrics_port;
	int64_t port;            /* default 29600; the hosts entry's port= wins */
	char *port_range;        /* "29700-29999": what runs listen on; NULL: what the kernel gives */
	int port_low, port_high; /* the same as numbers; 0 */
	int64_t cpu_slots;       /* where there is no GPU; 0: the hosts entry's slots=, else 1 */
	int64_t slot_threads;    /* CPU threads per slot; 0: cores / slots */
	char *log_level;         /* error warning info debug */
	double heartbeat;        /* seconds between a node's reports to the controller */
	double node_timeout;     /* without one for so long a node is down */
	double lease;            /* seconds for which a node may keep runs without its controller */
	double shutdown_grace;   /* seconds: at a shutdown no run has more between TERM and KILL */
	char *launch;            /* auto systemd process */
	char *tmp_dir;           /* where runs have their TMPDIR; NULL: tmp in state_dir */
	/* seconds until the memory of a GPU is free after a run; 0: it is not looked at */
	double gpu_idle_timeout;
	int64_t user_runs;  /* of one user that have not ended; 0: any number */
	int64_t user_slots; /* that the runs of one user may have at once; 0: any number */
	int64_t log_quota;  /* MiB of the log of a rank that are kept on disk; 0: all */
	double keep_days;   /* of the logs and metrics of runs; 0: for ever */
	int64_t keep_runs;  /* the newest, likewise; 0: all */
	/* GiB for each slot of a run; 0: a run may have the machine's, but for a part of it */
	double slot_memory;
	int64_t slot_tasks;   /* processes and threads for each slot of a run; 0: any number */
	char **allow_devices; /* files below /dev that runs may open, besides their GPUs; NULL: none */
};

/* path NULL: the defaults. A missing file at `path` is an error, at the default place
 * (SYSCONFDIR/dtrain/dtraind.conf) it is not. */
int daemon_config_read(const char *path, struct daemon_config **out, struct error *err);
int daemon_config_parse(const char *text, const char *where, struct daemon_config **out, struct error *err);
/* The table of keys, for the man page's check. */
struct keys;
extern const struct keys daemon_keys;

void daemon_config_free(struct daemon_config *c);
DEFINE_CLEANUP(struct daemon_config *, daemon_config_free)
