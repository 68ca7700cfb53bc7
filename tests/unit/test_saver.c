/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the output directory of a run (saver.h): what a run does with files that it finds there, what a
 * checkpoint gives back, and in which order files and names reach the disk. The parameters are two small ones
 * in memory, the device is the host. */
#include "unit.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../engine/thread_comm.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/resume.h"
#include "engine/checkpoint/saver.h"
#include "engine/checkpoint/weights.h"

/* ---- what reaches the disk, and when ---- */

#define EVENTS_MAX 200

static struct {
	bool on;
	int n;
	char *what[EVENTS_MAX];  /* "sync PATH" or "rename FROM TO" */
	ino_t inode[EVENTS_MAX]; /* that was synced: its name may change afterwards */
} events;

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

static void record(char *what, ino_t inode)
{
	ck_assert_int_lt(events.n, EVENTS_MAX);
	events.inode[events.n] = inode;
	events.what[events.n++] = what;
}

int __wrap_fsync(int fd)
{
	char link[64], path[4096];
	struct stat st;
	ssize_t n;

	if (events.on) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, path, sizeof(path) - 1);
		ck_assert_int_gt(n, 0);
		path[n] = '\0';
		ck_assert_int_eq(fstat(fd, &st), 0);
		record(str_printf("sync %s", path), st.st_ino);
	}
	return __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
	if (events.on)
		record(str_printf("rename %s %s", from, to), 0);
	return __real_rename(from, to);
}

static void record_events(bool on)
{
	for (int i = 0; on && i < events.n; i++)
		free(events.what[i]);
	if (on)
		events.n = 0;
	events.on = on;
}

/* The index of an event; fails the test where there is no such event. */
__attribute__((format(printf, 1, 2))) static int event(const char *fmt, ...)
{
	_cleanup_free_ char *what = NULL;
	va_list ap;

	va_start(ap, fmt);
	ck_assert_int_ge(vasprintf(&what, fmt, ap), 0);
	va_end(ap);
	for (int i = 0; i < events.n; i++)
		if (str_eq(events.what[i], what))
			return i;
	ck_abort_msg("no event \"%s\"", what);
	return -1;
}

/* The index of the last event before `end` that synced the file that is now called DIRECTORY/NAME. */
static int synced(const char *directory, const char *name, int end)
{
	_cleanup_free_ char *path = str_path_join(directory, name);
	struct stat st;

	ck_assert_msg(stat(path, &st) == 0, "%s is not there", path);
	for (int i = end - 1; i >= 0; i--)
		if (events.inode[i] == st.st_ino)
			return i;
	ck_abort_msg("%s was not synced", path);
	return -1;
}

/* The index of the last event before `end` that synced a directory of that name. */
static int synced_directory(const char *path, int end)
{
	_cleanup_free_ char *what = str_printf("sync %s", path);

	for (int i = end - 1; i >= 0; i--)
		if (str_eq(events.what[i], what))
			return i;
	ck_abort_msg("%s was not synced", path);
	return -1;
}

/* ---- parameters ---- */

enum { STATES = 3, PARAMETERS = 2, ELEMENTS = 6 };

struct parameters {
	float value[STATES][PARAMETERS][ELEMENTS];
};

static struct model_parameter parameter[PARAMETERS] = {
    {.name = "model.embed_tokens.weight",
     .saved = "model.embed_tokens.weight",
     .dims = 2,
     .shape = {2, 3},
     .count = 6,
     .matrix = true},
    {.name = "model.norm.weight", .saved = "model.norm.weight", .dims = 1, .shape = {4}, .count = 4},
};
static struct model_layout layout = {.parameters = PARAMETERS, .parameter = parameter};

static int read_parameter(void *context, enum parameter_state which, const struct model_parameter *p,
                          int64_t first, int64_t n, float *out, struct error *err)
{
	struct parameters *all = context;

	memcpy(out, &all->value[which][p - parameter][first], (size_t)n * sizeof(*out));
	return 0;
}

static int write_parameter(void *context, enum parameter_state which, const struct model_parameter *p,
                           int64_t first, int64_t n, const float *in, struct error *err)
{
	struct parameters *all = context;

	memcpy(&all->value[which][p - parameter][first], in, (size_t)n * sizeof(*in));
	return 0;
}

static struct parameter_access access_to(struct parameters *all)
{
	return (struct parameter_access){
	    .layout = &layout, .context = all, .read = read_parameter, .write = write_parameter};
}

/* All values differ, and none can be represented with fewer bits. */
static void make_parameters(struct parameters *all)
{
	memset(all, 0, sizeof(*all));
	for (int s = 0; s < STATES; s++)
		for (int p = 0; p < PARAMETERS; p++)
			for (int i = 0; i < parameter[p].count; i++)
				all->value[s][p][i] = (float)(s + 1) + 0.001F * (float)(p * 10 + i + 1);
}

/* ---- a run ---- */

#define at_step(step_, tokens_)                                                                              \
	(&(struct saver_progress){.step = (step_),                                                           \
	                          .steps = 10,                                                               \
	                          .tokens = (tokens_),                                                       \
	                          .examples = 7 * (step_),                                                   \
	                          .epoch = (step_) / 5.0})

struct fixture {
	char *out, *config;
	struct saver_options options;
	struct parameters parameters;
	char said[200]; /* the last line for the log */
};

static void keep_line(void *context, const char *message)
{
	struct fixture *f = context;

	snprintf(f->said, sizeof(f->said), "%s", message);
}

static void setup(struct fixture *f)
{
	static const char config[] = "{\"model_type\":\"llama\"}";
	_cleanup_free_ char *base = unit_tmpdir();
	struct error err = ERROR_INIT;

	memset(f, 0, sizeof(*f));
	f->out = str_path_join(base, "out");
	f->config = str_path_join(base, "config.json");
	ck_ok(file_write_atomic(f->config, config, strlen(config), 0644, &err), &err);
	f->options = (struct saver_options){.claim = {.directory = f->out, .run = "7", .attempt = 1},
	                                    .world_size = 1,
	                                    .timeout_s = 60,
	                                    .config = f->config,
	                                    .notify = keep_line,
	                                    .context = f};
	make_parameters(&f->parameters);
}

static void teardown(struct fixture *f)
{
	*strrchr(f->config, '/') = '\0';
	file_remove_tree(f->config, NULL);
	free(f->out);
	free(f->config);
}

static struct saver *open_saver(struct fixture *f)
{
	struct error err = ERROR_INIT;
	struct saver *s = NULL;

	ck_ok(saver_open(&f->options, &s, &err), &err);
	return s;
}

static void attach(struct fixture *f, struct saver *s, struct comm *comm, enum dtype precision, bool master)
{
	struct saver_contents contents = {.comm = comm,
	                                  .parameters = access_to(&f->parameters),
	                                  .precision = precision,
	                                  .precision_name = precision == DTYPE_F32 ? "fp32" : "bf16",
	                                  .master = master,
	                                  .bos = -1,
	                                  .eos = 2,
	                                  .pad = -1,
	                                  .fingerprint = "rows=1"};
	struct error err = ERROR_INIT;

	ck_ok(saver_attach(s, &contents, &err), &err);
}

/* A run 7 that has saved a checkpoint of that step. */
static void save_checkpoint(struct fixture *f, int64_t step)
{
	_cleanup_(saver_freep) struct saver *s = open_saver(f);
	struct error err = ERROR_INIT;

	attach(f, s, NULL, DTYPE_F32, true);
	ck_ok(saver_checkpoint(s, at_step(step, 100), &err), &err);
}

/* What saver_find and saver_resume do. */
static int resume_from(const struct weights_place *place, const char *path, struct error *err)
{
	struct ranks ranks = {place->dev, place->comm, place->node};
	_cleanup_(resume_closep) struct resume *resume = NULL;
	bool unusable;
	int r = resume_open(&ranks, 0, path, &resume, &unusable, err);

	return r < 0 ? r : resume_read(resume, place, err);
}

static bool there(const struct fixture *f, const char *name)
{
	_cleanup_free_ char *path = str_path_join(f->out, name);

	return file_exists(path);
}

static void expect_mark(const struct fixture *f, const char *text)
{
	_cleanup_free_ char *path = str_path_join(f->out, CLAIM_FILE), *now = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	ck_ok(file_read(path, 0, &now, &len, &err), &err);
	ck_assert_str_eq(now, text);
}

/* A run is given a directory with the checkpoint of run 7. */
START_TEST(what_a_run_does_about_a_checkpoint)
{
	static const struct {
		enum saver_resume resume;
		bool overwrite;
		int64_t attempt;
		const char *run;
		const char *refused; /* NULL: it goes on */
		bool resumes;
	} cases[] = {
	    {SAVER_RESUME_AUTO, false, 1, "8", NULL, true},
	    {SAVER_RESUME_AUTO, true, 1, "8", NULL, true},
	    {SAVER_RESUME_MUST, false, 1, "8", NULL, true},
	    {SAVER_RESUME_NEVER, false, 1, "8", "is not empty; choose another", false},
	    {SAVER_RESUME_NEVER, true, 1, "8", NULL, false},
	    /* A later attempt of a run that never wrote here is no continuation of what lies here. */
	    {SAVER_RESUME_NEVER, false, 2, "8", "is not empty; choose another", false},
	    /* A later attempt of run 7 goes on from its own checkpoint, whatever was said about the first. */
	    {SAVER_RESUME_NEVER, false, 2, "7", NULL, true},
	    {SAVER_RESUME_NEVER, true, 2, "7", NULL, true},
	};
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	save_checkpoint(&f, 3);
	f.options.resume = cases[_i].resume;
	f.options.overwrite = cases[_i].overwrite;
	f.options.claim.attempt = cases[_i].attempt;
	f.options.claim.run = cases[_i].run;
	if (cases[_i].refused) {
		ck_fails(saver_open(&f.options, &s, &err), &err, cases[_i].refused);
		expect_mark(&f, "1 7\n");
		ck_assert(there(&f, "checkpoint-3"));
	} else {
		s = open_saver(&f);
		ck_assert_int_eq(saver_resume_path(s) != NULL, cases[_i].resumes);
		ck_assert_int_eq(saver_resume_state(s)->step, cases[_i].resumes ? 3 : 0);
		ck_assert_int_eq(saver_resume_state(s)->tokens, cases[_i].resumes ? 100 : 0);
		ck_assert_int_eq(there(&f, "checkpoint-3"), cases[_i].resumes);
	}
	teardown(&f);
}
END_TEST

START_TEST(must_resume_needs_a_checkpoint)
{
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	f.options.resume = SAVER_RESUME_MUST;
	ck_fails(saver_open(&f.options, &s, &err), &err, "output.resume is \"must\", but");
	teardown(&f);
}
END_TEST

/* A later attempt on another node, whose disk has nothing of the run. */
START_TEST(an_attempt_that_lacks_the_checkpoint_of_the_one_before_does_not_begin_again)
{
	struct fixture f;
	struct error err = ERROR_INIT;
	struct saver *s = NULL;

	setup(&f);
	f.options.claim.attempt = 2;
	f.options.known_step = 20;
	f.options.known_node = "n1";
	ck_fails(saver_open(&f.options, &s, &err), &err, "an earlier attempt of this run has saved step 20");
	ck_fails(saver_open(&f.options, &s, &err), &err, "on node n1");
	f.options.known_step = 0;
	ck_ok(saver_open(&f.options, &s, &err), &err);
	saver_free(s);
	teardown(&f);
}
END_TEST

START_TEST(and_does_not_take_that_of_another_run)
{
	struct fixture f;
	struct error err = ERROR_INIT;
	struct saver *s;

	setup(&f);
	f.options.claim.run = "3";
	s = open_saver(&f);
	attach(&f, s, NULL, DTYPE_F32, false);
	ck_ok(saver_checkpoint(s, at_step(30, 100), &err), &err);
	saver_free(s);
	f.options.claim.run = "7";
	f.options.claim.attempt = 2;
	f.options.known_step = 20;
	ck_fails(saver_open(&f.options, &s, &err), &err, "an earlier attempt of this run has saved step 20");
	teardown(&f);
}
END_TEST

static void damage_state(const struct fixture *f, int step)
{
	_cleanup_free_ char *path = str_printf("%s/checkpoint-%d/dtrain/state.json", f->out, step);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, "{", 1, 0644, &err), &err);
}

START_TEST(a_damaged_state_is_passed_over_for_an_older_one)
{
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct fixture f;

	setup(&f);
	save_checkpoint(&f, 3);
	save_checkpoint(&f, 4);
	damage_state(&f, 4);
	s = open_saver(&f);
	ck_assert_int_eq(saver_resume_state(s)->step, 3);
	ck_assert_ptr_nonnull(strstr(f.said, "resuming from the checkpoint before it"));
	teardown(&f);
}
END_TEST

/* A run that cannot go on must not begin again without saying so. */
START_TEST(the_only_state_is_damaged)
{
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	save_checkpoint(&f, 3);
	damage_state(&f, 3);
	ck_fails(saver_open(&f.options, &s, &err), &err, "has no older checkpoint");
	ck_assert(there(&f, "checkpoint-3"));
	teardown(&f);
}
END_TEST

/* Where the directory cannot be marked as its own, a run removes nothing from it. */
START_TEST(nothing_is_removed_before_the_mark)
{
	struct rlimit before, none;
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	save_checkpoint(&f, 3);
	f.options.claim.run = "8";
	f.options.resume = SAVER_RESUME_NEVER;
	f.options.overwrite = true;
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
	none = (struct rlimit){0, before.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
	ck_assert_int_lt(saver_open(&f.options, &s, &err), 0);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
	ck_assert(there(&f, "checkpoint-3"));
	s = open_saver(&f);
	ck_assert(!there(&f, "checkpoint-3"));
	expect_mark(&f, "1 8\n1 7\n");
	teardown(&f);
}
END_TEST

/* Weights and both moments, each to its own place. _i: fp32; bf16 with master weights; bf16 without. */
START_TEST(a_checkpoint_gives_back_what_it_took)
{
	enum dtype precision = _i == 0 ? DTYPE_F32 : DTYPE_BF16;
	_cleanup_(saver_freep) struct saver *s = NULL;
	_cleanup_free_ char *path = NULL;
	struct parameters back = {0};
	struct weights_place place = {.access = access_to(&back), .node = "n1"};
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	/* Without a master copy the trainer has the values rounded to bf16. */
	for (int p = 0; _i == 2 && p < PARAMETERS; p++)
		for (int i = 0; i < parameter[p].count; i++)
			f.parameters.value[STATE_WEIGHTS][p][i] =
			    bf16_to_float(bf16_from_float(f.parameters.value[STATE_WEIGHTS][p][i]));
	s = open_saver(&f);
	attach(&f, s, NULL, precision, _i == 1);
	ck_ok(saver_checkpoint(s, at_step(4, 0), &err), &err);
	ck_assert_int_eq(saver_saved_step(s), 4);
	path = str_path_join(f.out, "checkpoint-4");
	ck_assert_ptr_nonnull(strstr(f.said, path));
	ck_ok(resume_from(&place, path, &err), &err);
	for (int state = 0; state < STATES; state++)
		for (int p = 0; p < PARAMETERS; p++)
			for (int i = 0; i < parameter[p].count; i++)
				ck_assert_msg(back.value[state][p][i] == f.parameters.value[state][p][i],
				              "state %d, parameter %d, element %d: %g is not %g", state, p, i,
				              back.value[state][p][i], f.parameters.value[state][p][i]);
	teardown(&f);
}
END_TEST

/* A value of the parameters, as a source of a file. */
static int fill_state(void *context, size_t index, size_t offset, size_t len, void *buf, struct error *err)
{
	struct parameters *all = context;

	memcpy(buf, (char *)all->value[index / PARAMETERS][index % PARAMETERS] + offset, len);
	return 0;
}

/* A checkpoint as earlier versions wrote it: no index, and whole tensors of rank 0. */
START_TEST(checkpoints_of_earlier_versions_are_read)
{
	static const char *const prefixes[STATES] = {"", "m.", "v."};
	_cleanup_free_ char *directory = unit_tmpdir(), *inner = str_path_join(directory, "dtrain");
	struct tensor_source sources[STATES * PARAMETERS];
	char names[STATES * PARAMETERS][128];
	struct parameters all, back = {0};
	struct weights_place place = {.access = access_to(&back), .node = "n1"};
	struct error err = ERROR_INIT;

	make_parameters(&all);
	for (size_t i = 0; i < STATES * PARAMETERS; i++) {
		const struct model_parameter *p = &parameter[i % PARAMETERS];

		snprintf(names[i], sizeof(names[i]), "%s%s", prefixes[i / PARAMETERS], p->name);
		sources[i] = (struct tensor_source){.name = names[i],
		                                    .type = TENSOR_F32,
		                                    .dims = p->dims,
		                                    .shape = {p->shape[0], p->shape[1]},
		                                    .fill = fill_state,
		                                    .context = &all,
		                                    .index = i};
	}
	ck_ok(file_mkdirs(inner, 0777, &err), &err);
	ck_ok(safetensors_write(directory, "model", sources, PARAMETERS, 0, &err), &err);
	ck_ok(safetensors_write(inner, "optimizer", sources + PARAMETERS, 2 * (size_t)PARAMETERS, 0, &err),
	      &err);
	ck_ok(resume_from(&place, directory, &err), &err);
	ck_assert_mem_eq(&back, &all, sizeof(all));
	ck_ok(file_remove_tree(directory, &err), &err);
}
END_TEST

/* Attempt 2 adds its tokens to those of attempt 1. */
START_TEST(tokens_of_all_attempts_are_counted)
{
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	save_checkpoint(&f, 3); /* 100 tokens */
	f.options.claim.attempt = 2;
	s = open_saver(&f);
	attach(&f, s, NULL, DTYPE_F32, true);
	ck_ok(saver_checkpoint(s, at_step(5, 30), &err), &err);
	saver_free(steal_pointer(s));
	f.options.claim.attempt = 3;
	s = open_saver(&f);
	ck_ok(saver_find(s, NULL, NULL, &err), &err);
	ck_assert_int_eq(saver_resume_state(s)->step, 5);
	ck_assert_int_eq(saver_resume_state(s)->examples, 35);
	ck_assert_int_eq(saver_resume_state(s)->tokens, 130);
	teardown(&f);
}
END_TEST

/* The checkpoint of the step that a run resumes from is not written again. */
START_TEST(a_saved_step_is_not_saved_again)
{
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	s = open_saver(&f);
	attach(&f, s, NULL, DTYPE_F32, true);
	ck_assert_int_eq(saver_saved_step(s), -1);
	if (_i)
		saver_resumed(s, 4);
	else
		ck_ok(saver_checkpoint(s, at_step(4, 0), &err), &err);
	ck_assert_int_eq(saver_saved_step(s), 4);
	f.said[0] = '\0';
	ck_ok(saver_checkpoint(s, at_step(4, 0), &err), &err);
	ck_assert_str_eq(f.said, "");
	teardown(&f);
}
END_TEST

static void keep_warning(void *context, const char *message)
{
	snprintf(context, 200, "%s", message);
}

/* A weight that is not finite cannot be trained on; a moment that is infinite is reported. */
START_TEST(what_is_not_finite_is_found)
{
	_cleanup_(saver_freep) struct saver *s = NULL;
	_cleanup_free_ char *path = NULL;
	char warning[200] = "";
	struct parameters back = {0};
	struct weights_place place = {
	    .access = access_to(&back), .node = "n1", .warn = keep_warning, .warn_context = warning};
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	f.parameters.value[STATE_MOMENT2][1][2] = INFINITY;
	s = open_saver(&f);
	attach(&f, s, NULL, DTYPE_F32, true);
	ck_ok(saver_checkpoint(s, at_step(4, 0), &err), &err);
	path = str_path_join(f.out, "checkpoint-4");
	ck_ok(resume_from(&place, path, &err), &err);
	ck_assert_ptr_nonnull(strstr(warning, "tensor v.model.norm.weight: element 2 is infinite"));
	f.parameters.value[STATE_WEIGHTS][0][5] = INFINITY;
	ck_ok(saver_checkpoint(s, at_step(5, 0), &err), &err);
	path[strlen(path) - 1] = '5';
	ck_fails(resume_from(&place, path, &err), &err,
	         "tensor model.embed_tokens.weight: element 5 is infinite");
	teardown(&f);
}
END_TEST

/* A checkpoint's files are on the disk before their names are, and those before the checkpoint's own name,
 * which is there before the saving ends. */
START_TEST(a_checkpoint_is_synced_then_renamed)
{
	static const char *const files[] = {"config.json",
	                                    "generation_config.json",
	                                    "model.safetensors",
	                                    "trainer_state.json",
	                                    "dtrain/state.json",
	                                    "dtrain/rank-00000-of-00001.safetensors",
	                                    "dtrain/rank-00000-of-00001.json",
	                                    "dtrain/index.json"};
	_cleanup_free_ char *path = NULL, *tmp = NULL, *inner = NULL;
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;
	int published;

	setup(&f);
	path = str_path_join(f.out, "checkpoint-4");
	tmp = str_path_join(f.out, "checkpoint-4.1.tmp");
	inner = str_path_join(tmp, "dtrain");
	s = open_saver(&f);
	attach(&f, s, NULL, DTYPE_F32, true);
	record_events(true);
	ck_ok(saver_checkpoint(s, at_step(4, 0), &err), &err);
	record_events(false);
	published = event("rename %s %s", tmp, path);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		const char *directory = str_starts(files[i], "dtrain/") ? inner : tmp;

		ck_assert_msg(synced(path, files[i], published) < synced_directory(directory, published),
		              "%s", files[i]);
	}
	ck_assert_int_gt(synced_directory(f.out, events.n), published);
	teardown(&f);
}
END_TEST

/* Calls checkpoint_publish and checkpoint_publish_files for files whose directory has not been synced. */
START_TEST(publishing_syncs_the_names_first)
{
	const char *name = _i ? "model" : "checkpoint-4";
	_cleanup_free_ char *tmp = NULL, *file = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;
	FILE *out;
	int renamed;

	setup(&f);
	ck_ok(file_mkdirs(f.out, 0777, &err), &err);
	tmp = checkpoint_tmp(f.out, name, 1);
	ck_ok(checkpoint_begin(tmp, &err), &err);
	file = str_path_join(tmp, "config.json");
	out = fopen(file, "we");
	ck_assert_ptr_nonnull(out);
	fclose(out);
	record_events(true);
	ck_ok(_i ? checkpoint_publish_files(f.out, tmp, &err) : checkpoint_publish(f.out, name, tmp, &err),
	      &err);
	record_events(false);
	renamed = _i ? event("rename %s %s/config.json", file, f.out)
	             : event("rename %s %s/checkpoint-4", tmp, f.out);
	ck_assert_int_ge(synced_directory(tmp, renamed), 0);
	ck_assert_int_gt(synced_directory(f.out, events.n), renamed);
	teardown(&f);
}
END_TEST

/* When the weights of the final model are visible, so is the configuration that belongs to them. */
START_TEST(the_final_models_weights_come_last)
{
	static const char *const files[] = {"config.json", "generation_config.json", "trainer_state.json",
	                                    "model.safetensors"};
	_cleanup_(saver_freep) struct saver *s = NULL;
	_cleanup_free_ char *tmp = NULL;
	struct error err = ERROR_INIT;
	int renamed[ARRAY_SIZE(files)];
	struct fixture f;

	setup(&f);
	tmp = str_path_join(f.out, "model.1.tmp");
	s = open_saver(&f);
	attach(&f, s, NULL, DTYPE_F32, true);
	record_events(true);
	ck_ok(saver_final(s, at_step(10, 0), &err), &err);
	record_events(false);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		renamed[i] = event("rename %s/%s %s/%s", tmp, files[i], f.out, files[i]);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		ck_assert_int_le(renamed[i], renamed[ARRAY_SIZE(files) - 1]);
		for (size_t k = 0; k < ARRAY_SIZE(files); k++)
			ck_assert_int_lt(synced(f.out, files[i], renamed[k]),
			                 synced_directory(tmp, renamed[k]));
	}
	ck_assert_int_gt(synced_directory(f.out, events.n), renamed[ARRAY_SIZE(files) - 1]);
	ck_assert(!there(&f, "model.1.tmp"));
	teardown(&f);
}
END_TEST

/* Ids that the configuration does not have are those of the tokenizer; ids that neither has are left out. */
START_TEST(the_tokenizers_ids_are_saved)
{
	static const char *const files[] = {"config.json", "generation_config.json"};
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	s = open_saver(&f);
	attach(&f, s, NULL, DTYPE_F32, true);
	ck_ok(saver_final(s, at_step(10, 0), &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		_cleanup_free_ char *path = str_path_join(f.out, files[i]);
		_cleanup_json_ json_t *j = NULL;

		ck_ok(json_read_file(path, &j, &err), &err);
		ck_assert_int_eq(json_get_int(j, "eos_token_id", -1), 2);
		ck_assert_ptr_null(json_object_get(j, "bos_token_id"));
		ck_assert_ptr_null(json_object_get(j, "pad_token_id"));
	}
	teardown(&f);
}
END_TEST

/* A newer attempt has marked the directory meanwhile: the older one publishes nothing. */
START_TEST(an_older_attempt_publishes_nothing)
{
	_cleanup_free_ char *mark = NULL;
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	mark = str_path_join(f.out, CLAIM_FILE);
	s = open_saver(&f);
	attach(&f, s, NULL, DTYPE_F32, true);
	ck_ok(file_write_atomic(mark, "2 7\n", 4, 0644, &err), &err);
	ck_assert_int_eq(_i ? saver_final(s, at_step(4, 0), &err) : saver_checkpoint(s, at_step(4, 0), &err),
	                 -ESTALE);
	ck_assert(!there(&f, "checkpoint-4"));
	ck_assert(!there(&f, "model.safetensors"));
	ck_assert(!there(&f, "checkpoint-4.1.tmp"));
	ck_assert(!there(&f, "model.1.tmp"));
	teardown(&f);
}
END_TEST

/* ---- the ranks that wait ---- */

struct waiting {
	struct fixture *f;
	struct comm *comm;
	pthread_t thread;
	bool complete; /* the checkpoint was there when the wait ended */
};

static void *wait_for_checkpoint(void *context)
{
	struct waiting *w = context;
	struct fixture own = *w->f;
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;

	own.options.rank = 1;
	s = open_saver(&own);
	ck_assert_ptr_null(saver_resume_path(s));
	attach(&own, s, w->comm, DTYPE_F32, true);
	ck_ok(saver_checkpoint(s, at_step(4, 0), &err), &err);
	w->complete = there(&own, "checkpoint-4/dtrain/state.json");
	ck_assert_int_eq(saver_saved_step(s), 4);
	return NULL;
}

START_TEST(the_others_wait_for_the_writer)
{
	struct comm *comms[2];
	struct waiting w;
	_cleanup_(saver_freep) struct saver *s = NULL;
	struct error err = ERROR_INIT;
	struct fixture f;

	setup(&f);
	thread_comm_create(2, comms);
	f.options.world_size = 2;
	f.options.timeout_s = 0; /* the ranks gather before each piece */
	s = open_saver(&f);
	w = (struct waiting){.f = &f, .comm = comms[1]};
	ck_assert_int_eq(pthread_create(&w.thread, NULL, wait_for_checkpoint, &w), 0);
	attach(&f, s, comms[0], DTYPE_F32, true);
	ck_ok(saver_checkpoint(s, at_step(4, 0), &err), &err);
	pthread_join(w.thread, NULL);
	ck_assert(w.complete);
	comm_destroy(comms[0]);
	comm_destroy(comms[1]);
	teardown(&f);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("saver");
	TCase *t = tcase_create("saver");

	tcase_set_timeout(t, 180);
	tcase_add_loop_test(t, what_a_run_does_about_a_checkpoint, 0, 8);
	tcase_add_test(t, must_resume_needs_a_checkpoint);
	tcase_add_test(t, an_attempt_that_lacks_the_checkpoint_of_the_one_before_does_not_begin_again);
	tcase_add_test(t, and_does_not_take_that_of_another_run);
	tcase_add_test(t, a_damaged_state_is_passed_over_for_an_older_one);
	tcase_add_test(t, the_only_state_is_damaged);
	tcase_add_test(t, nothing_is_removed_before_the_mark);
	tcase_add_loop_test(t, a_checkpoint_gives_back_what_it_took, 0, 3);
	tcase_add_test(t, checkpoints_of_earlier_versions_are_read);
	tcase_add_test(t, tokens_of_all_attempts_are_counted);
	tcase_add_loop_test(t, a_saved_step_is_not_saved_again, 0, 2);
	tcase_add_test(t, what_is_not_finite_is_found);
	tcase_add_test(t, a_checkpoint_is_synced_then_renamed);
	tcase_add_loop_test(t, publishing_syncs_the_names_first, 0, 2);
	tcase_add_test(t, the_final_models_weights_come_last);
	tcase_add_test(t, the_tokenizers_ids_are_saved);
	tcase_add_loop_test(t, an_older_attempt_publishes_nothing, 0, 2);
	tcase_add_test(t, the_others_wait_for_the_writer);
	suite_add_tcase(s, t);
	return unit_run(s);
}
