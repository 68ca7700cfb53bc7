/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the output directory of a run, finds the checkpoint to resume from, and saves checkpoints and the
 * final model in it.
 *
 * Opening, on rank 0:
 *
 *     claim_take     locks the directory; refused where another process writes there, or a newer attempt did
 *     choose         resume, start anew, remove what is there (overwrite), or refuse; changes nothing
 *     claim_mark     from here on the directory is this attempt's
 *     remove, clean  an overwritten run, and what an interrupted save has left
 *
 * Finding (saver_find), on all ranks: which of them share a directory (places.c); one of each other directory
 * opens that, too; then the newest checkpoint, in whichever directory, whose files are what was saved.
 *
 * Saving: rank 0 makes output/NAME.ATTEMPT.tmp; all ranks write there (saving.c); rank 0 renames it. Where
 * ranks do not find that directory, one of each other does the same for those that find its own.
 */
#include "engine/checkpoint/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/places.h"
#include "engine/checkpoint/resume.h"
#include "engine/checkpoint/saving.h"

struct saver {
	struct saver_options o;
	bool writer;    /* rank 0 */
	bool publishes; /* rank 0, and the writer of each directory that is not that of rank 0 */
	int claimed; /* file descriptor of the claim on the directory, while it is held; -1: another rank's */
	char *resume_path;
	struct checkpoint_state resumed; /* its history is `history` */
	json_t *resumed_owner, *history;

	bool resumes;
	bool again;    /* a later attempt of the run whose files rank 0 has found: not refused */
	bool looks;    /* for checkpoints, in its directory */
	int64_t found; /* step of the newest of these; -1: none */
	struct resume *resume;

	struct saver_contents from;
	char *fingerprint;
	struct ranks ranks;
	struct places places;   /* which ranks find the same directory */
	bool *shares;           /* of each rank: whether that is the directory of rank 0 */
	bool gathers;           /* rank 0 writes everything */
	bool local;             /* rank 0 writes the model, and each rank its state, on its node */
	void *records;          /* device: what the ranks gather while they save */
	struct save_plan *plan; /* of a checkpoint */
	void *copy;             /* host: plan->bytes; NULL: not in the background */
	int64_t saved_step;     /* of the newest checkpoint, -1: none */

	/* The save that is in progress. */
	struct saving *saving; /* NULL: none */
	bool final;
	char *name, *tmp;
	double started_at;
	struct checkpoint_state state; /* its history is a copy */
	const char *listed[3];
	size_t n_listed;
};

static const char *directory_of(const struct saver *s)
{
	return s->o.claim.directory;
}

static void notify(const struct saver *s, const char *fmt, ...)
{
	char message[4400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(message, sizeof(message), fmt, ap);
	va_end(ap);
	s->o.notify(s->o.context, message);
}

/* A checkpoint that err describes cannot be used: says so where there is an older one. */
static int skip_checkpoint(const struct saver *s, int64_t step, struct error *err)
{
	_cleanup_free_ char *older = NULL;
	struct error why = *err;
	int64_t older_step;
	int r = checkpoint_find(directory_of(s), step, &older, &older_step, err);

	if (r < 0)
		return r;
	if (!older)
		return error_set(err, why.code,
		                 "%.600s; %s has no older checkpoint (output.resume = \"never\" with "
		                 "output.overwrite = true starts again)",
		                 why.message, directory_of(s));
	notify(s, "warning: %s; resuming from the checkpoint before it", why.message);
	return 0;
}

static void forget_checkpoint(struct saver *s)
{
	json_decref(s->resumed.log_history);
	json_decref(s->resumed_owner);
	free(s->resume_path);
	s->resumed = (struct checkpoint_state){0};
	s->resumed_owner = NULL;
	s->resume_path = NULL;
}

/* Takes the newest checkpoint of a step below `before` whose state can be read. */
static int take_newest(struct saver *s, int64_t before, struct error *err)
{
	int64_t step;
	int r;

	while ((r = checkpoint_find(directory_of(s), before, &s->resume_path, &step, err)) == 0 &&
	       s->resume_path) {
		r = checkpoint_state_load(s->resume_path, &s->resumed, &s->resumed_owner, err);
		if (r == 0)
			return 0;
		forget_checkpoint(s);
		if ((r = skip_checkpoint(s, step, err)) < 0)
			return r;
		before = step;
	}
	return r;
}

static int check_must(const struct saver *s, struct error *err)
{
	return s->again || s->o.resume != SAVER_RESUME_MUST
	           ? 0
	           : error_set(err, -ENOENT, "output.resume is \"must\", but %s has no checkpoint",
	                       directory_of(s));
}

/* Decides by resume, overwrite and the attempt what to do with the files in the directory. A later attempt
 * that finds the files of its own run (ours) resumes from them, whatever resume and overwrite say, which are
 * meant for the first attempt. *remove: the files have to be removed. */
static int choose(struct saver *s, bool ours, bool *remove, struct error *err)
{
	const char *dir = directory_of(s);
	bool used = false;
	int r;

	*remove = false;
	s->again = s->o.claim.attempt > 1 && ours;
	s->looks = s->again || s->o.resume != SAVER_RESUME_NEVER;
	if (s->looks) {
		r = take_newest(s, INT64_MAX, err);
		if (r < 0 || s->resume_path)
			return r;
		/* Other nodes may have one. */
		if (s->o.world_size == 1 && (r = check_must(s, err)) < 0)
			return r;
	}
	r = checkpoint_output_in_use(dir, &used, err);
	if (r < 0 || !used || s->again)
		return r;
	if (!s->o.overwrite)
		return error_set(
		    err, -ENOTEMPTY,
		    "output.dir %s is not empty%s; choose another or set output.overwrite = true", dir,
		    s->o.resume == SAVER_RESUME_NEVER ? "" : " and has no checkpoint to resume from");
	*remove = true;
	return 0;
}

static int open_directory(struct saver *s, struct error *err)
{
	const char *dir = directory_of(s);
	bool ours = false, remove = false;
	int r;

	if ((r = file_mkdirs(dir, 0777, err)) < 0)
		return error_prefix(err, "output.dir");
	if (access(dir, W_OK | X_OK) < 0)
		return error_errno(err, -errno, "output.dir %s cannot be written", dir);
	if ((r = claim_take(&s->o.claim, &s->claimed, &ours, err)) < 0 ||
	    (r = choose(s, ours, &remove, err)) < 0 || (r = claim_mark(&s->o.claim, s->claimed, err)) < 0)
		return r;
	if (remove && (r = checkpoint_remove_all(dir, err)) < 0)
		return r;
	return checkpoint_clean(dir, err);
}

int saver_open(const struct saver_options *options, struct saver **out, struct error *err)
{
	_cleanup_(saver_freep) struct saver *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return error_oom(err);
	s->o = *options;
	s->claimed = -1;
	s->writer = s->publishes = options->rank == 0;
	s->looks = options->rank == 0;
	s->found = -1;
	s->saved_step = -1;
	if (s->writer && (r = open_directory(s, err)) < 0)
		return r;
	s->resumes = s->resume_path != NULL;
	s->found = s->resumes ? s->resumed.step : -1;
	*out = steal_pointer(s);
	return 0;
}

static void end_saving(struct saver *s)
{
	saving_free(s->saving);
	s->saving = NULL;
	json_decref(s->state.log_history);
	s->state.log_history = NULL;
	/* The partial save is removed, so that a full disk has room again; what is published is not there. */
	if (s->publishes && s->tmp)
		file_remove_tree(s->tmp, NULL);
	free(s->tmp);
	free(s->name);
	s->tmp = s->name = NULL;
}

void saver_free(struct saver *s)
{
	if (!s)
		return;
	end_saving(s);
	save_plan_free(s->plan);
	resume_close(s->resume);
	closep(&s->claimed);
	if (s->records)
		device_free(s->from.dev, s->records);
	json_decref(s->history);
	forget_checkpoint(s);
	free(s->copy);
	free(s->shares);
	places_free(&s->places);
	free(s->fingerprint);
	free(s);
}

/* ---- resuming ---- */

/* A directory of a node that does not find that of rank 0. Rank 0 decides whether there is a run to resume;
 * this is refused only where a checkpoint would be replaced that was not meant to be. */
static int open_other_directory(struct saver *s, struct error *err)
{
	const char *dir = directory_of(s);
	_cleanup_free_ char *there = NULL;
	bool ours = false;
	int64_t step;
	int r;

	if ((r = claim_take(&s->o.claim, &s->claimed, &ours, err)) < 0 ||
	    (r = checkpoint_find(dir, INT64_MAX, &there, &step, err)) < 0)
		return r;
	s->looks = s->o.resume != SAVER_RESUME_NEVER || (s->o.claim.attempt > 1 && ours);
	if (there && !s->looks && !s->o.overwrite)
		return error_set(
		    err, -ENOTEMPTY,
		    "output.dir %s has checkpoints; choose another or set output.overwrite = true", dir);
	if ((r = claim_mark(&s->o.claim, s->claimed, err)) < 0 ||
	    (there && !s->looks && (r = checkpoint_remove_all(dir, err)) < 0))
		return r;
	return checkpoint_clean(dir, err);
}

/* Finds out which ranks share a directory. From here on one rank of each is its writer. */
static int open_places(struct saver *s, const struct ranks *ranks, struct error *err)
{
	int rank = ranks_rank(ranks), r;
	bool broken;

	if (s->places.writer)
		return 0;
	r = places_find(ranks, directory_of(s), !s->o.gather, &s->places, err);
	if (r < 0 || s->places.single)
		return r;
	/* One that has no directory to write to may find files of an earlier run nevertheless. */
	s->looks = s->looks || s->places.writer[rank] < 0;
	if (rank != 0 && s->places.writer[rank] == rank) {
		s->publishes = true;
		r = open_other_directory(s, err);
	}
	return ranks_agree(ranks, r, &broken, err);
}

/* The newest checkpoint below `before` in the directory of this rank, of which rank 0 reads the state. */
static int look(struct saver *s, int64_t before, struct error *err)
{
	_cleanup_free_ char *path = NULL;
	int r;

	s->found = -1;
	if (!s->looks)
		return 0;
	if (s->writer) {
		r = take_newest(s, before, err);
		s->found = r == 0 && s->resume_path ? s->resumed.step : -1;
		return r;
	}
	r = checkpoint_find(directory_of(s), before, &path, &s->found, err);
	s->found = r == 0 && path ? s->found : -1;
	return r;
}

static char *checkpoint_path(const struct saver *s, int64_t step)
{
	return str_printf("%s/checkpoint-%" PRId64, directory_of(s), step);
}

/* The newest step that any rank has found, and the first of those that have what rank 0 wrote of it; else the
 * first of those that have found it. *step -1: there is none. */
static int find_newest(struct saver *s, const struct ranks *ranks, int64_t *step, int *root,
                       struct error *err)
{
	struct found {
		int64_t step, whole;
	};
	int n = ranks_size(ranks), r;
	_cleanup_free_ struct found *all = calloc((size_t)n, sizeof(*all));
	_cleanup_free_ char *path = checkpoint_path(s, s->found);
	_cleanup_free_ char *file = path ? str_path_join(path, "trainer_state.json") : NULL;

	if (!all || !file)
		return error_oom(err);
	all[ranks_rank(ranks)] = (struct found){s->found, s->found >= 0 && file_exists(file)};
	r = ranks_gather(ranks, NULL, all, sizeof(*all), err);
	*root = 0;
	for (int i = 1; i < n; i++)
		if (all[i].step > all[*root].step ||
		    (all[i].step == all[*root].step && all[i].whole > all[*root].whole))
			*root = i;
	*step = all[*root].step;
	return r;
}

/* Rank 0 learns the state of a checkpoint that another rank has found. */
static int receive_state(struct saver *s, const struct ranks *ranks, int64_t step, int root, bool *broken,
                         struct error *err)
{
	_cleanup_free_ char *path = checkpoint_path(s, step), *state = NULL, *trainer = NULL;
	_cleanup_json_ json_t *j = NULL, *t = NULL;
	int r = path ? 0 : error_oom(err);

	if (r == 0 && ranks_rank(ranks) == root) {
		r = checkpoint_state_read(path, &j, &t, err);
		state = r == 0 ? json_to_string(j) : NULL;
		trainer = r == 0 && t ? json_to_string(t) : NULL;
	}
	if ((r = ranks_agree(ranks, r, broken, err)) < 0)
		return r;
	*broken = true;
	if ((r = ranks_broadcast_text(ranks, &state, root, err)) < 0 ||
	    (r = ranks_broadcast_text(ranks, &trainer, root, err)) < 0)
		return r;
	if (s->writer) {
		forget_checkpoint(s);
		if (ranks_rank(ranks) != root)
			r = state ? json_parse(state, strlen(state), path, &j, err) : error_oom(err);
		if (r == 0 && trainer)
			r = json_parse(trainer, strlen(trainer), path, &t, err);
		if (r == 0)
			r = checkpoint_state_parse(path, j, t, &s->resumed, &s->resumed_owner, err);
		s->resume_path = steal_pointer(path);
	}
	return ranks_agree(ranks, r, broken, err);
}

/* All ranks learn which checkpoint there is: its step, or -1. */
static int share_found(struct saver *s, const struct ranks *ranks, int *root, bool *unusable,
                       struct error *err)
{
	struct {
		int64_t step, tokens, examples;
		struct loss_scaler loss_scaler;
	} found = {0};
	bool broken;
	int r;

	*unusable = false;
	if ((r = find_newest(s, ranks, &found.step, root, err)) < 0)
		return r;
	s->resumes = found.step >= 0;
	s->resumed.step = MAX(found.step, 0);
	if (s->resumes && *root != 0 && (r = receive_state(s, ranks, found.step, *root, &broken, err)) < 0) {
		*unusable = !broken;
		s->resumed.step = found.step;
		return r;
	}
	found.tokens = s->resumed.tokens;
	found.examples = s->resumed.examples;
	found.loss_scaler = s->resumed.loss_scaler;
	if ((r = ranks_broadcast(ranks, NULL, &found, sizeof(found), 0, err)) < 0)
		return r;
	s->resumed.step = MAX(found.step, 0);
	s->resumed.tokens = found.tokens;
	s->resumed.examples = found.examples;
	s->resumed.loss_scaler = found.loss_scaler;
	return 0;
}

static int open_found(struct saver *s, const struct ranks *ranks, int root, bool *unusable, struct error *err)
{
	_cleanup_free_ char *path = checkpoint_path(s, s->resumed.step);

	*unusable = false;
	return path ? resume_open(ranks, root, path, &s->resume, unusable, err) : error_oom(err);
}

static int no_checkpoint(const struct saver *s, const struct error *damage, struct error *err)
{
	if (damage->code < 0)
		return error_set(err, damage->code,
		                 "%.600s; %s has no older checkpoint (output.resume = \"never\" with "
		                 "output.overwrite = true starts again)",
		                 damage->message, directory_of(s));
	return s->writer ? check_must(s, err) : 0;
}

int saver_find(struct saver *s, struct device *dev, struct comm *comm, struct error *err)
{
	struct ranks ranks = {dev, comm, s->o.node};
	struct error damage = ERROR_INIT;
	bool unusable, broken;
	int64_t step;
	int r, root = 0;

	if ((r = open_places(s, &ranks, err)) < 0)
		return r;
	/* Rank 0 has looked before the ranks connected. */
	r = s->writer ? 0 : look(s, INT64_MAX, err);
	while ((r = ranks_agree(&ranks, r, &broken, err)) == 0) {
		r = share_found(s, &ranks, &root, &unusable, err);
		if (r == 0 && !s->resumes)
			return ranks_agree(&ranks, no_checkpoint(s, &damage, err), &broken, err);
		if (r == 0 && damage.code < 0 && s->writer)
			notify(s, "warning: %s; resuming from the checkpoint before it", damage.message);
		if (r == 0)
			r = open_found(s, &ranks, root, &unusable, err);
		if (r == 0 || !unusable)
			return r;
		if (r != -ESTALE)
			damage = *err;
		else if (s->writer)
			notify(s, "%s, since the save was interrupted: it is not used", err->message);
		step = s->resumed.step;
		if (s->writer)
			forget_checkpoint(s);
		r = look(s, step, err);
	}
	return r;
}

bool saver_resumes(const struct saver *s)
{
	return s->resumes;
}

int saver_resume(struct saver *s, const struct weights_place *place, struct error *err)
{
	int r = resume_read(s->resume, place, err);

	resume_close(s->resume);
	s->resume = NULL;
	return r;
}

const char *saver_resume_path(const struct saver *s)
{
	return s->resume_path;
}

const struct checkpoint_state *saver_resume_state(const struct saver *s)
{
	return &s->resumed;
}

/* ---- who writes what ---- */

static int list_shares(struct saver *s, struct error *err)
{
	s->shares = calloc((size_t)s->places.n, sizeof(*s->shares));
	if (!s->shares)
		return error_oom(err);
	for (int i = 0; i < s->places.n; i++)
		s->shares[i] = s->places.writer[i] == 0;
	return 0;
}

/* Each part of the state has to be held by a rank that finds the directory of rank 0; or all ranks write to
 * directories of their nodes; or rank 0 gathers what the others hold. */
static int check_shares(struct saver *s, struct error *err)
{
	int n = ranks_size(&s->ranks), degree = save_plan_degree(&s->from.parameters, n), homeless = -1;
	bool whole = true;

	for (int first = 0; first < degree; first++) {
		bool some = false;

		for (int i = first; i < n; i += degree)
			some = some || s->shares[i];
		whole = whole && some;
	}
	for (int i = 0; i < n && homeless < 0; i++)
		homeless = s->places.writer[i] < 0 ? i : -1;
	s->gathers = !whole && s->o.gather;
	s->local = !whole && !s->o.gather;
	if (!s->local || homeless < 0)
		return 0;
	return error_set(err, -EINVAL,
	                 "rank %d holds a part of the model, does not find what rank 0 writes to output.dir "
	                 "%s, and cannot write to a directory of that name itself; expected a directory that "
	                 "all nodes share, one on each node, or output.gather = true",
	                 homeless, directory_of(s));
}

static struct save_plan_options plan_options(const struct saver *s, bool state)
{
	return (struct save_plan_options){.rank = s->o.rank,
	                                  .world_size = ranks_size(&s->ranks),
	                                  .shares = s->shares,
	                                  .gathers = s->gathers,
	                                  .gathers_model = s->local,
	                                  .type = s->from.precision,
	                                  .state = state,
	                                  .master = s->from.precision != DTYPE_F32 && s->from.master,
	                                  .max_shard_bytes = s->o.max_shard_bytes};
}

static int plan_checkpoints(struct saver *s, struct error *err)
{
	struct save_plan_options o = plan_options(s, true);
	int r = save_plan_create(&s->from.parameters, &o, &s->plan, err);

	if (r < 0 || !s->o.background || s->gathers || s->o.save_steps == 0)
		return r;
	s->copy = malloc(s->plan->bytes + 1);
	if (!s->copy)
		return error_oom(err);
	/* The first checkpoint is not to wait for the kernel to find the pages. Zeros would be calloc's,
	 * which touches none. */
	memset(s->copy, 0xff, s->plan->bytes + 1);
	return 0;
}

int saver_attach(struct saver *s, const struct saver_contents *contents, struct error *err)
{
	int r;

	s->from = *contents;
	s->ranks = (struct ranks){contents->dev, contents->comm, s->o.node};
	s->fingerprint = strdup(contents->fingerprint);
	s->history =
	    json_is_array(s->resumed.log_history) ? json_incref(s->resumed.log_history) : json_array();
	if (!s->fingerprint || !s->history)
		return error_oom(err);
	s->from.fingerprint = s->fingerprint;
	if (contents->comm &&
	    ((r = device_alloc(contents->dev, (size_t)ranks_size(&s->ranks) * sizeof(struct saving_record),
	                       &s->records, err)) < 0 ||
	     (r = open_places(s, &s->ranks, err)) < 0 || (r = list_shares(s, err)) < 0 ||
	     (r = check_shares(s, err)) < 0))
		return r;
	return plan_checkpoints(s, err);
}

void saver_resumed(struct saver *s, int64_t step)
{
	s->saved_step = step;
}

/* ---- saving ---- */

int saver_log(struct saver *s, const struct checkpoint_log *log, struct error *err)
{
	return s->writer ? checkpoint_log_add(s->history, log, err) : 0;
}

static struct checkpoint_state state_at(const struct saver *s, const struct saver_progress *at)
{
	return (struct checkpoint_state){
	    .step = at->step,
	    .steps = at->steps,
	    .epoch = at->epoch,
	    .epochs = s->o.epochs,
	    .tokens = s->resumed.tokens + at->tokens,
	    .examples = at->examples,
	    .world_size = s->o.world_size,
	    .micro_batch = s->o.micro_batch,
	    .log_steps = s->o.log_steps,
	    .eval_steps = s->o.eval_steps,
	    .save_steps = s->o.save_steps,
	    .seed = s->o.seed,
	    .fingerprint = s->from.fingerprint,
	    .precision = s->from.precision_name,
	    .strategy = s->from.strategy,
	    .optimizer = s->from.optimizer,
	    .loss_scaler = at->loss_scaler ? *at->loss_scaler : (struct loss_scaler){.scale = 0},
	    .log_history = json_deep_copy(s->history),
	};
}

/* What is there besides the parameters; on other nodes that by which a run that starts there finds the
 * checkpoint. */
static int save_files(void *context, struct error *err)
{
	struct saver *s = context;
	struct hf_save_options o = {
	    .config = s->o.config,
	    .source = s->o.source,
	    .tokenizer = s->o.tokenizer,
	    .adapter = s->from.adapter,
	    .type = s->from.precision,
	    .bos = s->from.bos,
	    .eos = s->from.eos,
	    .pad = s->from.pad,
	};
	int r;

	if (!s->writer)
		return checkpoint_resume_state_save(s->tmp, &s->state, err);
	r = hf_save_files(s->tmp, &o, err);
	return r < 0 ? r : checkpoint_state_save(s->tmp, &s->state, !s->final, err);
}

static int write_index(const struct saver *s, const struct manifest_index *index, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(s->tmp, MANIFEST_INDEX);
	_cleanup_free_ char *text = manifest_index_text(index);

	return path && text ? file_write_atomic(path, text, strlen(text), 0644, err) : error_oom(err);
}

/* An older attempt must not replace what a newer one wrote. */
static int publish(void *context, const struct manifest_index *index, struct error *err)
{
	struct saver *s = context;
	const char *dir = directory_of(s);
	int r;

	if ((index && (r = write_index(s, index, err)) < 0) || (r = claim_check(&s->o.claim, err)) < 0)
		return r;
	if (s->final)
		return checkpoint_publish_files(dir, s->tmp, err);
	r = checkpoint_publish(dir, s->name, s->tmp, err);
	/* Until rank 0 has published, too, the checkpoints before this one are the newest: see saver_poll. */
	return r < 0 || !s->writer ? r : checkpoint_prune(dir, s->o.keep, s->state.step, err);
}

/* Makes the directory, which the others find once this has returned on rank 0. */
static int make_directory(struct saver *s, struct error *err)
{
	_cleanup_free_ char *inner = str_path_join(s->tmp, "dtrain");
	int r = inner ? checkpoint_begin(s->tmp, err) : error_oom(err);

	if (r < 0 || s->final)
		return r;
	return mkdir(inner, 0777) < 0 ? error_errno(err, -errno, "cannot make directory %s", inner) : 0;
}

static void list_files(struct saver *s, const struct save_plan *plan)
{
	s->n_listed = 0;
	if (s->final)
		return;
	s->listed[s->n_listed++] = "trainer_state.json";
	s->listed[s->n_listed++] = "dtrain/state.json";
	if (plan->model.index)
		s->listed[s->n_listed++] = "model.safetensors.index.json";
}

static int start(struct saver *s, const struct save_plan *plan, const struct saver_progress *at,
                 struct error *err)
{
	bool publishes = s->writer || (s->publishes && !s->final);
	struct saving_job job = {.ranks = s->ranks,
	                         .staging = s->records,
	                         .timeout_s = s->o.timeout_s,
	                         .interval_s = MIN(1, 0.2 * s->o.timeout_s),
	                         .plan = plan,
	                         .access = &s->from.parameters,
	                         .copy = s->final ? NULL : s->copy,
	                         .files = publishes ? save_files : NULL,
	                         .listed = s->listed,
	                         .publish = publishes ? publish : NULL,
	                         .context = s};
	bool broken;
	int r;

	s->started_at = clock_monotonic();
	s->name = s->final ? strdup("model") : str_printf("checkpoint-%" PRId64, at->step);
	s->tmp = s->name ? checkpoint_tmp(directory_of(s), s->name, s->o.claim.attempt) : NULL;
	s->state = state_at(s, at);
	if (!s->tmp || !s->state.log_history)
		return error_oom(err);
	list_files(s, plan);
	job.n_listed = s->n_listed;
	job.directory = s->tmp;
	r = publishes ? make_directory(s, err) : 0;
	if ((r = ranks_agree(&s->ranks, r, &broken, err)) < 0)
		return r;
	return saving_start(&job, &s->saving, err);
}

int saver_poll(struct saver *s, struct error *err)
{
	bool ended;
	int r;

	if (!s->saving)
		return 0;
	r = saving_poll(s->saving, &ended, err);
	if (r == 0 && !ended)
		return 0;
	if (r == 0 && !s->final)
		s->saved_step = s->state.step;
	if (r == 0 && s->publishes && !s->writer && !s->final)
		checkpoint_prune(directory_of(s), s->o.keep, s->state.step, NULL);
	if (r == 0 && s->writer)
		notify(s, "saved %s%s%s in %.1f s", s->final ? "the model in " : directory_of(s),
		       s->final ? "" : "/", s->final ? directory_of(s) : s->name,
		       clock_monotonic() - s->started_at);
	end_saving(s);
	return r;
}

int saver_wait(struct saver *s, struct error *err)
{
	struct timespec pause = {.tv_nsec = 5000000};
	int r;

	while ((r = saver_poll(s, err)) == 0 && s->saving)
		nanosleep(&pause, NULL);
	return r;
}

int saver_checkpoint(struct saver *s, const struct saver_progress *at, struct error *err)
{
	int r;

	if (at->step == s->saved_step || (s->saving && at->step == s->state.step))
		return 0;
	if ((r = saver_wait(s, err)) < 0)
		return r;
	s->final = false;
	if ((r = start(s, s->plan, at, err)) < 0)
		end_saving(s);
	return r < 0 || s->copy ? r : saver_wait(s, err);
}

int saver_final(struct saver *s, const struct saver_progress *at, struct error *err)
{
	_cleanup_(save_plan_freep) struct save_plan *plan = NULL;
	struct save_plan_options o = plan_options(s, false);
	int r;

	if ((r = saver_wait(s, err)) < 0 || (r = save_plan_create(&s->from.parameters, &o, &plan, err)) < 0)
		return r;
	s->final = true;
	r = start(s, plan, at, err);
	if (r == 0)
		r = saver_wait(s, err);
	end_saving(s);
	return r;
}

int64_t saver_saved_step(const struct saver *s)
{
	return s->saved_step;
}
