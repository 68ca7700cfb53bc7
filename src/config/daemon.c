/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of dtraind.conf as a table, and its reading. */
#include "config/daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "config/keys.h"

#define F(field) offsetof(struct daemon_config, field)

static const struct key daemon_key_list[] = {
    {NULL, "node", KEY_STRING, F(node), NULL, 0, 0, NULL,
     "this node's name in the hosts file; default: found by host name or address"},
    {NULL, "controller", KEY_STRING, F(controller), NULL, 0, 0, NULL,
     "the node that keeps the queue; default: the first host"},
    {NULL, "store", KEY_STRING, F(store), "sqlite", 0, 0, NULL,
     "where the queue is: sqlite, a file in state_dir; or \"etcd:https://a:2379,https://b:2379\""},
    {NULL, "controllers", KEY_LIST, F(controllers), NULL, 0, 0, NULL,
     "nodes one of which is the controller, with etcd: another one follows it when it dies"},
    {NULL, "etcd_certificate", KEY_STRING, F(etcd_certificate), NULL, 0, 0, NULL,
     "the certificate for etcd; default: certificate"},
    {NULL, "etcd_key", KEY_STRING, F(etcd_key), NULL, 0, 0, NULL,
     "the key of etcd_certificate; default: certificate_key"},
    {NULL, "etcd_ca", KEY_STRING, F(etcd_ca), NULL, 0, 0, NULL,
     "the authorities that sign the certificates of etcd; default: ca_file"},
    {NULL, "hosts_file", KEY_STRING, F(hosts_file), SYSCONFDIR "/dtrain/hosts", 0, 0, NULL,
     "the nodes of the cluster"},
    {NULL, "cluster_key", KEY_STRING, F(cluster_key), SYSCONFDIR "/dtrain/cluster.pem", 0, 0, NULL,
     "the cluster's key and certificate"},
    {NULL, "certificate", KEY_STRING, F(certificate), NULL, 0, 0, NULL,
     "the node's own certificate, in place of cluster_key"},
    {NULL, "certificate_key", KEY_STRING, F(certificate_key), NULL, 0, 0, NULL, "the key of the certificate"},
    {NULL, "ca_file", KEY_STRING, F(ca_file), NULL, 0, 0, NULL,
     "the authorities that sign the certificates of nodes"},
    {NULL, "socket", KEY_STRING, F(socket), RUNSTATEDIR "/dtrain/dtraind.sock", 0, 0, NULL,
     "the Unix socket for clients"},
    {NULL, "state_dir", KEY_STRING, F(state_dir), LOCALSTATEDIR "/lib/dtrain", 0, 0, NULL,
     "the queue's store"},
    {NULL, "runtime_dir", KEY_STRING, F(runtime_dir), RUNSTATEDIR "/dtrain", 0, 0, NULL,
     "what does not outlive a boot"},
    {NULL, "log_dir", KEY_STRING, F(log_dir), LOCALSTATEDIR "/log/dtrain", 0, 0, NULL, "the workers' output"},
    {NULL, "tmp_dir", KEY_STRING, F(tmp_dir), NULL, 0, 0, NULL,
     "where each run has a directory for temporary files; default: tmp in state_dir"},
    {NULL, "worker_dir", KEY_STRING, F(worker_dir), PKGLIBEXECDIR, 0, 0, NULL,
     "holds dtrain-launch and the workers"},
    {NULL, "group", KEY_STRING, F(group), "dtrain", 0, 0, NULL,
     "its members may use the socket; \"\": only root and the service's user"},
    {NULL, "admin_group", KEY_STRING, F(admin_group), "dtrain-admin", 0, 0, NULL,
     "its members are administrators, as root is; \"\": only root is"},
    {NULL, "allow_root", KEY_BOOL, F(allow_root), "true", 0, 0, NULL,
     "runs of root are accepted, and started on this node"},
    {NULL, "listen", KEY_STRING, F(listen), "0.0.0.0", 0, 0, NULL, "address of the port for peers"},
    {NULL, "port", KEY_INT, F(port), "29600", 1, 65535, NULL,
     "port for peers, where the hosts file has none"},
    {NULL, "metrics_listen", KEY_STRING, F(metrics_listen), NULL, 0, 0, NULL,
     "address and port, \"0.0.0.0:9600\", where /metrics alone is served; default: nowhere"},
    {NULL, "metrics_ca", KEY_STRING, F(metrics_ca), NULL, 0, 0, NULL,
     "the authorities that sign the certificates of those who may ask there"},
    {NULL, "port_range", KEY_STRING, F(port_range), NULL, 0, 0, NULL,
     "TCP ports for what runs listen on, \"29700-29999\"; default: any that the kernel gives"},
    {NULL, "cpu_slots", KEY_INT, F(cpu_slots), "0", 0, 1024, NULL,
     "slots on a machine without GPUs; 0: slots= of the hosts file, else 1"},
    {NULL, "slot_threads", KEY_INT, F(slot_threads), "0", 0, 4096, NULL,
     "CPU threads per slot; 0: cores / slots"},
    {NULL, "log_level", KEY_CHOICE, F(log_level), "info", 0, 0, "error|warning|info|debug",
     "least urgent level that is logged"},
    {NULL, "heartbeat", KEY_NUMBER, F(heartbeat), "1", 0.05, 60, NULL, "seconds between a node's reports"},
    {NULL, "node_timeout", KEY_NUMBER, F(node_timeout), "5", 0.2, 3600, NULL,
     "seconds without a report until a node is down"},
    {NULL, "lease", KEY_NUMBER, F(lease), "60", 1, 86400, NULL,
     "seconds after which a node that its controller cannot be reached from has ended the runs that ask for "
     "it"},
    {NULL, "shutdown_grace", KEY_NUMBER, F(shutdown_grace), "90", 0, 86400, NULL,
     "most seconds between TERM and KILL at a shutdown"},
    {NULL, "launch", KEY_CHOICE, F(launch), "auto", 0, 0, "auto|systemd|process",
     "how runs are started: as services of systemd, or as processes of dtraind"},
    {NULL, "user_runs", KEY_INT, F(user_runs), "0", 0, INT32_MAX, NULL,
     "runs that have not ended, queued ones included, that a user may have; 0: any number"},
    {NULL, "user_slots", KEY_INT, F(user_slots), "0", 0, INT32_MAX, NULL,
     "slots that the runs of a user may have at once; 0: any number"},
    {NULL, "log_quota", KEY_INT, F(log_quota), "0", 0, 1000000000, NULL,
     "MiB of the log of a rank that are kept, the newest; 0: all"},
    {NULL, "keep_days", KEY_NUMBER, F(keep_days), "0", 0, 1e6, NULL,
     "days for which the logs and metrics of a run are kept after their last change; 0: for ever"},
    {NULL, "keep_runs", KEY_INT, F(keep_runs), "0", 0, INT32_MAX, NULL,
     "so many of the newest runs have their logs and metrics kept; 0: all"},
    {NULL, "gpu_idle_timeout", KEY_NUMBER, F(gpu_idle_timeout), "30", 0, 3600, NULL,
     "seconds after the end of a run until its GPUs are drained whose memory is not free again; 0: never"},
    {NULL, "slot_memory", KEY_NUMBER, F(slot_memory), "0", 0, 1e9, NULL,
     "GiB of memory that a run may use for each of its slots; 0: 15/16 of the machine's"},
    {NULL, "slot_tasks", KEY_INT, F(slot_tasks), "16384", 0, 4194304, NULL,
     "processes and threads that a run may have for each of its slots; 0: any number"},
    {NULL, "allow_devices", KEY_LIST, F(allow_devices), NULL, 0, 0, NULL,
     "files below /dev that runs may open in addition to their GPUs"},
};

const struct keys daemon_keys = {daemon_key_list, ARRAY_SIZE(daemon_key_list), NULL};

void daemon_config_free(struct daemon_config *c)
{
	if (!c)
		return;
	keys_free(&daemon_keys, c);
	free(c->metrics_address);
	str_list_free(c->etcd_urls);
	free(c);
}

/* "LOW-HIGH" */
static int read_port_range(struct daemon_config *c, const char *where, struct error *err)
{
	_cleanup_free_ char *low = c->port_range ? strdup(c->port_range) : NULL;
	char *high = low ? strchr(low, '-') : NULL;
	int64_t first, last;

	if (!c->port_range || !*c->port_range)
		return 0;
	if (!low)
		return error_oom(err);
	if (high)
		*high++ = '\0';
	if (!high || str_to_int64(str_strip(low), 1, 65535, &first) < 0 ||
	    str_to_int64(str_strip(high), 1, 65535, &last) < 0 || first > last)
		return error_set(
		    err, -EINVAL,
		    "%s: port_range: \"%.40s\" is no range of ports from 1 to 65535; it is written "
		    "\"29700-29999\"",
		    where, c->port_range);
	if (c->port >= first && c->port <= last)
		return error_set(err, -EINVAL,
		                 "%s: port_range: %lld, the service's own port, lies within \"%.40s\"", where,
		                 (long long)c->port, c->port_range);
	c->port_low = (int)first;
	c->port_high = (int)last;
	return 0;
}

/* "ADDRESS:PORT", an IPv6 address in brackets. */
static int read_metrics_listen(struct daemon_config *c, const char *where, struct error *err)
{
	_cleanup_free_ char *text = c->metrics_listen ? strdup(c->metrics_listen) : NULL;
	char *colon = text ? strrchr(text, ':') : NULL, *address = text;
	int64_t port;

	if (!c->metrics_listen != !c->metrics_ca)
		return error_set(err, -EINVAL,
		                 "%s: metrics_listen and metrics_ca belong together: %s is missing", where,
		                 c->metrics_ca ? "metrics_listen" : "metrics_ca");
	if (!c->metrics_listen)
		return 0;
	if (!text)
		return error_oom(err);
	if (colon)
		*colon++ = '\0';
	if (colon && address[0] == '[' && str_ends(address, "]")) {
		address[strlen(address) - 1] = '\0';
		address++;
	}
	if (!colon || !*address || str_to_int64(colon, 1, 65535, &port) < 0)
		return error_set(err, -EINVAL,
		                 "%s: metrics_listen: \"%.60s\" is no address and port; it is written "
		                 "\"0.0.0.0:9600\"",
		                 where, c->metrics_listen);
	c->metrics_port = (int)port;
	c->metrics_address = strdup(address);
	return c->metrics_address ? 0 : error_oom(err);
}

/* systemd takes a name elsewhere for a device, and then starts no run at all. */
static int check_devices(const struct daemon_config *c, const char *where, struct error *err)
{
	for (char **name = c->allow_devices; name && *name; name++)
		if (!str_starts(*name, "/dev/") || strstr(*name, "/../"))
			return error_set(err, -EINVAL,
			                 "%s: allow_devices: \"%.200s\" is not below /dev; it is written "
			                 "\"/dev/kvm\"",
			                 where, *name);
	return 0;
}

static int check_certificate(const struct daemon_config *c, const char *where, struct error *err)
{
	int given = !!c->certificate + !!c->certificate_key + !!c->ca_file;

	if (given == 0 || given == 3)
		return 0;
	return error_set(err, -EINVAL,
	                 "%s: certificate, certificate_key and ca_file belong together: %s is missing", where,
	                 !c->certificate       ? "certificate"
	                 : !c->certificate_key ? "certificate_key"
	                                       : "ca_file");
}

/* Without TLS who else is on the network could write to etcd as the controller. */
static bool is_loopback(const char *url)
{
	static const char *const hosts[] = {"http://127.0.0.1:", "http://localhost:", "http://[::1]:"};

	for (size_t i = 0; i < ARRAY_SIZE(hosts); i++)
		if (str_starts(url, hosts[i]))
			return true;
	return false;
}

static int check_urls(const struct daemon_config *c, const char *where, struct error *err)
{
	for (char **url = c->etcd_urls; *url; url++) {
		if (!str_starts(*url, "https://") && !is_loopback(*url))
			return error_set(err, -EINVAL,
			                 "%s: store: \"%.200s\" is no URL of etcd; it is written "
			                 "\"https://a:2379\" (http:// is for this machine's own addresses)",
			                 where, *url);
		if (str_starts(*url, "https://") && !(c->etcd_certificate && c->etcd_key && c->etcd_ca))
			return error_set(
			    err, -EINVAL,
			    "%s: store: https:// needs etcd_certificate, etcd_key and etcd_ca, or "
			    "certificate, certificate_key and ca_file",
			    where);
	}
	return 0;
}

/* A URL ends with its port: paths begin with a slash. */
static int split_urls(const char *text, char ***out, struct error *err)
{
	_cleanup_free_ char *copy = strdup(text);
	size_t count = 0;
	char *at = copy;

	*out = calloc(strlen(text) + 2, sizeof(**out));
	if (!copy || !*out)
		return error_oom(err);
	for (char *url; (url = strsep(&at, ","));) {
		size_t len;

		url = str_strip(url);
		len = strlen(url);
		while (len > 0 && url[len - 1] == '/')
			url[--len] = '\0';
		(*out)[count] = strdup(url);
		if (!(*out)[count++])
			return error_oom(err);
	}
	return 0;
}

static int set_etcd_defaults(struct daemon_config *c, struct error *err)
{
	if (!c->certificate || c->etcd_certificate || c->etcd_key || c->etcd_ca)
		return 0;
	if (str_replace(&c->etcd_certificate, c->certificate) < 0 ||
	    str_replace(&c->etcd_key, c->certificate_key) < 0 || str_replace(&c->etcd_ca, c->ca_file) < 0)
		return error_oom(err);
	return 0;
}

static int read_store(struct daemon_config *c, const char *where, struct error *err)
{
	bool candidates = c->controllers && *c->controllers;
	int r;

	if (str_eq(c->store, "sqlite"))
		return candidates
		           ? error_set(err, -EINVAL,
		                       "%s: controllers needs store = \"etcd:https://HOST:2379\", which "
		                       "they share; without it there is one controller",
		                       where)
		           : 0;
	if (!str_starts(c->store, "etcd:"))
		return error_set(err, -EINVAL,
		                 "%s: store: \"%.200s\"; expected \"sqlite\" or "
		                 "\"etcd:https://a:2379,https://b:2379\"",
		                 where, c->store);
	if (!candidates || c->controller)
		return error_set(
		    err, -EINVAL,
		    "%s: with etcd, controllers = [\"n1\", \"n2\", \"n3\"] says which nodes may be "
		    "the controller, in place of controller",
		    where);
	if ((r = split_urls(c->store + strlen("etcd:"), &c->etcd_urls, err)) < 0 ||
	    (r = set_etcd_defaults(c, err)) < 0)
		return r;
	return check_urls(c, where, err);
}

int daemon_config_parse(const char *text, const char *where, struct daemon_config **out, struct error *err)
{
	_cleanup_(daemon_config_freep) struct daemon_config *c = calloc(1, sizeof(*c));
	bool seen[ARRAY_SIZE(daemon_key_list)] = {false};
	int r;

	if (!c)
		return error_oom(err);
	if ((r = keys_set_defaults(&daemon_keys, c, err)) < 0 ||
	    (r = keys_read_text(&daemon_keys, c, text, where, seen, err)) < 0)
		return r;
	c->hosts_file_given = keys_seen(&daemon_keys, seen, "hosts_file");
	if ((r = read_port_range(c, where, err)) < 0 || (r = check_devices(c, where, err)) < 0 ||
	    (r = check_certificate(c, where, err)) < 0 || (r = read_metrics_listen(c, where, err)) < 0 ||
	    (r = read_store(c, where, err)) < 0)
		return r;
	if (c->node_timeout <= c->heartbeat)
		return error_set(err, -EINVAL,
		                 "%s: node_timeout: %g s is not above heartbeat, which is %g s; set a longer "
		                 "node_timeout, or a shorter heartbeat",
		                 where, c->node_timeout, c->heartbeat);
	if (!keys_seen(&daemon_keys, seen, "lease"))
		c->lease = MAX(c->lease, 4 * c->heartbeat);
	if (c->lease <= 3 * c->heartbeat)
		return error_set(
		    err, -EINVAL,
		    "%s: lease: %g s is not above three times heartbeat, which is %g s; set lease "
		    "above %g s, or a shorter heartbeat",
		    where, c->lease, c->heartbeat, 3 * c->heartbeat);
	*out = steal_pointer(c);
	return 0;
}

int daemon_config_read(const char *path, struct daemon_config **out, struct error *err)
{
	const char *file = path ? path : SYSCONFDIR "/dtrain/dtraind.conf";
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r;

	r = file_read(file, 1 << 20, &text, &len, err);
	if (r == -ENOENT && !path)
		return daemon_config_parse("", file, out, err);
	if (r < 0)
		return r;
	if (strlen(text) != len)
		return error_set(err, -EINVAL, "%s: not a text file: a NUL byte in it", file);
	return daemon_config_parse(text, file, out, err);
}
