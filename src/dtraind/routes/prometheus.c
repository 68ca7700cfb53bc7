/* SPDX-License-Identifier: Apache-2.0 */
/* GET /metrics: the cluster as Prometheus reads it. */
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "controller/nodes.h"
#include "controller/runs.h"
#include "dtraind/routes/routes.h"

static void metric(struct strbuf *b, const char *name, const char *type, const char *help)
{
	strbuf_addf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: a name of ours needs no escaping, a user's may. */
static void add_label(struct strbuf *b, const char *s)
{
	for (; *s; s++) {
		if (*s == '\n') {
			strbuf_adds(b, "\\n");
			continue;
		}
		if (*s == '"' || *s == '\\')
			strbuf_addc(b, '\\');
		strbuf_addc(b, *s);
	}
}

static void add_runs(struct strbuf *b, struct controller *c)
{
	static const struct {
		const char *name, *key, *help;
	} gauges[] = {
	    {"dtrain_run_step", "step", "Steps done."},
	    {"dtrain_run_loss", "loss", "Training loss of the last report."},
	    {"dtrain_run_learning_rate", "learning_rate", "Learning rate of the last report."},
	    {"dtrain_run_tokens_per_second", "tokens_per_second", "Tokens per second over the last steps."},
	    {"dtrain_run_eta_seconds", "eta_seconds", "Seconds left, as the worker reckons."},
	};

	for (size_t g = 0; g < ARRAY_SIZE(gauges); g++) {
		metric(b, gauges[g].name, "gauge", gauges[g].help);
		for (size_t i = 0; i < controller_active_count(c); i++) {
			const struct run *r = controller_active_run(c, i);
			const json_t *v = json_object_get(r->progress, gauges[g].key);

			if (!json_is_number(v))
				continue;
			strbuf_addf(b, "%s{run=\"%lld\",name=\"", gauges[g].name, (long long)r->id);
			add_label(b, r->name);
			strbuf_addf(b, "\"} %.9g\n", json_number_value(v));
		}
	}
}

/* Of each GPU, as its node last said; what is not known is left out. */
static void add_gpus(struct strbuf *b, struct controller *c)
{
	static const struct {
		const char *name, *key, *type, *help;
		double scale;
	} metrics[] = {
	    {"dtrain_gpu_memory_bytes", "memory", "gauge", "Memory.", 1},
	    {"dtrain_gpu_memory_used_bytes", "memory_used", "gauge", "Memory in use.", 1},
	    {"dtrain_gpu_utilization_ratio", "utilization", "gauge", "Share of the time that it was busy.",
	     0.01},
	    {"dtrain_gpu_temperature_celsius", "temperature", "gauge", "Temperature.", 1},
	    {"dtrain_gpu_power_watts", "power", "gauge", "Power drawn.", 1},
	    {"dtrain_gpu_power_limit_watts", "power_limit", "gauge", "Power that it may draw.", 1},
	    {"dtrain_gpu_ecc_errors_total", "ecc_errors", "counter",
	     "Uncorrected memory errors since the driver was loaded.", 1},
	};

	for (size_t g = 0; g < ARRAY_SIZE(metrics); g++) {
		metric(b, metrics[g].name, metrics[g].type, metrics[g].help);
		for (size_t i = 0; i < controller_node_count(c); i++) {
			const struct member *m = controller_node(c, i);
			size_t k;
			json_t *d;

			json_array_foreach(m->up ? m->devices : NULL, k, d)
			{
				const json_t *v = json_object_get(d, metrics[g].key);

				if (!str_eq(json_get_string(d, "kind", ""), "gpu") || !json_is_number(v))
					continue;
				strbuf_addf(b, "%s{node=\"%s\",slot=\"%zu\",uuid=\"", metrics[g].name,
				            m->name, k);
				add_label(b, json_get_string(d, "uuid", ""));
				strbuf_addf(b, "\"} %.15g\n", json_number_value(v) * metrics[g].scale);
			}
		}
	}
}

void route_prometheus(void *context, struct http_request *r)
{
	struct daemon *d = context;
	_cleanup_strbuf_ struct strbuf b = {0};
	struct error err = ERROR_INIT;
	int64_t counts[RUN_STATES];
	struct controller *c = d->controller;

	if (controller_count_runs(c, counts, &err) < 0) {
		http_reply_error(r, 500, "store", "%s", err.message);
		return;
	}
	metric(&b, "dtrain_runs", "gauge", "Runs by state.");
	for (int i = 0; i < RUN_STATES; i++)
		strbuf_addf(&b, "dtrain_runs{state=\"%s\"} %lld\n", run_state_name(i), (long long)counts[i]);
	metric(&b, "dtrain_node_up", "gauge", "1 where the node's heartbeats come.");
	for (size_t i = 0; i < controller_node_count(c); i++) {
		const struct member *m = controller_node(c, i);

		strbuf_addf(&b, "dtrain_node_up{node=\"%s\"} %d\n", m->name, m->up);
	}
	metric(&b, "dtrain_slots", "gauge", "Slots of a node.");
	for (size_t i = 0; i < controller_node_count(c); i++) {
		const struct member *m = controller_node(c, i);

		strbuf_addf(&b, "dtrain_slots{node=\"%s\"} %zu\n", m->name, m->slots);
	}
	metric(&b, "dtrain_slots_free", "gauge", "Slots of a node that no run has.");
	for (size_t i = 0; i < controller_node_count(c); i++) {
		const struct member *m = controller_node(c, i);

		strbuf_addf(&b, "dtrain_slots_free{node=\"%s\"} %zu\n", m->name,
		            m->up ? member_free_slots(m) : 0);
	}
	metric(&b, "dtrain_slots_drained", "gauge",
	       "Slots of a node that get no runs: broken, or drained by hand.");
	for (size_t i = 0; i < controller_node_count(c); i++) {
		const struct member *m = controller_node(c, i);

		strbuf_addf(&b, "dtrain_slots_drained{node=\"%s\"} %zu\n", m->name, member_drained_slots(m));
	}
	metric(&b, "dtrain_event_loop_lag_seconds", "gauge",
	       "By how much the controller's last timer was late.");
	strbuf_addf(&b, "dtrain_event_loop_lag_seconds %.6f\n", d->loop_lag);
	metric(&b, "dtrain_event_loop_lag_max_seconds", "gauge", "The most that one was since the start.");
	strbuf_addf(&b, "dtrain_event_loop_lag_max_seconds %.6f\n", d->loop_lag_max);
	add_gpus(&b, c);
	add_runs(&b, c);
	http_reply_bytes(r, 200, "text/plain; version=0.0.4; charset=utf-8", b.data ? b.data : "", b.len);
}
