/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the progress of a training run: to the log, the service, metrics.jsonl and TensorBoard. */
#include "worker/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "worker/metrics.h"

#define NODE_MAX 64

struct report {
	struct report_options o;
	struct metrics *metrics;
	char (*nodes)[NODE_MAX]; /* of each rank */
	int64_t device_bytes;
};

/* Gathers the names of all ranks through `staging`, which is on the device. The values are copied, so only
 * the size of their type matters. */
static int gather_names(const struct report_options *o, char (*nodes)[NODE_MAX], size_t bytes, void *staging,
                        struct error *err)
{
	const int64_t each = NODE_MAX / (int64_t)sizeof(float);
	int r;

	if ((r = device_write(o->dev, staging, nodes, bytes, err)) < 0 ||
	    (r = comm_wait(o->comm, comm_all_gather(o->comm, staging, each, DTYPE_F32), err)) < 0 ||
	    (r = comm_flush(o->comm, err)) < 0)
		return r;
	return device_read(o->dev, nodes, staging, bytes, err);
}

/* Sends the name of every rank's node to all ranks. */
static int gather_nodes(const struct report_options *o, char (*nodes)[NODE_MAX], struct error *err)
{
	int rank = o->env->rank, r;
	size_t bytes = (size_t)o->env->world_size * sizeof(*nodes);
	void *staging;

	snprintf(nodes[rank], sizeof(*nodes), "%s", o->env->node);
	str_make_utf8(nodes[rank]);
	if (!o->comm)
		return 0;
	if ((r = device_alloc(o->dev, bytes, &staging, err)) < 0)
		return r;
	r = gather_names(o, nodes, bytes, staging, err);
	device_free(o->dev, staging);
	return r;
}

/* The run as its file describes it, for TensorBoard, as an indented block, which Markdown leaves alone. The
 * environment is left out, since it may hold secrets. */
static int write_config(struct report *r, int64_t step, struct error *err)
{
	_cleanup_json_ json_t *config = NULL;
	_cleanup_free_ char *text = NULL;
	_cleanup_strbuf_ struct strbuf block = {0};
	int s = run_config_to_json(r->o.config, &config, err);

	if (s < 0)
		return s;
	json_object_del(config, "environment");
	text = json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(10));
	if (!text)
		return error_oom(err);
	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
		strbuf_addf(&block, "    %.*s\n", (int)strcspn(line, "\n"), line);
	if (block.failed)
		return error_oom(err);
	return metrics_text(r->metrics, step, clock_realtime(), "configuration", block.data, err);
}

/* Tells the service the step of the newest checkpoint, from which the next attempt would go on. */
static void send_checkpoint(struct report *r, int64_t step)
{
	char line[64];

	snprintf(line, sizeof(line), "{\"checkpoint\":%" PRId64 "}", step);
	service_client_report(r->o.service, line);
}

static int write_start(struct report *r, struct error *err)
{
	const struct environment *env = r->o.env;
	int64_t step = trainer_step(r->o.trainer);
	const char *from = r->o.resumed_from;
	const struct metrics_mark mark = {
	    .event = (char *)(from ? "resume" : "start"),
	    .step = step,
	    .time = clock_realtime(),
	    .attempt = env->attempt,
	    .ranks = env->world_size,
	    .precision = (char *)r->o.precision,
	    .from = (char *)from,
	};
	_cleanup_free_ char *text = NULL;

	if (from)
		send_checkpoint(r, r->o.resumed_step);
	text = from ? str_printf("attempt %" PRId64 ", %d ranks, %s, goes on from `%s`", env->attempt,
	                         env->world_size, r->o.precision, from)
	            : str_printf("attempt %" PRId64 ", %d ranks, %s, from the start", env->attempt,
	                         env->world_size, r->o.precision);
	return text ? metrics_event(r->metrics, &mark, text, err) : error_oom(err);
}

int report_open(const struct report_options *o, struct report **out, struct error *err)
{
	_cleanup_(report_closep) struct report *r = calloc(1, sizeof(*r));
	int64_t step = trainer_step(o->trainer);
	int s;

	if (!r || !(r->nodes = calloc((size_t)o->env->world_size, sizeof(*r->nodes))))
		return error_oom(err);
	r->o = *o;
	if ((s = gather_nodes(o, r->nodes, err)) < 0 || o->env->rank != 0)
		return s;
	if ((s = metrics_open(o->config->output.dir, step, o->config->output.tensorboard, &r->metrics, err)) <
	    0)
		return s;
	r->device_bytes = trainer_plan_bytes(o->trainer);
	if ((s = write_config(r, step, err)) < 0 || (s = write_start(r, err)) < 0)
		return s;
	*out = steal_pointer(r);
	return 0;
}

void report_close(struct report *r)
{
	if (!r)
		return;
	metrics_closep(&r->metrics);
	free(r->nodes);
	free(r);
}

/* " accuracy 0.62 margin 0.1512" of a preference task, " reward 0.62 length 120.5" of a policy. */
static void print_metrics(char *out, size_t size, const struct train_log *log)
{
	double accuracy = NAN, margin = NAN, reward = NAN, length = NAN;
	char text[STR_MEASURE], other[STR_MEASURE];
	size_t n = 0;

	for (int i = 0; i < log->metric_count; i++) {
		const char *name = log->metrics[i].name;

		if (str_eq(name, "rewards/accuracies") || str_eq(name, "accuracy"))
			accuracy = log->metrics[i].value;
		if (str_eq(name, "rewards/margins") || str_eq(name, "margin"))
			margin = log->metrics[i].value;
		if (str_eq(name, "reward"))
			reward = log->metrics[i].value;
		if (str_eq(name, "completions/mean_length"))
			length = log->metrics[i].value;
	}
	*out = '\0';
	if (!isnan(accuracy))
		n = (size_t)snprintf(out, size, " accuracy %.2f", accuracy);
	if (!isnan(margin))
		snprintf(out + n, size - n, " margin %s", str_measure(text, sizeof(text), margin, 4));
	if (!isnan(reward))
		snprintf(out, size, " reward %s length %s", str_measure(text, sizeof(text), reward, 4),
		         str_measure(other, sizeof(other), length, 4));
}

/* The loss, or the mean reward. */
static void print_evaluation(char *out, size_t size, const struct train_log *log)
{
	char text[STR_MEASURE];
	double reward = NAN;

	for (int i = 0; i < log->metric_count; i++)
		if (str_eq(log->eval_metrics[i].name, "reward"))
			reward = log->eval_metrics[i].value;
	if (!isnan(reward))
		snprintf(out, size, " eval reward %s", str_measure(text, sizeof(text), reward, 4));
	else
		snprintf(out, size, " eval %s", str_measure(text, sizeof(text), log->eval_loss, 4));
}

static void print_progress(const struct train_log *log)
{
	char metrics[48 + 2 * STR_MEASURE], eta[32], eval[STR_MEASURE + 16] = "", scale[64] = "",
	                                                                loss[STR_MEASURE], norm[STR_MEASURE];

	if (log->has_eval)
		print_evaluation(eval, sizeof(eval), log);
	print_metrics(metrics, sizeof(metrics), log);
	if (log->loss_scale > 0)
		snprintf(scale, sizeof(scale), " scale %g skipped %" PRId64, log->loss_scale, log->skipped);
	printf("step %" PRId64 "/%" PRId64 " loss %s%s%s lr %.1e grad %s%s %.0f tokens/s eta %s\n", log->step,
	       log->steps, str_measure(loss, sizeof(loss), log->loss, 4), eval, metrics, log->learning_rate,
	       str_measure(norm, sizeof(norm), log->grad_norm, 2), scale, log->tokens_per_second,
	       str_duration(eta, sizeof(eta), log->eta_seconds));
}

/* The largest resident memory that this process has had. */
static int64_t peak_memory(void)
{
	struct rusage usage;

	return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

int report_log(struct report *r, const struct train_log *log, struct error *err)
{
	const struct metrics_report m = {
	    .step = log->step,
	    .steps = log->steps,
	    .epoch = log->epoch,
	    .loss = log->loss,
	    .learning_rate = log->learning_rate,
	    .grad_norm = log->grad_norm,
	    .tokens = r->o.tokens_before + log->tokens,
	    .tokens_per_second = log->tokens_per_second,
	    .eta_seconds = log->eta_seconds,
	    .eval_loss = log->has_eval ? log->eval_loss : NAN,
	    .time = clock_realtime(),
	    .step_seconds = log->step_seconds,
	    .compute_seconds = log->step_seconds - log->data_seconds - log->communication_seconds,
	    .communication_seconds = log->communication_seconds,
	    .data_seconds = log->data_seconds,
	    .memory_bytes = peak_memory(),
	    .device_memory_bytes = r->device_bytes,
	    .slowest_rank = log->slowest_rank,
	    .slowest_node = log->slowest_rank >= 0 ? r->nodes[log->slowest_rank] : NULL,
	    .slowest_seconds = log->slowest_seconds,
	    .loss_scale = log->loss_scale,
	    .skipped_steps = log->skipped,
	};
	const struct metrics_extra extra = {log->metric_count, log->metrics,
	                                    log->has_eval ? log->eval_metrics : NULL};
	_cleanup_free_ char *line = metrics_line(&m, &extra);

	if (!line)
		return error_oom(err);
	print_progress(log);
	service_client_report(r->o.service, line);
	return metrics_write(r->metrics, &m, &extra, err);
}

int report_checkpoint(struct report *r, int64_t step, struct error *err)
{
	_cleanup_free_ char *path = str_printf("%s/checkpoint-%" PRId64, r->o.config->output.dir, step);
	_cleanup_free_ char *text = path ? str_printf("saved `%s`", path) : NULL;
	const struct metrics_mark mark = {
	    .event = (char *)"checkpoint", .step = step, .time = clock_realtime(), .path = path};

	send_checkpoint(r, step);
	return text ? metrics_event(r->metrics, &mark, text, err) : error_oom(err);
}

int report_end(struct report *r, int64_t step, const char *signal, struct error *err)
{
	char *dir = r->o.config->output.dir;
	_cleanup_free_ char *text =
	    signal ? str_printf("stopped by %s", signal) : str_printf("saved the model in `%s`", dir);
	const struct metrics_mark mark = {
	    .event = (char *)(signal ? "stopped" : "model"),
	    .step = step,
	    .time = clock_realtime(),
	    .path = signal ? NULL : dir,
	    .signal = (char *)signal,
	};

	return text ? metrics_event(r->metrics, &mark, text, err) : error_oom(err);
}
