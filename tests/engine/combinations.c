/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random combinations of the options of a training run, each compared with the plainest run that computes the
 * same. A case is one choice of every axis; its runs are
 *
 *     single    one rank with the rows of all, ddp, nothing recomputed, nothing offloaded
 *     ddp       as many ranks as the case has, and else the same
 *     lean      the case's own strategy, types, and matrices in 4 bits, and else the same
 *     whole     the case itself; with the bits of lean, since only places in memory differ
 *     later     the case itself from the state of whole after some steps, with the same bits
 *     moved     another strategy, or fewer ranks, from that state
 *
 * A case runs in a process of its own. Of one that fails, each axis is then set to its plainest value in
 * turn, as long as the case still fails, and what is left is printed.
 *
 *     SEED=1 CASES=1000 tests/engine/combinations
 *     SEED=1 CASES=1000 tests/engine/combinations task=6 tied=1     the same with some of them fixed
 *     tests/engine/combinations family=3 world=2     one case; axes that are not named are plain
 */
#include "combinations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

/* The exit status of a case whose options are refused. */
enum { REFUSED = 77 };

/* ---- axes ---- */

static const struct {
	const char *name;
	int values; /* 0 is the plainest */
} axes[AXES] = {[FAMILY] = {"family", 14},
                [TIED] = {"tied", 2},
                [LAYERS] = {"layers", 4},
                [VOCABULARY] = {"vocabulary", 3},
                [WORLD] = {"world", RANKS},
                [MICRO] = {"micro", 3},
                [ACCUMULATION] = {"accumulation", 3},
                [ROWS] = {"rows", 5},
                [DOCUMENTS] = {"documents", 3},
                [MASKED] = {"masked", 4},
                [TASK] = {"task", 8},
                [OPTIMIZER] = {"optimizer", 14},
                [DECAY] = {"decay", 3},
                [CLIP] = {"clip", 3},
                [PRECISION] = {"precision", 8},
                [SCALE] = {"scale", 3},
                [RECOMPUTE] = {"recompute", 3},
                [KEPT_BLOCKS] = {"kept_blocks", 3},
                [KEPT_OUTPUTS] = {"kept_outputs", 4},
                [STRATEGY] = {"strategy", 7},
                [DEGREE] = {"degree", 3},
                [WIRE] = {"wire", 3},
                [GRADIENT] = {"gradient", 2},
                [OFFLOAD] = {"offload", 4},
                [DISK] = {"disk", 4},
                [QUANTIZE] = {"quantize", 3},
                [PREFETCH] = {"prefetch", 5},
                [PERSIST] = {"persist", 4},
                [TUNING] = {"tuning", 6},
                [TARGET] = {"target", 10},
                [SAVED] = {"saved", 10},
                [RANK] = {"rank", 3},
                [ADAPTER] = {"adapter", 5},
                [DROPOUT] = {"dropout", 4},
                [RATES] = {"rates", 3},
                [EVALUATE] = {"evaluate", 4},
                [STOP] = {"stop", STEPS},
                [MOVE] = {"move", 8},
                [LOSS] = {"loss", 5},
                [NOISE] = {"noise", 5},
                [SEQUENCE] = {"sequence", 4}};

static struct setup draw_setup(uint64_t seed, uint64_t number)
{
	uint64_t state = seed * 1000003 + number;
	struct setup s;

	draw(&state);
	for (int i = 0; i < AXES; i++)
		s.axis[i] = (int)(draw(&state) % (uint64_t)axes[i].values);
	return s;
}

static void print_setup(const struct setup *s)
{
	for (int i = 0; i < AXES; i++)
		if (s->axis[i])
			printf(" %s=%d", axes[i].name, s->axis[i]);
	printf("\n");
}

/* ---- comparisons ---- */

static bool same_bits(double a, double b)
{
	return a == b || (isnan(a) && isnan(b));
}

static bool same_values(const float *a, const float *b, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i]))))
			return false;
	return true;
}

/* losses and norms of steps behind `from`, the state at the end. */
static void compare_bits(const struct model_layout *l, const struct rank *a, const char *name_a,
                         const struct rank *b, const char *name_b, int64_t from)
{
	static const char *const states[] = {"weights", "moment 1", "moment 2"};

	for (int64_t s = from + 1; s <= STEPS; s++) {
		if (!same_bits(a->losses[s], b->losses[s]) || !same_bits(a->norms[s], b->norms[s]))
			fail("%s and %s: step %d: losses %.9g and %.9g, norms %.9g and %.9g", name_a, name_b,
			     (int)s, a->losses[s], b->losses[s], a->norms[s], b->norms[s]);
		if (!same_bits(a->evaluations[s], b->evaluations[s]))
			fail("%s and %s: step %d: evaluations %.9g and %.9g", name_a, name_b, (int)s,
			     a->evaluations[s], b->evaluations[s]);
	}
	if (!same_bits(a->scaler.scale, b->scaler.scale) || a->scaler.skipped != b->scaler.skipped)
		fail("%s and %s: loss scales %g and %g, steps skipped %d and %d", name_a, name_b,
		     a->scaler.scale, b->scaler.scale, (int)a->scaler.skipped, (int)b->scaler.skipped);
	for (int w = 0; w < 3; w++) {
		int64_t at = 0;

		for (int i = 0; i < l->parameters; at += l->parameter[i++].count)
			if (is_read(a->run, &l->parameter[i]) && is_read(b->run, &l->parameter[i]) &&
			    !same_values(a->state[w] + at, b->state[w] + at, l->parameter[i].count))
				fail("%s and %s: %s of %s differ", name_a, name_b, states[w],
				     l->parameter[i].name);
	}
}

/* later: by what losses and norms behind the second step may be farther apart. */
struct tolerance {
	double loss, norm, change, later;
};

static bool near(double a, double b, double tolerance)
{
	return (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance * (1 + fabs(b));
}

/* How far a is from b, as a part of how far b has come. */
static void compare_changes(const struct model_layout *l, const struct rank *a, const char *name_a,
                            const struct rank *b, const char *name_b, double tolerance)
{
	int64_t at = 0;

	for (int i = 0; i < l->parameters; at += l->parameter[i++].count) {
		const struct model_parameter *p = &l->parameter[i];
		double off = 0, way = 0, size = 0;

		/* The gradient of the keys' bias is 0 but for rounding, which most optimizers scale up. */
		if (p->frozen || !is_read(a->run, p) || !is_read(b->run, p) ||
		    (a->run->o.optimizer != OPTIMIZER_SGD &&
		     (p->role == PARAMETER_K_BIAS || p->role == PARAMETER_Q_BIAS)))
			continue;
		for (int64_t k = at; k < at + p->count; k++) {
			double x = (double)a->state[0][k], y = (double)b->state[0][k],
			       z = (double)b->begin[k];

			off += (x - y) * (x - y);
			way += (y - z) * (y - z);
			size += y * y;
		}
		off = sqrt(off);
		way = sqrt(way);
		if (off > tolerance * way + 1e-6 * sqrt(size) + 1e-6)
			fail("%s and %s: %s: %g apart after a way of %g", name_a, name_b, p->name, off, way);
	}
}

static void compare_near(const struct model_layout *l, const struct rank *a, const char *name_a,
                         const struct rank *b, const char *name_b, int64_t from, const struct tolerance *t)
{
	for (int64_t s = from + 1; s <= STEPS; s++) {
		double more = s <= from + 2 ? 1 : t->later;

		if (!near(a->losses[s], b->losses[s], t->loss * more))
			fail("%s and %s: step %d: losses %.9g and %.9g", name_a, name_b, (int)s, a->losses[s],
			     b->losses[s]);
		if (!near(a->norms[s], b->norms[s], t->norm * more))
			fail("%s and %s: step %d: norms %.9g and %.9g", name_a, name_b, (int)s, a->norms[s],
			     b->norms[s]);
		if (!near(a->evaluations[s], b->evaluations[s], 5 * t->loss * more))
			fail("%s and %s: step %d: evaluations %.9g and %.9g", name_a, name_b, (int)s,
			     a->evaluations[s], b->evaluations[s]);
	}
	compare_changes(l, a, name_a, b, name_b, t->change);
}

/* With PiSSA the last rows of A and columns of B stay as they are. */
static void check_kept(const struct model_layout *l, const struct rank *a, const struct model_parameter *p,
                       int64_t at, const char *name)
{
	bool is_a = p->part == PART_LORA_A,
	     decays = a->run->o.weight_decay > 0 && a->run->o.optimizer != OPTIMIZER_ADAMW;

	if (l->kept_rank == 0 || decays || !(is_a || p->part == PART_LORA_B))
		return;
	for (int64_t i = 0; i < p->count; i++) {
		int64_t rank = is_a ? i / p->shape[1] : i % p->shape[1],
		        stored = is_a ? p->shape[0] : p->shape[1];

		if (rank >= stored - l->kept_rank && a->begin[at + i] != a->state[0][at + i])
			fail("%s: %s is kept and has changed at rank %d", name, p->name, (int)rank);
	}
}

/* What is frozen has not changed. */
static void check_frozen(const struct model_layout *l, const struct rank *a, const char *name)
{
	int64_t at = 0;

	for (int i = 0; i < l->parameters; at += l->parameter[i++].count) {
		const struct model_parameter *p = &l->parameter[i];
		bool same = !memcmp(a->begin + at, a->state[0] + at, (size_t)p->count * sizeof(float));

		if (is_read(a->run, p) && p->frozen && !same)
			fail("%s: %s is frozen and has changed", name, p->name);
		check_kept(l, a, p, at, name);
	}
}

static struct tolerance tolerance_of(const struct run *a, const struct run *b)
{
	struct tolerance t = {2e-5, 5e-4, 5e-3, 10};
	bool coarse = a->o.precision != DTYPE_F32 || b->o.precision != DTYPE_F32;
	bool rounded = a->o.reduce_type != b->o.reduce_type || a->o.gradient_type != b->o.gradient_type ||
	               (a->o.reduce_type != DTYPE_F32 && a->o.strategy != b->o.strategy);
	enum optimizer_kind kind = a->o.optimizer;
	bool eight = kind == OPTIMIZER_ADAMW_8BIT || kind == OPTIMIZER_LION_8BIT;

	if (coarse)
		t = (struct tolerance){1e-2, 3e-2, 0.1, 3};
	if (rounded || eight)
		t = (struct tolerance){MAX(t.loss, 1e-2), MAX(t.norm, 5e-2), 1, 10};
	if (kind != OPTIMIZER_SGD && kind != OPTIMIZER_ADAMW && !eight)
		t = (struct tolerance){MAX(t.loss, 1e-3), MAX(t.norm, 1e-2), MAX(t.change, 0.5),
		                       MAX(t.later, 3)};
	if (a->o.without_master)
		t.change = 1;
	if (kind == OPTIMIZER_LION_8BIT)
		t.change = 2;
	/* Rounding decides for a token between two experts whose weights are nearly the same. */
	if (has_experts(a->setup) && coarse)
		t = (struct tolerance){3e-2, 0.2, MAX(t.change, 1), 10};
	/* From step to step such models magnify rounding: of two runs with other divisions of the batch only
	 * the losses stay close. In fp32 they have the tolerance of the others. */
	if (has_linear_attention(a->setup) && coarse)
		t = (struct tolerance){0.2, 10, 10, 10};
	/* LARS moves a matrix by a part of its length: what was rounded to another code of fp8 in one step is
	 * magnified in the next. */
	if (a->o.fp8)
		t = (struct tolerance){3e-2, kind == OPTIMIZER_LARS ? 0.5 : 0.1, MAX(t.change, 1), 10};
	return t;
}

/* ---- a case ---- */

static void plain(struct train_options *o)
{
	o->recompute = MODEL_KEEP_ALL;
	o->kept_blocks = o->kept_outputs = 0;
	o->offload = SHARD_OFFLOAD_NONE;
	o->offload_dir = NULL;
	o->state_piece = 0;
	o->prefetch = 1;
	o->persist_below = 0;
}

/* The same batch on fewer ranks. The noise is that of a micro-batch, whichever rank has it: with noise these
 * stay as they are, and a rank takes more of them. */
static void take_ranks(struct run *run, int world_size)
{
	int64_t *more = run->o.neftune_alpha > 0 ? &run->o.accumulation : &run->o.micro_batch;
	int groups = run->world_size / MAX(run->o.sequence_degree, 1);

	if (world_size < run->o.sequence_degree)
		run->o.sequence_degree = 0;
	*more *= groups / (world_size / MAX(run->o.sequence_degree, 1));
	run->world_size = world_size;
}

static struct rank *run_named(const struct run *run, const char *name)
{
	struct error err = ERROR_INIT;
	struct rank *ranks = run_all(run, name, &err);

	if (!ranks)
		fail("%s: refused: %s", name, err.message);
	if (getenv("VERBOSE"))
		for (int64_t s = run->start + 1; s <= STEPS; s++)
			printf("  %s: step %d: loss %.9g, norm %.9g, evaluation %.9g\n", name, (int)s,
			       ranks[0].losses[s], ranks[0].norms[s], ranks[0].evaluations[s]);
	return ranks;
}

static void run_case(const struct setup *s, const char *directory)
{
	static const int64_t sizes[] = {24, 7, 13, 3, 30};
	static const enum shard_strategy moves[] = {SHARD_DDP,    SHARD_ZERO1, SHARD_ZERO2, SHARD_ZERO3,
	                                            SHARD_HYBRID, SHARD_ZERO3, SHARD_ZERO3, SHARD_ZERO1};
	struct dataset *train = make_rows(s, sizes[s->axis[ROWS]], 5), *eval = make_rows(s, 5, 6);
	struct run whole = {.setup = s, .world_size = 1 + s->axis[WORLD], .train = train, .eval = eval}, lean,
	           ddp, single, later, moved;
	struct rank *of_whole, *of_lean, *of_ddp, *of_single, *of_later, *of_moved;
	struct model_layout *l = NULL;
	struct lists lists = {0};
	struct error err = ERROR_INIT;
	struct tolerance t;
	struct model_config c;
	int64_t stop = s->axis[STOP];

	set_options(s, &whole.o, &lists, directory);
	whole.stop = stop;
	whole.o.save_steps = stop;
	if (make_config(s, &c, &err) < 0 || model_layout_create_tuned(&c, &whole.o.tuning, &l, &err) < 0 ||
	    !(of_whole = run_all(&whole, "whole", &err))) {
		if (getenv("VERBOSE"))
			printf("  refused: %s\n", err.message);
		fflush(stdout);
		_exit(REFUSED);
	}
	if (getenv("VERBOSE"))
		for (int64_t i = 1; i <= STEPS; i++)
			printf("  whole: step %d: loss %.9g, norm %.9g, evaluation %.9g\n", (int)i,
			       of_whole[0].losses[i], of_whole[0].norms[i], of_whole[0].evaluations[i]);
	check_frozen(l, of_whole, "whole");
	/* Gathering the state between two steps changes nothing, and neither does evaluating. */
	lean = whole;
	plain(&lean.o);
	lean.stop = 0;
	of_lean = run_named(&lean, "lean");
	compare_bits(l, of_whole, "whole", of_lean, "lean", 0);
	ddp = lean;
	ddp.o.strategy = SHARD_DDP;
	ddp.o.quantize = SHARD_QUANTIZE_NONE;
	ddp.rounded = whole.o.quantize;
	of_ddp = run_named(&ddp, "ddp");
	check_frozen(l, of_ddp, "ddp");
	t = tolerance_of(&whole, &ddp);
	compare_near(l, of_whole, "whole", of_ddp, "ddp", 0, &t);
	/* In fp8 the scales are those of a whole micro-batch. */
	if (whole.world_size > 1 && whole.o.tuning.dropout == 0 && !whole.o.fp8) {
		single = ddp;
		take_ranks(&single, 1);
		single.o.reduce_type = single.o.gradient_type = DTYPE_F32;
		of_single = run_named(&single, "single");
		t = tolerance_of(&ddp, &single);
		compare_near(l, of_ddp, "ddp", of_single, "single", 0, &t);
	}
	if (stop == 0 || stop >= STEPS)
		return;
	later = whole;
	later.state = of_whole->kept;
	later.reference = of_whole->reference;
	later.start = stop;
	later.stop = 0;
	later.scaler = of_whole->kept_scaler;
	of_later = run_named(&later, "later");
	compare_bits(l, of_later, "later", of_whole, "whole", stop);
	moved = later;
	moved.o.strategy = moves[s->axis[MOVE]];
	moved.o.shard_degree = 1;
	plain(&moved.o);
	if (s->axis[MOVE] == 5)
		moved.o.offload =
		    optimizer_steps_on_host(moved.o.optimizer) && moved.o.gradient_type == DTYPE_F32
		        ? SHARD_OFFLOAD_ALL
		        : SHARD_OFFLOAD_NONE;
	/* To half of the ranks, or to one; the masks of dropout depend on their number. */
	if (s->axis[MOVE] > 5 && whole.world_size % 2 == 0 && whole.o.tuning.dropout == 0 && !whole.o.fp8 &&
	    (whole.o.neftune_alpha == 0 || whole.o.gradient_type == DTYPE_F32))
		take_ranks(&moved, s->axis[MOVE] == 6 ? whole.world_size / 2 : 1);
	of_moved = run_named(&moved, "moved");
	t = tolerance_of(&moved, &whole);
	if (whole.o.optimizer == OPTIMIZER_ADAMW_8BIT || whole.o.optimizer == OPTIMIZER_LION_8BIT)
		t = (struct tolerance){5e-2, 0.2, 1, 10};
	compare_near(l, of_moved, "moved", of_whole, "whole", stop, &t);
}

/* ---- processes ---- */

static bool quiet;

/* The exit status of a process that runs the case; 128 and more: the signal that ended it. */
static int try_case(const struct setup *s)
{
	char name[] = "/tmp/combinations-XXXXXX";
	int status;
	pid_t pid;

	if (!mkdtemp(name))
		return 1;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		if (quiet && (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)))
			_exit(1);
		alarm(900);
		run_case(s, name);
		fflush(stdout);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	(void)file_remove_tree(name, NULL);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Sets axes to 0, or to smaller values, as long as the case fails. */
static void reduce(struct setup *s)
{
	bool changed = true;

	quiet = true;
	while (changed) {
		changed = false;
		for (int i = 0; i < AXES; i++)
			for (int value = 0; value < s->axis[i]; value++) {
				struct setup smaller = *s;
				int status;

				smaller.axis[i] = value;
				status = try_case(&smaller);
				if (status == 0 || status == REFUSED)
					continue;
				*s = smaller;
				changed = true;
			}
	}
	quiet = false;
}

/* Cases that once failed. */
static const char *const found[][5] = {
    /* The router alone is trained, and reads the kept output of a norm. */
    {"family=10", "kept_outputs=1", "tuning=2", "target=4", "dropout=1"}};

static int given(const char *name, int usual)
{
	return getenv(name) ? atoi(getenv(name)) : usual;
}

static bool read_axis(struct setup *s, const char *text)
{
	for (int i = 0; i < AXES; i++) {
		size_t n = strlen(axes[i].name);

		if (!strncmp(text, axes[i].name, n) && text[n] == '=') {
			s->axis[i] = atoi(text + n + 1);
			return true;
		}
	}
	return false;
}

/* Whether the cases of `found` pass. */
static bool try_found(void)
{
	bool passed = true;

	for (size_t i = 0; i < ARRAY_SIZE(found); i++) {
		struct setup s = {{0}};

		for (size_t k = 0; k < ARRAY_SIZE(found[i]) && found[i][k]; k++)
			read_axis(&s, found[i][k]);
		if (try_case(&s) == 0)
			continue;
		printf("case that was found:");
		print_setup(&s);
		passed = false;
	}
	return passed;
}

int main(int argc, char **argv)
{
	int seed = given("SEED", 1), cases = given("CASES", 60), from = given("FROM", 0), refused = 0,
	    failed = 0;
	bool one = argc > 1 && !getenv("CASES");
	struct setup s = {{0}};

	for (int i = 1; i < argc; i++)
		if (!read_axis(&s, argv[i])) {
			fprintf(stderr, "%s: no such axis\n", argv[i]);
			return 2;
		}
	if (one) {
		int status = try_case(&s);

		printf("status %d\n", status);
		return status;
	}
	if (argc == 1 && from == 0 && !try_found())
		failed++;
	printf("SEED=%d\n", seed);
	for (int i = from; i < from + cases; i++) {
		int status;

		s = draw_setup((uint64_t)seed, (uint64_t)i);
		for (int k = 1; k < argc; k++)
			read_axis(&s, argv[k]);
		status = try_case(&s);
		if (status == REFUSED)
			refused++;
		if (status == 0 || status == REFUSED)
			continue;
		failed++;
		printf("case %d: status %d:", i, status);
		print_setup(&s);
		if (getenv("REDUCE")) {
			reduce(&s);
			printf("  reduced:");
			print_setup(&s);
			try_case(&s);
		}
	}
	printf("%d cases, %d refused, %d failed\n", cases, refused, failed);
	/* Options that do not go together are three of ten. */
	return failed > 0 || refused > (cases + 1) / 2;
}
