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
		const char *name, *help;
	} gauges[] = {
	    {"dtrain_run_step", "Steps done."},
	    {"dtrain_run_loss", "Training loss of the last report."},
	    {"dtrain_run_reward", "Mean reward of the last report."},
	    {"dtrain_run_learning_rate", "Learning rate of the last report."},
	    {"dtrain_run_tokens_per_second", "Tokens per second over the last steps."},
	    {"dtrain_run_eta_seconds", "Seconds left, as the worker reckons."},
	};

	for (size_t g = 0; g < ARRAY_SIZE(gauges); g++) {
		metric(b, gauges[g].name, "gauge", gauges[g].help);
		for (size_t i = 0; i < controller_active_count(c); i++) {
			const struct run *r = controller_active_run(c, i);
			struct progress p;

			progress_read(r->progress, &p);

			const struct {
				bool known;
				double value;
			} values[ARRAY_SIZE(gauges)] = {
			    {p.has_step, (double)p.step},
			    {p.has_loss, p.loss},
			    {p.has_reward, p.reward},
			    {p.has_learning_rate, p.learning_rate},
			    {p.has_tokens_per_second, p.tokens_per_second},
			    {p.has_eta_seconds, p.eta_seconds},
			};

			if (!values[g].known)
				continue;
			strbuf_addf(b, "%s{run=\"%lld\",name=\"", gauges[g].name, (long long)r->id);
			add_label(b, r->name);
			strbuf_addf(b, "\"} %.9g\n", values[g].value);
		}
	}
}

/* Attempts of the runs that have not ended. */
static void add_attempts(struct strbuf *b, struct controller *c)
{
	static const struct {
		const char *name, *help;
	} metrics[] = {
	    {"dtrain_run_restarts_total", "Attempts that followed a failure of the program."},
	    {"dtrain_run_node_failures_total", "Attempts that followed a failure of a node or a device."},
	};

	for (size_t g = 0; g < ARRAY_SIZE(metrics); g++) {
		metric(b, metrics[g].name, "counter", metrics[g].help);
		for (size_t i = 0; i < controller_active_count(c); i++) {
			const struct run *r = controller_active_run(c, i);
			const struct retry_record *x = &r->retries.record;

			strbuf_addf(b, "%s{run=\"%lld\",name=\"", metrics[g].name, (long long)r->id);
			add_label(b, r->name);
			strbuf_addf(b, "\"} %lld\n", (long long)(g == 0 ? x->restarts : x->node_failures));
		}
	}
}

enum gpu_metric {
	GPU_MEMORY,
	GPU_MEMORY_USED,
	GPU_UTILIZATION,
	GPU_TEMPERATURE,
	GPU_POWER,
	GPU_POWER_LIMIT,
	GPU_ECC_ERRORS,
	GPU_METRICS
};

/* In the metric's unit; below 0: not known. */
static double gpu_value(const struct device_info *d, enum gpu_metric metric)
{
	const struct gpu_info *gpu = d->gpu_info;

	switch (metric) {
	case GPU_MEMORY:
		return (double)d->memory;
	case GPU_MEMORY_USED:
		return (double)gpu->memory_used;
	case GPU_UTILIZATION:
		return (double)gpu->utilization * 0.01;
	case GPU_TEMPERATURE:
		return (double)gpu->temperature;
	case GPU_POWER:
		return gpu->power;
	case GPU_POWER_LIMIT:
		return gpu->power_limit;
	case GPU_ECC_ERRORS:
		return (double)gpu->ecc_errors;
	default:
		return -1;
	}
}

/* Of each GPU, as its node last said; what is not known is left out. */
static void add_gpus(struct strbuf *b, struct controller *c)
{
	static const struct {
		const char *name, *type, *help;
	} metrics[GPU_METRICS] = {
	    [GPU_MEMORY] = {"dtrain_gpu_memory_bytes", "gauge", "Memory."},
	    [GPU_MEMORY_USED] = {"dtrain_gpu_memory_used_bytes", "gauge", "Memory in use."},
	    [GPU_UTILIZATION] = {"dtrain_gpu_utilization_ratio", "gauge",
	                         "Share of the time that it was busy."},
	    [GPU_TEMPERATURE] = {"dtrain_gpu_temperature_celsius", "gauge", "Temperature."},
	    [GPU_POWER] = {"dtrain_gpu_power_watts", "gauge", "Power drawn."},
	    [GPU_POWER_LIMIT] = {"dtrain_gpu_power_limit_watts", "gauge", "Power that it may draw."},
	    [GPU_ECC_ERRORS] = {"dtrain_gpu_ecc_errors_total", "counter",
	                        "Uncorrected memory errors since the driver was loaded."},
	};

	for (enum gpu_metric g = 0; g < GPU_METRICS; g++) {
		metric(b, metrics[g].name, metrics[g].type, metrics[g].help);
		for (size_t i = 0; i < controller_node_count(c); i++) {
			const struct member *m = controller_node(c, i);

			for (size_t k = 0; m->up && k < m->slots; k++) {
				const struct device_info *d = &m->devices[k];
				double value = d->gpu_info ? gpu_value(d, g) : -1;

				if (value < 0)
					continue;
				strbuf_addf(b, "%s{node=\"%s\",slot=\"%zu\",uuid=\"", metrics[g].name,
				            m->name, k);
				add_label(b, d->uuid ? d->uuid : "");
				strbuf_addf(b, "\"} %.15g\n", value);
			}
		}
	}
}

static size_t is_up(const struct member *m)
{
	return m->up;
}

static size_t all_slots(const struct member *m)
{
	return m->slots;
}

static size_t free_slots(const struct member *m)
{
	return m->up ? member_free_slots(m) : 0;
}

static size_t reserved_slots(const struct member *m)
{
	return m->up ? member_reserved_slots(m) : 0;
}

/* One line for each node. */
static void add_nodes(struct strbuf *b, struct controller *c)
{
	static const struct {
		const char *name, *help;
		size_t (*value)(const struct member *m);
	} gauges[] = {
	    {"dtrain_node_up", "1 where the node's heartbeats come.", is_up},
	    {"dtrain_slots", "Slots of a node.", all_slots},
	    {"dtrain_slots_free", "Slots of a node that no run has, and that are not reserved for one.",
	     free_slots},
	    {"dtrain_slots_reserved", "Slots of a node that are kept for runs with resources.spares.",
	     reserved_slots},
	    {"dtrain_slots_drained", "Slots of a node that get no runs: broken, or drained by hand.",
	     member_drained_slots},
	};

	for (size_t g = 0; g < ARRAY_SIZE(gauges); g++) {
		metric(b, gauges[g].name, "gauge", gauges[g].help);
		for (size_t i = 0; i < controller_node_count(c); i++) {
			const struct member *m = controller_node(c, i);

			strbuf_addf(b, "%s{node=\"%s\"} %zu\n", gauges[g].name, m->name, gauges[g].value(m));
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
	controller_note_spares(c);
	add_nodes(&b, c);
	metric(&b, "dtrain_event_loop_lag_seconds", "gauge",
	       "By how much the controller's last timer was late.");
	strbuf_addf(&b, "dtrain_event_loop_lag_seconds %.6f\n", d->loop_lag);
	metric(&b, "dtrain_event_loop_lag_max_seconds", "gauge", "The most that one was since the start.");
	strbuf_addf(&b, "dtrain_event_loop_lag_max_seconds %.6f\n", d->loop_lag_max);
	add_gpus(&b, c);
	add_attempts(&b, c);
	add_runs(&b, c);
	if (b.failed)
		http_reply_error(r, 500, "out-of-memory", "out of memory");
	else
		http_reply_bytes(r, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
}
