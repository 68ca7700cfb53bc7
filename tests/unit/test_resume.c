/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that one number of ranks writes and another reads, and checkpoints that were damaged. The ranks
 * are threads, and each holds a shard of made-up parameters; the device is the host. */
#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../engine/thread_comm.h"
#include "base/str.h"
#include "engine/checkpoint/saver.h"

/* ROUNDS=N: more of them. */
static int rounds(int usual)
{
	return getenv("ROUNDS") ? atoi(getenv("ROUNDS")) : usual;
}

static unsigned random_seed(void)
{
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)getpid();

	printf("SEED=%u\n", seed);
	fflush(stdout);
	return seed;
}

/* ---- parameters, of which each rank holds a part ---- */

enum { RANKS_MAX = 5, NODES = 3, STATES = 3, PARAMETERS = 4, ELEMENTS = 70000, ALIGNMENT = 32 };

static struct model_parameter parameter[PARAMETERS] = {
    {.name = "model.embed_tokens.weight",
     .saved = "model.embed_tokens.weight",
     .unit = 0,
     .dims = 2,
     .shape = {100, 700},
     .count = 70000},
    {.name = "model.layers.0.q.weight",
     .saved = "model.layers.0.q.weight",
     .unit = 1,
     .dims = 2,
     .shape = {10, 30},
     .count = 300},
    {.name = "model.layers.0.k.weight",
     .saved = "model.layers.0.k.weight",
     .unit = 1,
     .offset = 320,
     .dims = 2,
     .shape = {200, 331},
     .count = 66200},
    {.name = "model.norm.weight",
     .saved = "model.norm.weight",
     .unit = 2,
     .dims = 1,
     .shape = {7},
     .count = 7},
};
static struct model_layout layout = {.parameters = PARAMETERS, .parameter = parameter};
static const int64_t unit_count[] = {70000, 320 + 66200, 7};

struct holder {
	int rank, degree;
	struct comm *comm;
	float value[STATES][PARAMETERS][ELEMENTS];
};

static int64_t held(void *context, const struct model_parameter *p, int64_t *first)
{
	const struct holder *h = context;
	int64_t step = (int64_t)h->degree * ALIGNMENT;
	int64_t own = (unit_count[p->unit] + step - 1) / step * step / h->degree;
	int64_t from = MAX(h->rank % h->degree * own, p->offset);
	int64_t to = MIN((h->rank % h->degree + 1) * own, p->offset + p->count);

	*first = to > from ? from - p->offset : 0;
	return MAX(to - from, 0);
}

static int read_parameter(void *context, enum parameter_state which, const struct model_parameter *p,
                          int64_t first, int64_t n, float *out, struct error *err)
{
	struct holder *h = context;
	int64_t own, count = held(h, p, &own);

	ck_assert(first >= own && first + n <= own + count);
	memcpy(out, &h->value[which][p - parameter][first], (size_t)n * sizeof(*out));
	return 0;
}

static int write_parameter(void *context, enum parameter_state which, const struct model_parameter *p,
                           int64_t first, int64_t n, const float *in, struct error *err)
{
	struct holder *h = context;
	int64_t own, count = held(h, p, &own), from, to;

	from = MAX(first, own);
	to = MIN(first + n, own + count);
	if (to > from)
		memcpy(&h->value[which][p - parameter][from], in + (from - first),
		       (size_t)(to - from) * sizeof(*in));
	return 0;
}

/* The ranks' parts in turn, as far as each holds them. */
static int gather(void *context, enum parameter_state which, const struct model_parameter *p, int64_t first,
                  int64_t n, float *out, struct error *err)
{
	struct holder *h = context;
	float *all = malloc((size_t)n * sizeof(*all));
	int size = comm_size(h->comm);
	int64_t own, count = held(h, p, &own), from = MAX(first, own), to = MIN(first + n, own + count);

	ck_assert(out || comm_rank(h->comm) != 0);
	memset(all, 0, (size_t)n * sizeof(*all));
	if (h->rank < h->degree && to > from)
		memcpy(all + (from - first), &h->value[which][p - parameter][from],
		       (size_t)(to - from) * sizeof(*all));
	ck_ok(comm_wait(h->comm, comm_all_reduce(h->comm, all, n, DTYPE_F32, COMM_SUM), err), err);
	ck_assert_int_gt(size, 1);
	if (out)
		memcpy(out, all, (size_t)n * sizeof(*all));
	free(all);
	return 0;
}

static struct parameter_access access_to(struct holder *h, int ranks)
{
	return (struct parameter_access){.layout = &layout,
	                                 .context = h,
	                                 .read = read_parameter,
	                                 .write = write_parameter,
	                                 .held = held,
	                                 .gather = gather,
	                                 .replicas = ranks / h->degree,
	                                 .replica = h->rank / h->degree};
}

/* Of a step: no two values of a parameter alike. bf16: what bf16 holds. */
static float value_of(int64_t step, int state, int p, int64_t i, bool bf16)
{
	float v = (float)(step * 10 + state + 1) + (float)(p + 1) * 1e-1F + (float)i * 1e-5F;

	return bf16 ? bf16_to_float(bf16_from_float(v)) : v;
}

/* ---- a run of some ranks ---- */

struct run {
	char *directory, *elsewhere; /* of ranks from `apart` on */
	const char *config;
	int ranks, degree, apart;
	/* Each node has a directory of its own, and each rank a node. */
	bool local;
	char *node_directory[NODES];
	int node_of[RANKS_MAX];
	enum dtype type;
	bool master, background;
	uint64_t max_shard_bytes;
	enum saver_resume resume;
	int64_t attempt;
	char said[1000];
};

struct rank {
	struct run *run;
	struct comm *comm;
	int rank;
	pthread_t thread;
	/* What it saves; or what it has resumed from. */
	const int64_t *steps;
	int n_steps;
	int64_t resumed;
	double epoch;        /* of the checkpoint; rank 0 alone writes it */
	struct saver *saver; /* which the rank frees */
	int result;
	struct error err;
};

static void keep_lines(void *context, const char *message)
{
	struct run *run = context;
	size_t len = strlen(run->said);

	snprintf(run->said + len, sizeof(run->said) - len, "%s\n", message);
}

static void open_rank(struct rank *r)
{
	static const char *const nodes[NODES] = {"n1", "n2", "n3"};
	struct run *run = r->run;
	struct saver_options o = {.claim = {.directory = run->local
	                                                     ? run->node_directory[run->node_of[r->rank]]
	                                                 : r->rank < run->apart ? run->directory
	                                                                        : run->elsewhere,
	                                    .run = "7",
	                                    .attempt = run->attempt},
	                          .rank = r->rank,
	                          .world_size = run->ranks,
	                          .node = nodes[run->local ? run->node_of[r->rank] : r->rank >= run->apart],
	                          .timeout_s = 60,
	                          .background = run->background,
	                          .gather = !run->local,
	                          .resume = run->resume,
	                          .max_shard_bytes = run->max_shard_bytes,
	                          .save_steps = 1,
	                          .config = run->config,
	                          .notify = keep_lines,
	                          .context = run};

	r->result = saver_open(&o, &r->saver, &r->err);
}

static void attach(struct rank *r, struct saver *s, struct holder *h)
{
	struct saver_contents contents = {.comm = r->comm,
	                                  .parameters = access_to(h, r->run->ranks),
	                                  .precision = r->run->type,
	                                  .precision_name = r->run->type == DTYPE_F32 ? "fp32" : "bf16",
	                                  .master = r->run->master,
	                                  .bos = -1,
	                                  .eos = -1,
	                                  .pad = -1,
	                                  .fingerprint = "rows=1"};

	ck_ok(saver_attach(s, &contents, &r->err), &r->err);
}

static bool narrow(const struct run *run, int state)
{
	return state == STATE_WEIGHTS && run->type == DTYPE_BF16 && !run->master;
}

static void *save_rank(void *context)
{
	struct rank *r = context;
	_cleanup_free_ struct holder *h = calloc(1, sizeof(*h));
	_cleanup_(saver_freep) struct saver *s = r->saver;

	h->rank = r->rank;
	h->comm = r->comm;
	h->degree = r->run->degree;
	attach(r, s, h);
	for (int k = 0; k < r->n_steps; k++) {
		for (int state = 0; state < STATES; state++)
			for (int p = 0; p < PARAMETERS; p++)
				for (int64_t i = 0; i < parameter[p].count; i++)
					h->value[state][p][i] =
					    value_of(r->steps[k], state, p, i, narrow(r->run, state));
		ck_ok(saver_checkpoint(
		          s,
		          &(struct saver_progress){
		              .step = r->steps[k], .steps = 100, .epoch = 0.25, .examples = 70 + r->steps[k]},
		          &r->err),
		      &r->err);
		/* The training goes on: what was copied does not change with it. */
		for (int p = 0; p < PARAMETERS; p++)
			memset(h->value[STATE_MOMENT1][p], 0, sizeof(h->value[STATE_MOMENT1][p]));
		ck_ok(saver_poll(s, &r->err), &r->err);
	}
	ck_ok(saver_wait(s, &r->err), &r->err);
	ck_assert_int_eq(saver_saved_step(s), r->steps[r->n_steps - 1]);
	return NULL;
}

static void *resume_rank(void *context)
{
	struct rank *r = context;
	_cleanup_free_ struct holder *h = calloc(1, sizeof(*h));
	struct weights_place place = {.comm = r->comm, .node = "n"};
	_cleanup_(saver_freep) struct saver *s = r->saver;

	h->rank = r->rank;
	h->degree = r->run->degree;
	place.access = access_to(h, r->run->ranks);
	if ((r->result = saver_find(s, NULL, r->comm, &r->err)) < 0 || !saver_resumes(s))
		return NULL;
	if ((r->result = saver_resume(s, &place, &r->err)) < 0)
		return NULL;
	r->resumed = saver_resume_state(s)->step;
	r->epoch = saver_resume_state(s)->epoch;
	ck_assert_int_eq(saver_resume_state(s)->examples, 70 + r->resumed);
	for (int state = 0; state < STATES; state++)
		for (int p = 0; p < PARAMETERS; p++) {
			int64_t first, n = held(h, &parameter[p], &first);

			for (int64_t i = first; i < first + n; i++)
				ck_assert_msg(h->value[state][p][i] ==
				                  value_of(r->resumed, state, p, i, narrow(r->run, state)),
				              "rank %d, state %d, parameter %d, element %d: %g", r->rank,
				              state, p, (int)i, h->value[state][p][i]);
		}
	return NULL;
}

/* All ranks; ranks[0] tells what came of it. */
static void run_all(struct run *run, struct rank *ranks, void *(*main)(void *), const int64_t *steps, int n)
{
	struct comm *comms[RANKS_MAX] = {NULL};

	run->attempt++;
	run->said[0] = '\0';
	if (run->ranks > 1)
		thread_comm_create(run->ranks, comms);
	for (int i = 0; i < run->ranks; i++)
		ranks[i] =
		    (struct rank){.run = run, .comm = comms[i], .rank = i, .steps = steps, .n_steps = n};
	/* A rank that is refused here ends before the ranks connect. */
	for (int i = 0; i < run->ranks; i++) {
		ranks[i].resumed = -1;
		if (ranks[0].result == 0)
			open_rank(&ranks[i]);
		else
			ranks[i].result = ranks[0].result;
	}
	for (int i = 0; i < run->ranks && ranks[0].result == 0; i++)
		ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, main, &ranks[i]), 0);
	for (int i = 0; i < run->ranks && ranks[i].saver; i++)
		pthread_join(ranks[i].thread, NULL);
	for (int i = 0; i < run->ranks; i++)
		comm_destroy(comms[i]);
}

static void setup(struct run *run)
{
	static const char config[] = "{\"model_type\":\"llama\"}";
	_cleanup_free_ char *base = unit_tmpdir();
	struct error err = ERROR_INIT;

	*run = (struct run){.directory = str_path_join(base, "out"),
	                    .elsewhere = str_path_join(base, "elsewhere"),
	                    .config = str_path_join(base, "config.json"),
	                    .ranks = 1,
	                    .degree = 1,
	                    .node_directory = {str_path_join(base, "node1"), str_path_join(base, "node2"),
	                                       str_path_join(base, "node3")},
	                    .apart = RANKS_MAX,
	                    .type = DTYPE_F32,
	                    .master = true};
	ck_ok(file_write_atomic(run->config, config, strlen(config), 0644, &err), &err);
}

static void teardown(struct run *run)
{
	*strrchr(run->directory, '/') = '\0';
	file_remove_tree(run->directory, NULL);
	free(run->directory);
	free(run->elsewhere);
	for (int i = 0; i < NODES; i++)
		free(run->node_directory[i]);
	free((char *)run->config);
}

static int divisor(unsigned *seed, int n)
{
	int d;

	do
		d = 1 + rand_r(seed) % n;
	while (n % d);
	return d;
}

/* Any number of ranks, in any division, reads what any other has written, bit by bit. */
START_TEST(any_ranks_read_what_any_ranks_wrote)
{
	unsigned seed = random_seed();

	for (int round = 0; round < rounds(12); round++) {
		struct rank ranks[RANKS_MAX];
		const int64_t steps[] = {3, 4};
		struct run run;

		setup(&run);
		run.ranks = 1 + rand_r(&seed) % RANKS_MAX;
		run.degree = divisor(&seed, run.ranks);
		run.type = rand_r(&seed) % 2 ? DTYPE_F32 : DTYPE_BF16;
		run.master = rand_r(&seed) % 2;
		run.background = rand_r(&seed) % 2;
		run.max_shard_bytes = rand_r(&seed) % 2 ? 150000 : 0;
		if (rand_r(&seed) % 2)
			run.apart = 1 + rand_r(&seed) % run.ranks;
		printf("%d ranks by %d%s, %s%s%s", run.ranks, run.degree,
		       run.apart < run.ranks ? ", apart" : "", run.type == DTYPE_F32 ? "fp32" : "bf16",
		       run.master ? "" : " without master", run.background ? ", in the background" : "");
		run_all(&run, ranks, save_rank, steps, 2);
		run.ranks = 1 + rand_r(&seed) % RANKS_MAX;
		run.degree = divisor(&seed, run.ranks);
		run.apart = rand_r(&seed) % 2 ? 1 + rand_r(&seed) % run.ranks : RANKS_MAX;
		printf(" -> %d ranks by %d%s\n", run.ranks, run.degree,
		       run.apart < run.ranks ? ", apart" : "");
		fflush(stdout);
		run_all(&run, ranks, resume_rank, NULL, 0);
		for (int i = 0; i < run.ranks; i++) {
			ck_ok(ranks[i].result, &ranks[i].err);
			ck_assert_int_eq(ranks[i].resumed, 4);
		}
		ck_assert_str_eq(run.said, "");
		teardown(&run);
	}
}
END_TEST

/* ---- nodes that share no directory ---- */

/* Any node for each rank, all of the first n at least once. */
static void place_ranks(struct run *run, int n, unsigned *seed)
{
	for (int i = 0; i < run->ranks; i++)
		run->node_of[i] = i < n ? i : rand_r(seed) % n;
	for (int i = run->ranks - 1; i > 0; i--) {
		int k = rand_r(seed) % (i + 1), node = run->node_of[i];

		run->node_of[i] = run->node_of[k];
		run->node_of[k] = node;
	}
}

static void print_places(const struct run *run)
{
	for (int i = 0; i < run->ranks; i++)
		printf(" n%d", run->node_of[i] + 1);
	printf(" by %d", run->degree);
}

/* Of the files of moments, each lies on the node of its rank. */
static void check_where_files_lie(const struct run *run)
{
	int files = 0;

	for (int rank = 0; rank < run->ranks; rank++)
		for (int node = 0; node < NODES; node++) {
			_cleanup_free_ char *path =
			    str_printf("%s/checkpoint-4/dtrain/rank-%05d-of-%05d.safetensors",
			               run->node_directory[node], rank, run->ranks);

			if (!file_exists(path))
				continue;
			files++;
			/* What the node of rank 0 has as a whole need not lie anywhere else. */
			ck_assert(node == run->node_of[rank]);
		}
	ck_assert_int_ge(files, run->degree > 1 ? 1 : 0);
}

/* On the same nodes, in any order, with any number of ranks on each. */
START_TEST(ranks_of_the_same_nodes_find_each_others_files)
{
	unsigned seed = random_seed();

	for (int round = 0; round < rounds(12); round++) {
		struct rank ranks[RANKS_MAX];
		const int64_t steps[] = {3, 4};
		struct run run;
		int nodes;

		setup(&run);
		run.local = true;
		run.ranks = 2 + rand_r(&seed) % (RANKS_MAX - 1);
		nodes = 2 + rand_r(&seed) % (MIN(NODES, run.ranks) - 1);
		run.degree = rand_r(&seed) % 3 ? run.ranks : divisor(&seed, run.ranks);
		run.type = rand_r(&seed) % 2 ? DTYPE_F32 : DTYPE_BF16;
		run.master = rand_r(&seed) % 2;
		run.background = rand_r(&seed) % 2;
		run.max_shard_bytes = rand_r(&seed) % 2 ? 150000 : 0;
		place_ranks(&run, nodes, &seed);
		print_places(&run);
		run_all(&run, ranks, save_rank, steps, 2);
		check_where_files_lie(&run);
		run.ranks = nodes + rand_r(&seed) % (RANKS_MAX + 1 - nodes);
		run.degree = divisor(&seed, run.ranks);
		place_ranks(&run, nodes, &seed);
		printf(" ->");
		print_places(&run);
		printf("\n");
		fflush(stdout);
		run.resume = SAVER_RESUME_MUST;
		run_all(&run, ranks, resume_rank, NULL, 0);
		for (int i = 0; i < run.ranks; i++) {
			ck_ok(ranks[i].result, &ranks[i].err);
			ck_assert_int_eq(ranks[i].resumed, 4);
		}
		ck_assert_str_eq(run.said, "");
		teardown(&run);
	}
}
END_TEST

/* Two ranks on two nodes without a shared disk save at steps 3 and 4. */
static void save_on_two_nodes(struct run *run, struct rank *ranks)
{
	const int64_t steps[] = {3, 4};

	setup(run);
	run->local = true;
	run->ranks = run->degree = 2;
	run->node_of[1] = 1;
	run_all(run, ranks, save_rank, steps, 2);
}

/* Both nodes have the newest checkpoint, and what rank 0 wrote of it is on the node that rank 1 has now. */
START_TEST(the_state_is_read_where_rank_0_wrote_it)
{
	struct rank ranks[RANKS_MAX];
	struct run run;

	save_on_two_nodes(&run, ranks);
	run.node_of[0] = 1;
	run.node_of[1] = 0;
	run_all(&run, ranks, resume_rank, NULL, 0);
	for (int i = 0; i < run.ranks; i++) {
		ck_ok(ranks[i].result, &ranks[i].err);
		ck_assert_int_eq(ranks[i].resumed, 4);
	}
	ck_assert_double_eq(ranks[0].epoch, 0.25);
	teardown(&run);
}
END_TEST

/* Rank 0 is on a node that has no checkpoint, and the other rank where there is one. */
START_TEST(a_checkpoint_that_must_be_there_may_be_on_another_node)
{
	struct rank ranks[RANKS_MAX];
	const int64_t steps[] = {3, 4};
	struct run run;

	setup(&run);
	run.local = true;
	run_all(&run, ranks, save_rank, steps, 2);
	run.ranks = run.degree = 2;
	run.node_of[0] = 1;
	run.resume = SAVER_RESUME_MUST;
	run_all(&run, ranks, resume_rank, NULL, 0);
	for (int i = 0; i < run.ranks; i++) {
		ck_ok(ranks[i].result, &ranks[i].err);
		ck_assert_int_eq(ranks[i].resumed, 4);
	}
	teardown(&run);
}
END_TEST

/* The run before it saved on two nodes; the first has a new disk since. */
START_TEST(checkpoints_of_another_node_are_not_replaced)
{
	_cleanup_free_ char *kept = NULL;
	struct rank ranks[RANKS_MAX];
	struct run run;

	save_on_two_nodes(&run, ranks);
	kept = str_path_join(run.node_directory[1], "checkpoint-4");
	file_remove_tree(run.node_directory[0], NULL);
	run.attempt = 0;
	run.resume = SAVER_RESUME_NEVER;
	run_all(&run, ranks, resume_rank, NULL, 0);
	for (int i = 0; i < run.ranks; i++) {
		ck_assert_int_eq(ranks[i].result, -ENOTEMPTY);
		ck_assert_ptr_nonnull(strstr(ranks[i].err.message, "has checkpoints; choose another"));
	}
	ck_assert(file_exists(kept));
	teardown(&run);
}
END_TEST

/* Two ranks on two nodes save. _i 0: the run goes on without the second node, 1: without the first. */
START_TEST(a_node_that_is_missing_is_named)
{
	struct rank ranks[RANKS_MAX];
	struct run run;

	save_on_two_nodes(&run, ranks);
	run.node_of[0] = _i ? 1 : 0;
	run.node_of[1] = 2;
	run_all(&run, ranks, resume_rank, NULL, 0);
	for (int i = 0; i < run.ranks; i++) {
		ck_assert_int_lt(ranks[i].result, 0);
		ck_assert_ptr_nonnull(strstr(ranks[i].err.message, _i ? "/dtrain/rank-00000-of-00002.json"
		                                                      : "/dtrain/rank-00001-of-00002.json"));
		ck_assert_ptr_nonnull(strstr(ranks[i].err.message, _i ? "on node n1" : "on node n2"));
		ck_assert_ptr_null(strchr(ranks[i].err.message, '\n'));
	}
	teardown(&run);
}
END_TEST

/* Two ranks, the first on that node, go on from that step (-1: they begin), without a warning. */
static void check_resumed(struct run *run, struct rank *ranks, int node, int64_t step)
{
	run->node_of[0] = node;
	run->node_of[1] = 1 - node;
	run_all(run, ranks, resume_rank, NULL, 0);
	for (int i = 0; i < run->ranks; i++) {
		ck_ok(ranks[i].result, &ranks[i].err);
		ck_assert_int_eq(ranks[i].resumed, step);
	}
	ck_assert_msg(!strstr(run->said, "warning"), "%s", run->said);
}

/* Killed when the second node had published its part, and the first not yet: the checkpoint before it counts,
 * and there is nothing to warn of. _i: the ranks have changed places. */
START_TEST(what_rank_0_did_not_publish_is_no_checkpoint)
{
	_cleanup_free_ char *newest = NULL;
	struct rank ranks[RANKS_MAX];
	struct run run;

	save_on_two_nodes(&run, ranks);
	newest = str_path_join(run.node_directory[0], "checkpoint-4");
	file_remove_tree(newest, NULL);
	check_resumed(&run, ranks, _i, 3);
	teardown(&run);
}
END_TEST

/* Copies the files of a directory, and of those in it. */
static void copy_tree(const char *from, const char *to)
{
	struct error err = ERROR_INIT;
	struct dirent *e;
	DIR *dir = opendir(from);

	ck_assert_ptr_nonnull(dir);
	ck_ok(file_mkdirs(to, 0777, &err), &err);
	while ((e = readdir(dir))) {
		_cleanup_free_ char *a = str_path_join(from, e->d_name), *b = str_path_join(to, e->d_name),
		                    *data = NULL;
		size_t len;

		if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
			continue;
		if (e->d_type == DT_DIR) {
			copy_tree(a, b);
			continue;
		}
		ck_ok(file_read(a, SIZE_MAX / 2, &data, &len, &err), &err);
		ck_ok(file_write_atomic(b, data, len, 0644, &err), &err);
	}
	closedir(dir);
}

/* Killed in the same way twice, the second time with the ranks in other places: each node has another part of
 * a checkpoint that was never published. _i: the ranks have changed places once more. */
START_TEST(what_two_attempts_did_not_publish_is_no_checkpoint)
{
	_cleanup_free_ char *first = NULL, *second = NULL, *kept = NULL;
	struct rank ranks[RANKS_MAX];
	const int64_t steps[] = {4};
	struct error err = ERROR_INIT;
	struct run run;

	save_on_two_nodes(&run, ranks);
	first = str_path_join(run.node_directory[0], "checkpoint-4");
	second = str_path_join(run.node_directory[1], "checkpoint-4");
	kept = str_path_join(run.directory, "checkpoint-4");
	copy_tree(second, kept);
	ck_ok(file_remove_tree(first, &err), &err);
	run.node_of[0] = 1;
	run.node_of[1] = 0;
	run_all(&run, ranks, save_rank, steps, 1);
	ck_ok(file_remove_tree(second, &err), &err);
	copy_tree(kept, second);
	check_resumed(&run, ranks, _i, 3);
	/* And where there is no checkpoint before it, the run begins again. */
	for (int i = 0; i < 2; i++) {
		_cleanup_free_ char *older = str_path_join(run.node_directory[i], "checkpoint-3");

		ck_ok(file_remove_tree(older, &err), &err);
	}
	check_resumed(&run, ranks, _i, -1);
	teardown(&run);
}
END_TEST

/* The second node has a copy of the checkpoint, which another rank has compared; a file of state that its
 * list names and that the copy lacks is not taken for a rank without state. */
START_TEST(a_copy_that_lacks_a_file_of_state_is_named)
{
	_cleanup_free_ char *from = NULL, *to = NULL, *path = NULL;
	struct rank ranks[RANKS_MAX];
	const int64_t steps[] = {3};
	struct run run;

	setup(&run);
	run_all(&run, ranks, save_rank, steps, 1);
	from = str_path_join(run.directory, "checkpoint-3");
	to = str_path_join(run.elsewhere, "checkpoint-3");
	copy_tree(from, to);
	path = str_path_join(to, "dtrain/rank-00000-of-00001.safetensors");
	ck_assert_int_eq(unlink(path), 0);
	run.ranks = run.degree = 2;
	run.apart = 1;
	run.resume = SAVER_RESUME_MUST;
	run_all(&run, ranks, resume_rank, NULL, 0);
	ck_ok(ranks[0].result, &ranks[0].err);
	ck_assert_int_lt(ranks[1].result, 0);
	ck_assert_msg(strstr(ranks[1].err.message, path) != NULL, "%s", ranks[1].err.message);
	teardown(&run);
}
END_TEST

/* ---- damage ---- */

enum damage { FLIPPED, CUT, MISSING, DAMAGES };
static const char *const words[] = {"flipped", "cut", "missing"};

/* The k-th file of a checkpoint that a resume needs, counted around. */
static char *pick_file(const char *checkpoint, int k)
{
	static const char *const directories[] = {"", "dtrain"};
	char *found[64];
	int n = 0;
	char *picked;

	for (size_t d = 0; d < ARRAY_SIZE(directories); d++) {
		_cleanup_free_ char *path = str_path_join(checkpoint, directories[d]);
		DIR *dir = opendir(path);
		struct dirent *e;

		ck_assert_ptr_nonnull(dir);
		while ((e = readdir(dir)))
			if (d == 1
			        ? e->d_name[0] != '.'
			        : str_starts(e->d_name, "model") || str_eq(e->d_name, "trainer_state.json"))
				found[n++] = str_path_join(path, e->d_name);
		closedir(dir);
	}
	ck_assert_int_ge(n, 8);
	picked = found[k % n];
	for (int i = 0; i < n; i++)
		if (found[i] != picked)
			free(found[i]);
	return picked;
}

static void damage(const char *path, enum damage how, unsigned *seed)
{
	struct stat st;
	char byte;
	FILE *f;
	long at;

	ck_assert_int_eq(stat(path, &st), 0);
	if (how == MISSING) {
		ck_assert_int_eq(unlink(path), 0);
	} else if (how == CUT) {
		ck_assert_int_eq(truncate(path, rand_r(seed) % st.st_size), 0);
	} else {
		at = rand_r(seed) % (st.st_size - 1); /* a newline at the end may be anything */
		f = fopen(path, "r+e");
		ck_assert_ptr_nonnull(f);
		fseek(f, at, SEEK_SET);
		byte = (char)(fgetc(f) ^ 0x41);
		fseek(f, at, SEEK_SET);
		fputc(byte, f);
		fclose(f);
	}
}

/* Whatever file is damaged, and however: it is named, and the checkpoint before it used. _i: that one, too,
 * is damaged, and then none can be used. */
START_TEST(a_damaged_checkpoint_is_named)
{
	const int64_t steps[] = {4, 8};
	unsigned seed = random_seed();

	for (int round = 0; round < rounds(6); round++) {
		_cleanup_free_ char *path = NULL, *older = NULL, *newest = NULL, *before = NULL;
		enum damage how = (enum damage)(round % DAMAGES), before_how;
		struct rank ranks[RANKS_MAX];
		struct run run;
		bool named;

		setup(&run);
		run.ranks = 3;
		run.degree = round % 2 ? 3 : 1;
		run_all(&run, ranks, save_rank, steps, 2);
		newest = str_path_join(run.directory, "checkpoint-8");
		before = str_path_join(run.directory, "checkpoint-4");
		path = pick_file(newest, rand_r(&seed) % 64);
		damage(path, how, &seed);
		if (_i) {
			older = pick_file(before, rand_r(&seed) % 64);
			before_how = (enum damage)(rand_r(&seed) % DAMAGES);
			/* Where neither has its state.json there is no checkpoint, and the run begins. */
			if (before_how == MISSING && str_ends(older, "/state.json"))
				before_how = CUT;
			damage(older, before_how, &seed);
			printf("%s: %s\n", older, words[before_how]);
		}
		run.ranks = 1 + rand_r(&seed) % 3;
		run.degree = 1;
		run.resume = SAVER_RESUME_MUST;
		printf("%s: %s\n", path, words[how]);
		fflush(stdout);
		run_all(&run, ranks, resume_rank, NULL, 0);
		for (int i = 0; i < run.ranks; i++) {
			ck_assert_int_eq(ranks[i].result < 0, _i);
			ck_assert_int_eq(ranks[i].resumed, _i ? -1 : 4);
		}
		/* Without state.json a directory is no checkpoint. */
		named = _i ? strstr(ranks[0].err.message, "output.resume") != NULL
		           : strstr(run.said, strrchr(path, '/')) != NULL ||
		                 (how == MISSING && str_ends(path, "/state.json"));
		ck_assert_msg(named, "%s: %s %s", path, run.said, ranks[0].err.message);
		teardown(&run);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("resume");
	TCase *t = tcase_create("resume");

	tcase_set_timeout(t, 300);
	tcase_add_test(t, any_ranks_read_what_any_ranks_wrote);
	tcase_add_test(t, ranks_of_the_same_nodes_find_each_others_files);
	tcase_add_test(t, the_state_is_read_where_rank_0_wrote_it);
	tcase_add_test(t, a_checkpoint_that_must_be_there_may_be_on_another_node);
	tcase_add_test(t, checkpoints_of_another_node_are_not_replaced);
	tcase_add_loop_test(t, a_node_that_is_missing_is_named, 0, 2);
	tcase_add_loop_test(t, what_rank_0_did_not_publish_is_no_checkpoint, 0, 2);
	tcase_add_loop_test(t, what_two_attempts_did_not_publish_is_no_checkpoint, 0, 2);
	tcase_add_test(t, a_copy_that_lacks_a_file_of_state_is_named);
	tcase_add_loop_test(t, a_damaged_checkpoint_is_named, 0, 2);
	suite_add_tcase(s, t);
	return unit_run(s);
}
