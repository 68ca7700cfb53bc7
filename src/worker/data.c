/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank of a training reads for itself: tokenizer, template and data. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/str.h"
#include "engine/chat/jinja.h"
#include "options/options.h"
#include "worker/training.h"

static void print_progress(void *context, const char *what, int64_t done, int64_t total)
{
	struct training *t = context;
	double now = clock_monotonic();
	char part[32], all[32];

	if (!training_first_rank(t) || now - t->printed_at < 5)
		return;
	t->printed_at = now;
	if (total > 0)
		printf("%s: %s of %s read\n", what, str_bytes(part, sizeof(part), done),
		       str_bytes(all, sizeof(all), total));
	else
		printf("%s\n", what);
}

static void print_warning(void *context, const char *message)
{
	if (training_first_rank(context))
		printf("warning: %s\n", message);
}

/* A document that is longer than the model has seen is no error, but is reported. */
static void warn_of_length(const struct training *t)
{
	int64_t row = options_row_tokens(t->c);

	if (training_first_rank(t) && run_task_rewards(t->c->task) && row > t->model.max_positions)
		printf("warning: data.max_length and %s.max_new_tokens are %" PRId64
		       " together, but the model's max_position_embeddings is %" PRId64
		       ": completions of long prompts are cut off before they have %s.max_new_tokens\n",
		       run_task_name(t->c->task), row, t->model.max_positions, run_task_name(t->c->task));
	else if (training_first_rank(t) && t->c->data.max_length > t->model.max_positions)
		printf("warning: data.max_length is %" PRId64
		       ", but the model's max_position_embeddings is %" PRId64 "\n",
		       t->c->data.max_length, t->model.max_positions);
}

/* transformers trains with it. */
static void warn_of_dropout(const struct training *t)
{
	if (training_first_rank(t) && t->model.dropout > 0)
		printf("warning: the dropout of %g in %s is not applied: only lora.dropout is\n",
		       t->model.dropout, t->config);
}

/* "the tokenized data of a.json and 2 others" */
static void name_data(struct training *t)
{
	char *const *names = t->c->data.path ? t->c->data.path : t->c->data.dataset;
	char others[48] = "";
	int64_t n = 0;

	while (names && names[n])
		n++;
	if (n > 1)
		snprintf(others, sizeof(others), " and %" PRId64 " other%s", n - 1, n > 2 ? "s" : "");
	snprintf(t->data_name, sizeof(t->data_name), "the tokenized data%s%.140s%s", n ? " of " : "",
	         n ? names[0] : "", others);
}

/* The token that transformers takes for padding, behind which a reward model does not read: that of the
 * model's config.json, or the one that is saved there where it names none. */
static int32_t padding(const struct training *t)
{
	return t->model.pad >= 0            ? t->model.pad
	       : tokenizer_pad(t->tok) >= 0 ? tokenizer_pad(t->tok)
	                                    : tokenizer_eos(t->tok);
}

/* The config.json of a base stays as it is when an adapter is saved. */
static void warn_of_padding(const struct training *t)
{
	if (training_first_rank(t) && t->model.scores && t->model.pad < 0 &&
	    t->options.tuning.kind == TUNE_LORA)
		printf("warning: %s has no pad_token_id, and an adapter saves none: set model.config."
		       "pad_token_id = %d where transformers loads this adapter with its base\n",
		       t->config, t->options.preference.pad);
}

/* Each rank reads the model's config, the tokenizer and the data where it runs. */
static void digest_inputs(struct training *t)
{
	int32_t special[] = {tokenizer_bos(t->tok), tokenizer_eos(t->tok), tokenizer_pad(t->tok)};
	const char *other = options_other_path(t->c);
	struct agreement_item *in = t->inputs;

	/* Of what was read, not of the file, because other releases of transformers write other keys as
	 * well. */
	in[INPUT_CONFIG] =
	    (struct agreement_item){"the model's configuration", t->config, model_config_digest(&t->model)};
	in[INPUT_OTHER] = (struct agreement_item){
	    run_task_rewards(t->c->task) ? "the reward model's configuration" : "the teacher's configuration",
	    other ? other : "", other ? model_config_digest(&t->other) : 0};
	in[INPUT_TOKENIZER] = (struct agreement_item){
	    "the tokenizer", t->tokenizer, hash_bytes(special, sizeof(special), tokenizer_hash(t->tok))};
	in[INPUT_PADDING] = (struct agreement_item){
	    "pad_token_id", t->config, (uint64_t)(t->model.scores ? t->options.preference.pad : -1)};
	in[INPUT_DATA] =
	    (struct agreement_item){t->data_name, dataset_path(t->data), dataset_digest(t->data)};
	in[INPUT_EVAL] = (struct agreement_item){t->data_name, "", 0};
	if (t->eval)
		in[INPUT_EVAL] =
		    (struct agreement_item){t->data_name, dataset_path(t->eval), dataset_digest(t->eval)};
}

/* What data.max_length has left out of the examples of both splits. */
static void print_cut(const struct training *t, int64_t examples)
{
	int64_t cut = dataset_cut_examples(t->data), rest = dataset_cut_tokens(t->data);
	char tokens[48];

	if (t->eval) {
		cut += dataset_cut_examples(t->eval);
		rest += dataset_cut_tokens(t->eval);
	}
	if (cut == 0)
		return;
	printf("cut: %" PRId64 " of %" PRId64 " examples are too long for data.max_length (%" PRId64 "): ",
	       cut, examples, t->c->data.max_length);
	if (rest > 0)
		printf("%s of them left out\n", str_count(tokens, sizeof(tokens), rest, "token"));
	else
		puts("the rest of each is left out");
}

/* How many prompts have an answer, which their rewards may be meant to depend on. */
static void print_answers(const struct training *t)
{
	int64_t n = 0;

	if (!run_config_policy(t->c)->reward)
		return;
	for (int64_t i = 0; i < dataset_rows(t->data); i++)
		n += dataset_row_counted(t->data, i) > 0;
	if (n > 0)
		printf("answers: %" PRId64 " of %" PRId64 " prompts have one, for the reward program\n", n,
		       dataset_rows(t->data));
	else
		printf("answers: no prompt has one; where the data have some, name their column: %s\n",
		       "data.columns = { response = \"…\"; }");
}

static void print_data(const struct training *t)
{
	double fraction = t->c->data.eval_fraction;
	int64_t trained = dataset_examples(t->data), held_out = t->eval ? dataset_examples(t->eval) : 0;
	char examples[48], rows[48], tokens[48], part[32] = "";

	printf("data: %s in %s, %s\n", str_count(examples, sizeof(examples), trained, "example"),
	       str_count(rows, sizeof(rows), dataset_rows(t->data), "row"),
	       str_count(tokens, sizeof(tokens), dataset_tokens(t->data), "token"));
	print_cut(t, trained + held_out);
	if (fraction > 0 && fraction <= 1)
		snprintf(part, sizeof(part), "%g%% ", fraction * 100);
	if (t->eval)
		printf("%sheld out for evaluation: %" PRId64 " of %s\n", part, held_out,
		       str_count(examples, sizeof(examples), trained + held_out, "example"));
	else if (fraction > 0)
		printf("warning: what data.eval_fraction holds out makes no row: nothing is evaluated\n");
}

/* Answers of one kind alone move all probabilities one way. */
static void warn_of_labels(const struct training *t)
{
	int64_t kinds[2] = {0};

	for (int64_t i = 0; i < dataset_rows(t->data); i++) {
		struct dataset_row row;

		dataset_row(t->data, i, &row);
		kinds[row.label == 1]++;
	}
	if (kinds[0] == 0 || kinds[1] == 0)
		printf("warning: the label of each example is %s; kto learns from answers of both kinds\n",
		       kinds[1] ? "true" : "false");
}

/* ---- completions ---- */

/* What the template writes behind an answer, from the first token that ends one. */
static int find_closing(struct training *t, const struct template *template, struct error *err)
{
	struct policy_options *o = &t->options.policy;
	int32_t eos = template_eos(template, t->tok);
	struct token_list ids = {0};
	size_t first = 0;
	int r = template_encode(t->tok, eos, template_slots(template, ROLE_ASSISTANT), "", 0, &ids, err);

	while (r == 0 && first < ids.len && !token_list_has(&t->ends, ids.ids[first]))
		first++;
	for (size_t i = first; r == 0 && i < ids.len && o->closing_count < POLICY_CLOSING_MOST; i++)
		o->closing[o->closing_count++] = ids.ids[i];
	/* One whose words end no answer has the end of the text behind the last one. */
	if (r == 0 && o->closing_count == 0 && eos >= 0)
		o->closing[o->closing_count++] = eos;
	token_list_free(&ids);
	return r;
}

/* What ends a completion, and who gives it its reward. */
static int open_policy(struct training *t, const struct template *template, struct error *err)
{
	struct policy_options *o = &t->options.policy;
	int32_t eos = tokenizer_eos(t->tok);
	int r;

	if ((t->stops.len && token_list_add(&t->ends, t->stops.ids, t->stops.len) < 0) ||
	    (eos >= 0 && token_list_add(&t->ends, &eos, 1) < 0))
		return error_oom(err);
	if (t->ends.len == 0 && training_first_rank(t))
		printf("warning: neither the tokenizer nor the template has a token that ends an answer: all "
		       "completions have %s.max_new_tokens\n",
		       run_task_name(t->c->task));
	if ((r = find_closing(t, template, err)) < 0)
		return r;
	o->stops = t->ends.ids;
	o->stop_count = (int64_t)t->ends.len;
	o->ids = tokenizer_vocab_size(t->tok);
	o->on_rewards = completions_write;
	o->on_rewards_context = &t->completions;
	if (!run_config_policy(t->c)->reward)
		return 0;
	o->reward = rewards_give;
	o->reward_context = &t->rewards;
	return rewards_start(&t->rewards, t->c, t->tok, err);
}

/* Only conversations have one. The tokenizer that is saved gets it, too. */
static int choose_template(struct training *t, struct error *err)
{
	_cleanup_(template_choice_clear) struct template_choice choice = {.source = TEMPLATE_NAMED};
	const struct jinja_options how = {.efficient_eos = t->c->data.efficient_eos,
	                                  .without_thoughts = t->c->data.mask_history ||
	                                                      run_task_rewards(t->c->task) ||
	                                                      run_task_prefers(t->c->task)};
	int r;

	if (t->c->task == RUN_PRETRAIN)
		return 0;
	r = template_choose(t->c->data.template_, t->tok, &choice, err);
	if (r < 0)
		return r;
	if (training_first_rank(t))
		printf("template: %s (%s)\n", choice.template.name, choice.reason);
	if (t->c->task != RUN_REWARD && (r = template_stops(t->tok, &choice.template, &t->stops, err)) < 0)
		return r;
	if (run_task_rewards(t->c->task) && (r = open_policy(t, &choice.template, err)) < 0)
		return r;
	return jinja_for_training(&choice, t->tok, t->c->data.system, &how, &t->chat_template, err);
}

/* An id has to mean the same to both models; a directory may be without a tokenizer. */
static int check_other(const struct training *t, struct error *err)
{
	const char *path = options_other_path(t->c), *key = options_other_key(t->c);
	int64_t row = options_longest_row(t->c, &t->model);
	_cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
	struct error ignored = ERROR_INIT;
	int32_t added;
	int r;

	if (!path)
		return 0;
	r = tokenizer_limit(t->tok, t->tokenizer, t->other.vocab, err);
	if (r == 0)
		r = options_other_length(t->c, &t->other, err);
	if (r < 0)
		return error_prefix(err, "%s", key);
	if (training_first_rank(t) && row > t->other.max_positions)
		printf("warning: rows may have %" PRId64
		       " tokens, but max_position_embeddings of %s is %" PRId64 "\n",
		       row, key, t->other.max_positions);
	if (tokenizer_load(path, &tok, &ignored) < 0)
		return 0;
	if (tokenizer_compare(t->tok, tok, &added, err) < 0)
		return error_prefix(err, "%s: %s", key, path);
	if (training_first_rank(t) && added >= 0)
		printf("warning: %s: the added token %d is \"%s\" in %s, and \"%s\" in the "
		       "tokenizer of the run\n",
		       key, added, tokenizer_id_to_token(tok, added), path,
		       tokenizer_id_to_token(t->tok, added));
	return 0;
}

int training_open_data(struct training *t, struct error *err)
{
	const char *tokenizer = t->tokenizer;
	_cleanup_free_ char *cache = NULL;
	struct dataset_options o;
	int r;

	cache =
	    t->c->data.cache_dir ? strdup(t->c->data.cache_dir) : str_path_join(t->c->output.dir, "cache");
	if (!cache)
		return error_oom(err);
	if ((r = tokenizer_load(tokenizer, &t->tok, err)) < 0 ||
	    (r = tokenizer_limit(t->tok, tokenizer, t->model.vocab, err)) < 0 ||
	    (r = check_other(t, err)) < 0 || (r = choose_template(t, err)) < 0)
		return r;
	warn_of_length(t);
	warn_of_dropout(t);
	t->options.preference.pad = padding(t);
	warn_of_padding(t);
	options_dataset(t->c, cache, &o);
	/* A prompt has to leave room for a token. */
	if (run_task_rewards(t->c->task))
		o.max_length = (int)MIN(o.max_length, MAX(t->model.max_positions - 1, 1));
	o.progress = print_progress;
	o.warn = print_warning;
	o.progress_context = o.warn_context = t;
	r = dataset_open(&o, t->tok, &t->data, &t->eval, err);
	if (r == 0 && training_first_rank(t))
		print_data(t);
	if (r == 0 && training_first_rank(t) && run_task_rewards(t->c->task))
		print_answers(t);
	if (r == 0 && training_first_rank(t) && t->c->task == RUN_KTO)
		warn_of_labels(t);
	if (r == 0 && t->env->world_size > 1) {
		name_data(t);
		digest_inputs(t);
	}
	return r;
}
