/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between ranks as tagged messages of UCP. The endpoint of a peer on the same host has no error
 * handling: with it UCX 1.13 uses neither shared memory nor single-copy transfers, and the lifeline shows the
 * death of the peer anyway. The endpoint of a peer on another host has error handling, so that a broken
 * connection ends its messages.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/config/global_opts.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "engine/comm/ucx/internal.h"

/* UCX warns of variables that it does not know and of connections that end; its log is off unless the user
 * asks for it. */
static void silence_ucx(void)
{
	if (!getenv("UCX_LOG_LEVEL"))
		ucs_global_opts_set_value("LOG_LEVEL", "fatal");
	if (!getenv("UCX_WARN_UNUSED_ENV_VARS"))
		ucs_global_opts_set_value("WARN_UNUSED_ENV_VARS", "n");
}

int transport_open(struct comm *c, void **address, size_t *address_len, struct error *err)
{
	ucp_params_t params = {
	    .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
	    .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
	    .estimated_num_eps = c->size,
	};
	ucp_worker_params_t worker_params = {
	    .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
	    .thread_mode = UCS_THREAD_MODE_SERIALIZED,
	};
	const char *tls = getenv("UCX_TLS");
	ucp_address_t *own;
	ucp_config_t *config;
	ucs_status_t status;

	silence_ucx();
	/* UCX 1.13 asserts, and so ends the process, when an acknowledgement of TCP's emulated put meets a
	 * connection that broke. ucp_config_modify does not reach this setting. */
	setenv("UCX_TCP_PUT_ENABLE", "n", 0);
	status = ucp_config_read(NULL, NULL, &config);
	if (status != UCS_OK)
		return error_set(err, -EINVAL, "UCX cannot read its UCX_… variables: %s",
		                 ucs_status_string(status));
	status = ucp_init(&params, config, &c->context);
	ucp_config_release(config);
	if (status == UCS_OK)
		status = ucp_worker_create(c->context, &worker_params, &c->worker);
	if (status == UCS_OK)
		status = ucp_worker_get_address(c->worker, &own, address_len);
	if (status != UCS_OK)
		return error_set(err, -ENODEV, "UCX does not start: %s%s%s%s", ucs_status_string(status),
		                 tls ? " (UCX_TLS is set to \"" : "", tls ? tls : "", tls ? "\")" : "");
	*address = malloc(*address_len);
	if (*address)
		memcpy(*address, own, *address_len);
	ucp_worker_release_address(c->worker, own);
	return *address ? 0 : error_oom(err);
}

static void on_broken(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	struct comm *c = arg;

	for (int r = 0; r < c->size; r++)
		if (c->endpoints[r] == ep && !c->ucx_error) {
			c->ucx_error = status;
			c->ucx_error_peer = r;
		}
}

int transport_connect(struct comm *c, struct error *err)
{
	c->endpoints = calloc(c->size, sizeof(ucp_ep_h));
	if (!c->endpoints)
		return error_oom(err);
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		struct peer *peer = &c->peers[r];
		ucp_ep_params_t params = {
		    .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
		                  UCP_EP_PARAM_FIELD_ERR_HANDLER,
		    .address = peer->address,
		    .err_mode = peer->same_host ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER,
		    .err_handler = {on_broken, c},
		};
		ucs_status_t status = ucp_ep_create(c->worker, &params, &c->endpoints[r]);

		if (status != UCS_OK)
			return error_set(err, -EHOSTUNREACH, "UCX does not reach rank %d on %s: %s",
			                 c->numbers[r], peer->host, ucs_status_string(status));
		free(peer->address);
		peer->address = NULL;
	}
	return 0;
}

/* What carries messages to that rank, NULL: not known. UCX gives the transports of an endpoint only as
 * text. */
static const char *carrier_of(struct comm *c, int rank)
{
	static const struct {
		const char *mark, *name;
	} carriers[] = {
	    {"posix/", "shared memory"}, {"sysv/", "shared memory"}, {"rc_", "InfiniBand"},
	    {"dc_", "InfiniBand"},       {"ud_", "InfiniBand"},      {"tcp/", "tcp"},
	};
	_cleanup_free_ char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return NULL;
	ucp_ep_print_info(c->endpoints[rank], f);
	fclose(f);
	for (size_t i = 0; text && i < ARRAY_SIZE(carriers); i++)
		if (strstr(text, carriers[i].mark))
			return carriers[i].name;
	return NULL;
}

bool transport_is_tcp(struct comm *c, int rank)
{
	const char *carrier = rank == c->rank ? NULL : carrier_of(c, rank);

	return carrier && str_eq(carrier, "tcp");
}

void transport_describe(struct comm *c)
{
	unsigned major, minor, release;
	char seen[64] = "";
	bool by_ucx = false;

	ucp_get_version(&major, &minor, &release);
	for (int r = 0; r < c->size; r++) {
		const char *carrier = r == c->rank ? NULL : carrier_of(c, r);

		by_ucx |= r != c->rank && !c->streams[r].used;
		if (!carrier || strstr(seen, carrier))
			continue;
		if (*seen)
			strcat(seen, " and ");
		strcat(seen, carrier);
	}
	if (by_ucx)
		snprintf(c->description, sizeof(c->description), "ucx %u.%u: %s", major, minor,
		         *seen ? seen : "unknown transport");
	else
		snprintf(c->description, sizeof(c->description), "sockets: %s", seen);
}

static bool has_messages(const struct comm *c)
{
	for (int i = 0; c->transfers && i < transfers_max(c->size); i++)
		if (c->transfers[i].comm && !c->transfers[i].data && !c->transfers[i].done)
			return true;
	return false;
}

/* Nothing is flushed: after an orderly end the peers have all messages, and after a failure they need none.
 * Endpoints with error handling have to be closed first, which cancels their messages; the worker frees the
 * others. But UCX 1.13 asserts, and so ends the process, when a worker is destroyed that still copies from a
 * peer's memory, and to let it copy on would write to buffers that are the caller's again: the process, whose
 * run has failed, keeps such a worker until it ends. */
void transport_close(struct comm *c)
{
	static const ucp_request_param_t force = {
	    .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
	    .flags = UCP_EP_CLOSE_FLAG_FORCE,
	};

	for (int r = 0; c->endpoints && r < c->size; r++) {
		ucs_status_ptr_t request;

		if (!c->endpoints[r] || c->peers[r].same_host)
			continue;
		request = ucp_ep_close_nbx(c->endpoints[r], &force);
		if (!UCS_PTR_IS_PTR(request))
			continue;
		while (ucp_request_check_status(request) == UCS_INPROGRESS)
			ucp_worker_progress(c->worker);
		ucp_request_free(request);
	}
	if (c->worker && !has_messages(c)) {
		ucp_worker_destroy(c->worker);
		ucp_cleanup(c->context);
	} else if (c->context && !c->worker) {
		ucp_cleanup(c->context);
	}
	free(c->endpoints);
	c->worker = NULL;
	c->context = NULL;
	c->endpoints = NULL;
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
	struct transfer *t = arg;

	transfer_end(t, status, t->expected);
	ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg)
{
	transfer_end(arg, status, status == UCS_OK ? info->length : 0);
	ucp_request_free(request);
}

static void begin(struct comm *c, struct transfer *t, int peer, size_t len)
{
	*t = (struct transfer){.comm = c, .peer = peer, .expected = len};
}

void transport_send(struct comm *c, int peer, uint64_t tag, const void *data, size_t len, struct transfer *t)
{
	ucp_request_param_t param = {
	    .op_attr_mask =
	        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
	    .cb.send = on_sent,
	    .user_data = t,
	    .memory_type = UCS_MEMORY_TYPE_HOST,
	};
	ucs_status_ptr_t request;

	begin(c, t, peer, len);
	if (c->streams[peer].used) {
		t->data = (char *)data;
		t->tag = tag;
		stream_send(c, t);
		return;
	}
	request = ucp_tag_send_nbx(c->endpoints[peer], data, len, tag, &param);
	if (!request)
		transfer_end(t, UCS_OK, len);
	else if (UCS_PTR_IS_ERR(request))
		transfer_end(t, UCS_PTR_STATUS(request), len);
}

void transport_receive(struct comm *c, int peer, uint64_t tag, void *data, size_t len, struct transfer *t)
{
	/* An immediate completion would not give the length that was received. */
	ucp_request_param_t param = {
	    .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
	                    UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
	    .cb.recv = on_received,
	    .user_data = t,
	    .memory_type = UCS_MEMORY_TYPE_HOST,
	};
	ucs_status_ptr_t request;

	begin(c, t, peer, len);
	if (c->streams[peer].used) {
		t->data = data;
		t->tag = tag;
		stream_receive(c, t);
		return;
	}
	request = ucp_tag_recv_nbx(c->worker, data, len, tag, UINT64_MAX, &param);
	if (UCS_PTR_IS_ERR(request))
		transfer_end(t, UCS_PTR_STATUS(request), 0);
}
