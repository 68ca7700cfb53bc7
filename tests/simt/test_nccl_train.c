/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A collective fails during a step or a save: the device continues with undefined contents of its buffers,
 * and results from them must not be reported or saved. Rank 0 trains over the emulated GPU and the stand-in
 * for NCCL; rank 1 is a thread that only takes part in the collectives.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>

#include "../engine/fake_dataset.h"
#include "base/str.h"
#include "engine/checkpoint/saver.h"
#include "engine/comm/nccl/internal.h"
#include "engine/train/trainer.h"
#include "kv_store.h"
#include "unit.h"

/* The smallest model of tests/engine, and its tokenizer. */
static char *model_file(const char *name)
{
	return str_printf("%s/tests/engine/bytes/%s", getenv("srcdir") ?: ".", name);
}

/* How rank 1 ends in step 2, between the gradients and the sums of losses; or that it waits after step 1
 * until rank 0 has saved. */
enum end { STALLS, DIES, WAITS };

struct world {
	char *directory;
	enum end end;
	struct model_config c;
	struct model_layout *layout;
	sem_t over; /* rank 0 has made its checks */
	pthread_t peer;

	struct device *dev; /* rank 0's from here on */
	struct comm *comm;
	struct dataset *data;
	struct trainer *trainer;
	int logs, saves;
};

static struct comm *join(struct world *w, int rank, struct device **dev)
{
	const struct kv_store store = kv_store_in(w->directory);
	struct comm_options o = {
	    .rank = rank, .world_size = 2, .timeout_s = 5, .store = &store, .group = "test"};
	struct error err = ERROR_INIT;
	struct comm *c;

	ck_ok(device_create(NULL, dev, &err), &err);
	ck_ok(comm_create(*dev, &o, &c, &err), &err);
	return c;
}

/* The collectives of a step of two ranks with ddp: what the head has written of the tied embedding's
 * gradients, those of the other units, then the rows of the embedding and the losses, which start together.
 * sums NULL: without these two. */
static void add_up(struct world *w, struct comm *c, void *gradients, void *rows, double *sums)
{
	comm_all_reduce(c, gradients, w->layout->unit[0].count, DTYPE_F32, COMM_SUM);
	for (int u = w->layout->units - 1; u > 0; u--)
		comm_all_reduce(c, gradients, w->layout->unit[u].count, DTYPE_F32, COMM_SUM);
	if (!sums)
		return;
	comm_group_begin(c);
	comm_all_gather(c, rows, w->c.hidden, DTYPE_F32);
	comm_all_reduce_f64(c, sums, 2, COMM_SUM);
	comm_group_end(c);
}

static void *peer(void *context)
{
	struct world *w = context;
	struct error err = ERROR_INIT;
	struct device *dev;
	struct comm *c = join(w, 1, &dev);
	size_t largest = 0;
	void *b, *rows, *sums;

	for (int u = 0; u < w->layout->units; u++)
		largest = MAX(largest, (size_t)w->layout->unit[u].count);
	ck_ok(comm_alloc(c, largest * sizeof(float), &b, &err), &err);
	ck_ok(comm_alloc(c, largest * sizeof(float), &rows, &err), &err);
	ck_ok(comm_alloc(c, 2 * sizeof(double), &sums, &err), &err);
	ck_ok(comm_register(c, &(struct comm_buffer){b, largest * sizeof(float)}, 1, &err), &err);
	if (w->end == WAITS) { /* saver_attach: this rank finds what rank 0 has written into the directory */
		comm_all_gather(c, sums, 1, DTYPE_F32);
		comm_broadcast(c, sums, sizeof(uint64_t), 0);
		ck_ok(comm_flush(c, &err), &err);
		device_zero(dev, sums, 2 * sizeof(double));
		comm_all_gather(c, sums, 1, DTYPE_F32);
	}
	add_up(w, c, b, rows, sums);
	ck_ok(comm_flush(c, &err), &err);
	device_zero(dev, sums, 2 * sizeof(double));
	if (w->end == WAITS) /* the directory of the save is there: no failure here */
		comm_all_gather(c, sums, 1, DTYPE_F32);
	else
		add_up(w, c, b, rows, NULL);
	ck_ok(comm_flush(c, &err), &err);
	if (w->end == DIES)
		simt_nccl_die(c->nccl);
	sem_wait(&w->over);
	comm_destroy(c);
	device_destroy(dev);
	return NULL;
}

static void start(struct world *w, enum end end)
{
	struct model_init init = {.seed = 1, .std = 0.1};
	_cleanup_free_ char *config = model_file("config.json");
	struct error err = ERROR_INIT;
	struct train_options o;

	*w = (struct world){.directory = unit_tmpdir(), .end = end};
	ck_assert(!sem_init(&w->over, 0, 0));
	ck_ok(model_config_read(config, &w->c, &err), &err);
	ck_ok(model_layout_create(&w->c, &w->layout, &err), &err);
	ck_assert(!pthread_create(&w->peer, NULL, peer, w));
	w->comm = join(w, 0, &w->dev);
	w->data = fake_dataset(16, 9, 4, 200, false);
	train_options_default(&o);
	o.max_steps = 4;
	o.log_steps = o.save_steps = 1;
	ck_ok(trainer_create(w->dev, w->comm, &w->c, &o, w->data, NULL, &w->trainer, &err), &err);
	ck_ok(trainer_load(w->trainer, model_init_fill, &init, &err), &err);
}

static void finish(struct world *w)
{
	sem_post(&w->over);
	pthread_join(w->peer, NULL);
	comm_destroy(w->comm);
	trainer_free(w->trainer);
	dataset_close(w->data);
	device_destroy(w->dev);
	model_layout_free(w->layout);
	sem_destroy(&w->over);
	ck_assert(!file_remove_tree(w->directory, NULL));
	free(w->directory);
}

static int on_log(void *context, const struct train_log *log, struct error *err)
{
	struct world *w = context;

	ck_assert_int_eq(log->step, ++w->logs);
	return 0;
}

static int on_save(void *context, int64_t step, bool stopped, struct error *err)
{
	((struct world *)context)->saves++;
	return 0;
}

/* The contents of the buffer after the abort: the previous ones, or NaNs. */
START_TEST(a_failed_collective_is_no_step)
{
	static const struct {
		enum end end;
		int fills, code;
		const char *words;
	} tries[] = {
	    {STALLS, -1, -ETIMEDOUT, "has made no progress for 5 s: rank 1 on "},
	    {STALLS, 0xff, -ETIMEDOUT, "has made no progress for 5 s: rank 1 on "},
	    {DIES, -1, -ECONNRESET, ": NCCL: "},
	    {DIES, 0xff, -ECONNRESET, ": NCCL: "},
	};
	struct train_callbacks cb = {.on_log = on_log, .on_save = on_save};
	struct error err = ERROR_INIT;
	struct world w;
	int r;

	start(&w, tries[_i].end);
	simt_nccl_abort_fills(tries[_i].fills);
	cb.context = &w;
	r = trainer_run(w.trainer, &cb, &err);
	ck_assert_msg(r == tries[_i].code, "%d: %s", r, err.message);
	ck_assert_msg(strstr(err.message, tries[_i].words) != NULL, "%s", err.message);
	ck_assert_int_eq(w.logs, 1);
	ck_assert_int_eq(w.saves, 1);
	finish(&w);
}
END_TEST

/* The tensors of the model are written, but nothing is renamed into place yet. */
static struct comm *aborted_while_saving;
int __real_checkpoint_state_save(const char *directory, const struct checkpoint_state *s, bool resume,
                                 struct error *err);
int __wrap_checkpoint_state_save(const char *directory, const struct checkpoint_state *s, bool resume,
                                 struct error *err);

int __wrap_checkpoint_state_save(const char *directory, const struct checkpoint_state *s, bool resume,
                                 struct error *err)
{
	comm_abort(aborted_while_saving);
	return __real_checkpoint_state_save(directory, s, resume, err);
}

static void ignore_line(void *none, const char *message)
{
}

/* The communicator fails while rank 0 writes a checkpoint, or the model: neither is renamed into place. */
START_TEST(a_failed_communicator_publishes_nothing)
{
	_cleanup_free_ char *out = NULL, *config = model_file("config.json"), *published = NULL,
	                    *tokenizer = model_file("");
	struct saver_options o = {.world_size = 2,
	                          .timeout_s = 60,
	                          .config = config,
	                          .tokenizer = tokenizer,
	                          .notify = ignore_line};
	struct saver_contents contents = {.precision = DTYPE_F32,
	                                  .precision_name = "fp32",
	                                  .bos = -1,
	                                  .eos = -1,
	                                  .pad = -1,
	                                  .fingerprint = "print"};
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct saver_progress at = {.step = 1, .steps = 1};
	struct train_log log;
	struct world w;
	int r;

	start(&w, WAITS);
	out = str_path_join(w.directory, "out");
	published = str_path_join(out, _i ? "model.safetensors" : "checkpoint-1");
	o.claim = (struct claim){.directory = out, .attempt = 1};
	contents.dev = w.dev;
	contents.comm = w.comm;
	contents.parameters = trainer_access(w.trainer);
	ck_ok(saver_open(&o, &s, &err), &err);
	ck_ok(saver_attach(s, &contents, &err), &err);
	ck_ok(trainer_run_step(w.trainer, &log, &err), &err);
	aborted_while_saving = w.comm;
	r = _i ? saver_final(s, &at, &err) : saver_checkpoint(s, &at, &err);
	ck_assert_msg(r == -ECANCELED, "%d: %s", r, err.message);
	ck_assert_msg(strstr(err.message, "aborted") != NULL, "%s", err.message);
	ck_assert_msg(!file_exists(published), "%s is there", published);
	finish(&w);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("nccl train");
	TCase *tc = tcase_create("nccl train");

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, a_failed_collective_is_no_step, 0, 4);
	tcase_add_loop_test(tc, a_failed_communicator_publishes_nothing, 0, 2);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
