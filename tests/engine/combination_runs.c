/* SPDX-License-Identifier: Apache-2.0 */
/* A run of combinations: its ranks are threads, of which each has a trainer. */
#include "combinations.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/model/nf4_weights.h"
#ifdef TEST_ENGINE_SIMT
#include <cuda_runtime_api.h>

#include "kv_store.h"
#else
#include "thread_comm.h"
#endif

void fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	printf("  ");
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
	fflush(stdout);
	_exit(1);
}

static void must(int r, const struct error *err, const char *what)
{
	if (r < 0)
		fail("%s: %s", what, err->message);
}

struct start {
	struct model_init init;
	struct nf4_weights frozen;
};

static bool in_block(const struct model_parameter *p)
{
	return p->role != PARAMETER_EMBEDDING && p->role != PARAMETER_POSITIONS && p->role != PARAMETER_HEAD;
}

/* B of adapters is not 0, so that A changes from the first step on. */
static int fill(void *start, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                struct error *err)
{
	struct start *s = start;

	if (p->frozen && model_parameter_in_4_bits(p) && in_block(p))
		return nf4_weights_fill(&s->frozen, p, first, n, out, err);
	for (int64_t i = 0; i < n && p->part == PART_MAGNITUDE; i++)
		out[i] = 0.8f;
	if (p->part == PART_MAGNITUDE)
		return 0;
	return p->part == PART_LORA_A ? model_adapter_fill(&s->init, p, first, n, out, err)
	                              : model_init_fill(&s->init, p, first, n, out, err);
}

bool is_read(const struct run *run, const struct model_parameter *p)
{
	return run->o.quantize == SHARD_QUANTIZE_NONE || !p->frozen;
}

static int64_t all_elements(const struct model_layout *l)
{
	int64_t n = 0;

	for (int i = 0; i < l->parameters; i++)
		n += l->parameter[i].count;
	return n;
}

/* On rank 0; the others take part. In pieces that fit no shard. */
static float *gather(const struct rank *r, enum parameter_state which)
{
	const struct parameter_access a = trainer_access(r->trainer);
	bool wanted = r->number == 0;
	float *out = wanted ? calloc((size_t)all_elements(a.layout), sizeof(float)) : NULL;
	struct error err = ERROR_INIT;
	int64_t done = 0;

	for (int i = 0; i < a.layout->parameters; i++)
		for (int64_t first = 0, n; first < a.layout->parameter[i].count; first += n, done += n) {
			n = MIN(a.layout->parameter[i].count - first, 700);
			if (is_read(r->run, &a.layout->parameter[i]))
				must(a.gather(a.context, which, &a.layout->parameter[i], first, n,
				              out ? out + done : NULL, &err),
				     &err, "gather");
		}
	return out;
}

static void gather_all(const struct rank *r, float *state[3])
{
	for (int s = 0; s < 3; s++)
		state[s] = gather(r, (enum parameter_state)s);
}

static void restore(struct rank *r)
{
	const struct parameter_access a = trainer_access(r->trainer);
	struct error err = ERROR_INIT;

	for (int s = 0; s < 3; s++) {
		const float *at = r->run->state[s];

		for (int i = 0; i < a.layout->parameters; at += a.layout->parameter[i++].count)
			if (is_read(r->run, &a.layout->parameter[i]))
				must(a.write(a.context, (enum parameter_state)s, &a.layout->parameter[i], 0,
				             a.layout->parameter[i].count, at, &err),
				     &err, "write");
	}
	must(trainer_set_step(r->trainer, r->run->start, &err), &err, "set_step");
	trainer_set_loss_scaler(r->trainer, &r->run->scaler);
}

static int on_log(void *context, const struct train_log *log, struct error *err)
{
	struct rank *r = context;

	r->losses[log->step] = log->loss;
	r->norms[log->step] = log->grad_norm;
	r->evaluations[log->step] = log->has_eval ? log->eval_loss : -1;
	return 0;
}

static int on_save(void *context, int64_t step, bool stopped, struct error *err)
{
	struct rank *r = context;

	if (step != r->run->stop)
		return 0;
	gather_all(r, r->kept);
	if (trainer_loss_scaler(r->trainer))
		r->kept_scaler = *trainer_loss_scaler(r->trainer);
	return 0;
}

#ifdef TEST_ENGINE_SIMT
/* Over the stand-in for NCCL, whose collectives end later than they are queued, as do transfers. */
static void open_rank(struct rank *r, struct device **dev)
{
	const struct kv_store store = kv_store_in(r->directory);
	struct comm_options o = {.rank = r->number,
	                         .world_size = r->run->world_size,
	                         .timeout_s = 60,
	                         .store = &store,
	                         .group = "test"};

	must(device_create(NULL, dev, &r->err), &r->err, "device");
	if (o.world_size > 1)
		must(comm_create(*dev, &o, &r->comm, &r->err), &r->err, "comm");
	simt_late_streams(1);
}

static void close_rank(struct rank *r, struct device *dev)
{
	if (r->comm) {
		must(comm_wait(r->comm, comm_barrier(r->comm), &r->err), &r->err, "barrier");
		must(comm_flush(r->comm, &r->err), &r->err, "flush");
	}
	trainer_free(r->trainer);
	comm_destroy(r->comm);
	device_destroy(dev);
}

static void open_all(struct rank *ranks, int n)
{
	char *directory = strdup("/tmp/combinations-XXXXXX");

	if (!mkdtemp(directory))
		fail("%s", strerror(errno));
	for (int r = 0; r < n; r++)
		ranks[r].directory = directory;
}

static void close_all(struct rank *ranks, int n)
{
	(void)file_remove_tree(ranks[0].directory, NULL);
}
#else
static void open_rank(struct rank *r, struct device **dev)
{
	must(device_create(&(struct device_options){.threads = 1}, dev, &r->err), &r->err, "device");
}

static void close_rank(struct rank *r, struct device *dev)
{
	trainer_free(r->trainer);
	device_destroy(dev);
}

static void open_all(struct rank *ranks, int n)
{
	struct comm *comms[RANKS];

	if (n == 1)
		return;
	thread_comm_create(n, comms);
	for (int r = 0; r < n; r++)
		ranks[r].comm = comms[r];
}

static void close_all(struct rank *ranks, int n)
{
	for (int r = 0; r < n; r++)
		comm_destroy(ranks[r].comm);
}
#endif

static void *run_rank(void *context)
{
	struct rank *r = context;
	const struct run *run = r->run;
	struct train_callbacks callbacks = {.context = r, .on_log = on_log, .on_save = on_save};
	struct start start = {.init = {.seed = 1, .std = 0.1}};
	struct error *err = &r->err;
	struct model_config c;
	struct device *dev;

	r->err = (struct error)ERROR_INIT;
	must(make_config(run->setup, &c, err), err, "config");
	open_rank(r, &dev);
	r->result = trainer_create(dev, r->comm, &c, &run->o, run->train, run->eval, &r->trainer, err);
	if (r->result < 0) {
		close_rank(r, dev);
		return NULL;
	}
	start.frozen = (struct nf4_weights){.weights = model_init_fill,
	                                    .context = &start.init,
	                                    .quantized = run->rounded != SHARD_QUANTIZE_NONE,
	                                    .twice = run->rounded == SHARD_NF4_DOUBLE,
	                                    .type = run->o.precision};
	must(trainer_load(r->trainer, fill, &start, err), err, "load");
	nf4_weights_free(&start.frozen);
	r->begin = gather(r, STATE_WEIGHTS);
	r->reference = calloc((size_t)trainer_reference_count(r->trainer) + 1, sizeof(double));
	if (run->reference)
		trainer_set_reference(r->trainer, run->reference);
	else
		must(trainer_compute_reference(r->trainer, err), err, "reference");
	trainer_get_reference(r->trainer, r->reference);
	if (run->state)
		restore(r);
	must(trainer_run(r->trainer, &callbacks, err), err, "run");
	gather_all(r, r->state);
	if (trainer_loss_scaler(r->trainer))
		r->scaler = *trainer_loss_scaler(r->trainer);
	close_rank(r, dev);
	return NULL;
}

struct rank *run_all(const struct run *run, const char *name, struct error *err)
{
	struct rank *ranks = calloc((size_t)run->world_size, sizeof(*ranks));
	pthread_t threads[RANKS];

	open_all(ranks, run->world_size);
	for (int r = 0; r < run->world_size; r++) {
		ranks[r].run = run;
		ranks[r].number = r;
		pthread_create(&threads[r], NULL, run_rank, &ranks[r]);
	}
	for (int r = 0; r < run->world_size; r++)
		pthread_join(threads[r], NULL);
	close_all(ranks, run->world_size);
	for (int r = 1; r < run->world_size; r++) {
		if (ranks[r].result != ranks[0].result)
			fail("%s: rank %d refuses what rank 0 does not, or the other way round", name, r);
		for (int64_t s = run->start + 1; s <= STEPS && ranks[0].result == 0; s++)
			if (memcmp(&ranks[r].losses[s], &ranks[0].losses[s], sizeof(double)) ||
			    memcmp(&ranks[r].norms[s], &ranks[0].norms[s], sizeof(double)))
				fail("%s: step %d: rank %d has loss %.9g, norm %.9g, and rank 0 %.9g, %.9g",
				     name, (int)s, r, ranks[r].losses[s], ranks[r].norms[s],
				     ranks[0].losses[s], ranks[0].norms[s]);
	}
	if (ranks[0].result == 0)
		return ranks;
	*err = ranks[0].err;
	return NULL;
}
