/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes one record of any kind of dataset: what a row is made of, with the labels that count. */
#include "engine/dataset/encoded.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "engine/dataset/convert.h"

int record_encoder_init(struct record_encoder *c, const struct dataset_options *o,
                        const struct tokenizer *tok, const struct template *template, struct error *err)
{
	*c = (struct record_encoder){.options = o, .tok = tok, .bos = -1};
	if (o->task != DATASET_PRETRAIN && template->stop_words[0] &&
	    tokenizer_token_to_id(tok, template->stop_words[0]) < 0) {
		_cleanup_free_ char *message =
		    str_printf("template %s: the tokenizer has no token %s; it is written "
		               "as plain text",
		               template->name, template->stop_words[0]);

		if (o->warn)
			o->warn(o->warn_context, message ? message : "");
	}
	if (o->task != DATASET_PRETRAIN)
		return encoder_init(&c->conversation,
		                    &(struct encoder_options){
		                        .system = o->system,
		                        .cutoff = o->max_length - (o->packing ? 1 : 0),
		                        .train_on_prompt = o->train_on_prompt,
		                        .mask_history = o->mask_history,
		                        .efficient_eos = o->efficient_eos,
		                    },
		                    tok, template, err);
	c->pretrain_eos = template_eos(template, tok);
	if (template && str_eq(template->name, "llama3") &&
	    tokenizer_token_to_id(tok, "<|end_of_text|>") >= 0)
		c->pretrain_eos = tokenizer_token_to_id(tok, "<|end_of_text|>");
	c->bos = tokenizer_adds_bos(tok) ? tokenizer_bos(tok) : -1;
	if (c->pretrain_eos < 0)
		return error_set(
		    err, -EINVAL,
		    "the tokenizer has no end token (eos_token), which has to stand between texts");
	return tokenizer_encode(tok, "\n", 1, false, &c->line_break, err);
}

void record_encoder_clear(struct record_encoder *c)
{
	token_list_free(&c->line_break);
}

/* A text that goes on with a document, behind a line break. With the line break in front it is not taken for
 * the beginning of a text, before which some tokenizers put a space; no token contains it and what follows,
 * so that the ids of the line break can be removed again. */
static int encode_more(const struct record_encoder *c, const struct text *t, struct token_list *out,
                       struct error *err)
{
	const struct token_list *line_break = &c->line_break;
	size_t begin = out->len, n = line_break->len;
	int r = tokenizer_encode(c->tok, t->data - 1, t->len + 1, false, out, err);

	if (r < 0)
		return r;
	if (out->len - begin >= n && memcmp(out->ids + begin, line_break->ids, n * sizeof(*out->ids)) == 0) {
		memmove(out->ids + begin, out->ids + begin + n, (out->len - begin - n) * sizeof(*out->ids));
		out->len -= n;
		return 0;
	}
	out->len = begin;
	return tokenizer_encode(c->tok, t->data, t->len, false, out, err);
}

/* As much of a text as a row that is not packed has room for, and at most a piece more. */
static int encode_start(const struct record_encoder *c, const struct text *t, struct token_list *out,
                        struct error *err)
{
	const char *end = t->data + t->len, *next = records_piece_end(t->data, end);
	int r = tokenizer_encode(c->tok, t->data, (size_t)(next - t->data), false, out, err);

	while (r >= 0 && next < end && out->len < (size_t)c->options->max_length) {
		struct text piece = {next, (size_t)(records_piece_end(next, end) - next)};

		r = encode_more(c, &piece, out, err);
		next += piece.len;
	}
	return r;
}

static int encode_document(const struct record_encoder *c, struct encoded_record *w, const struct example *e)
{
	bool packing = c->options->packing;
	struct text t = e->turns[0].content;
	int r = 0;

	if (t.len == 0)
		return error_set(&w->err, -EBADMSG, "the text is empty");
	if (!packing && c->bos >= 0 && token_list_add(&w->ids, &c->bos, 1) < 0)
		return error_oom(&w->err);
	if (w->continued)
		r = encode_more(c, &(struct text){w->record.data, w->record.len}, &w->ids, &w->err);
	else if (packing)
		r = tokenizer_encode(c->tok, t.data, t.len, false, &w->ids, &w->err);
	else
		r = encode_start(c, &t, &w->ids, &w->err);
	if (r < 0)
		return r;
	if (!w->record.more && token_list_add(&w->ids, &c->pretrain_eos, 1) < 0)
		return error_oom(&w->err);
	if (!packing && w->ids.len > (size_t)c->options->max_length) {
		w->ids.len = c->options->max_length;
		w->cut = true;
	}
	return 0;
}

bool record_encoder_prefers(const struct record_encoder *c)
{
	return c->options->task == DATASET_PAIRS || c->options->task == DATASET_LABELS;
}

/* Adds the prompt and an answer to the row of w, with the labels of the answer. */
static int add_document(struct encoded_record *w, const struct token_list *answer, int prompt_kept,
                        int answer_kept)
{
	const int32_t ignore = LABEL_IGNORE;
	size_t kept = MIN((size_t)answer_kept, answer->len);

	if (token_list_add(&w->ids, w->prompt.ids, prompt_kept) < 0 ||
	    token_list_add(&w->ids, answer->ids, kept) < 0)
		return -ENOMEM;
	for (int i = 0; i < prompt_kept; i++)
		if (token_list_add(&w->labels, &ignore, 1) < 0)
			return -ENOMEM;
	return token_list_add(&w->labels, answer->ids, kept);
}

static void count_cut(struct encoded_record *w, int64_t tokens)
{
	w->cut_tokens += tokens;
	w->cut = w->cut_tokens > 0;
}

/* What add_document leaves out. */
static int64_t document_rest(const struct encoded_record *w, const struct token_list *answer, int prompt_kept,
                             int answer_kept)
{
	return (int64_t)(w->prompt.len - (size_t)prompt_kept + answer->len -
	                 MIN((size_t)answer_kept, answer->len));
}

/* The prompt and the answers of a preference; a pair gets its row, too. One cut for both answers, by the
 * longer of them, as LLaMA-Factory does. */
static int encode_preference(const struct record_encoder *c, struct encoded_record *w,
                             const struct example *e)
{
	bool pair = c->options->task == DATASET_PAIRS;
	int prompt, answer, r;

	w->desirable = e->desirable;
	w->margin = e->margin;
	r = encoder_answers(&c->conversation, e, &w->prompt, &w->answer, pair ? &w->rejected : NULL, &w->err);
	if (r < 0)
		return r;
	if (w->prompt.len == 0 || w->answer.len == 0 || (pair && w->rejected.len == 0))
		return error_set(&w->err, -EBADMSG, "the prompt or an answer is empty");
	if (!pair)
		return 0;
	encoder_budget(w->prompt.len, MAX(w->answer.len, w->rejected.len), c->conversation.cutoff, &prompt,
	               &answer);
	if (prompt == 0 || answer == 0)
		return error_set(&w->err, -EBADMSG,
		                 "data.max_length leaves nothing of the prompt or answers");
	if (add_document(w, &w->answer, prompt, answer) < 0)
		return error_oom(&w->err);
	w->second = w->ids.len;
	count_cut(w, document_rest(w, &w->answer, prompt, answer) +
	                 document_rest(w, &w->rejected, prompt, answer));
	return add_document(w, &w->rejected, prompt, answer) < 0 ? error_oom(&w->err) : 0;
}

int record_add_other_answer(const struct record_encoder *c, struct encoded_record *w,
                            const struct token_list *other)
{
	const struct token_list *answers[] = {&w->answer, other};
	int r = 0;

	for (int i = 0; r == 0 && i < 2; i++) {
		int prompt, answer;

		w->second = w->ids.len;
		encoder_budget(w->prompt.len, answers[i]->len, c->conversation.cutoff, &prompt, &answer);
		r = add_document(w, answers[i], MAX(prompt, 1), MAX(answer, 1));
		if (i == 0)
			count_cut(w, document_rest(w, answers[i], MAX(prompt, 1), MAX(answer, 1)));
	}
	return r;
}

/* The answer is not for the model: it is kept as it is, for what compares completions with it. */
static int encode_prompt(const struct record_encoder *c, struct encoded_record *w, const struct example *e)
{
	const struct text *answer = &e->turns[e->count - 1].content;
	int r = encoder_prompt(&c->conversation, e, &w->prompt, &w->err);

	/* A tokenizer may change a text. */
	for (size_t i = 0; r == 0 && i < answer->len; i++)
		r = token_list_add(&w->answer, &(int32_t){(unsigned char)answer->data[i]}, 1) < 0
		        ? error_oom(&w->err)
		        : 0;
	if (r < 0)
		return r;
	if (w->prompt.len == 0 || (e->count == 2 && e->turns[0].content.len == 0))
		return error_set(&w->err, -EBADMSG, "the prompt is empty");
	if (w->prompt.len > (size_t)c->options->max_length)
		return error_set(&w->err, -EBADMSG,
		                 "the prompt has %zu tokens, and there is room for %d (data.max_length, "
		                 "max_position_embeddings)",
		                 w->prompt.len, c->options->max_length);
	return add_document(w, &w->answer, (int)w->prompt.len, (int)w->answer.len) < 0 ? error_oom(&w->err)
	                                                                               : 0;
}

static int encode_conversation(const struct record_encoder *c, struct encoded_record *w,
                               const struct example *e)
{
	int64_t cut = 0;
	int r = encoder_conversation(&c->conversation, e, &w->ids, &w->labels, &cut, &w->err);

	count_cut(w, cut);
	return r;
}

void record_encode(const struct record_encoder *c, struct encoded_record *w)
{
	struct example e = {0};
	char where[512];

	w->ids.len = w->labels.len = w->prompt.len = w->answer.len = w->rejected.len = 0;
	w->cut = false;
	w->cut_tokens = 0;
	snprintf(where, sizeof(where), "%s:%lld", records_where(w->file), (long long)w->record.line);
	w->result =
	    example_convert(w->source, c->options->task, w->record.data, w->record.len, where, &e, &w->err);
	if (w->result == 0) {
		w->result = c->options->task == DATASET_PRETRAIN  ? encode_document(c, w, &e)
		            : record_encoder_prefers(c)           ? encode_preference(c, w, &e)
		            : c->options->task == DATASET_PROMPTS ? encode_prompt(c, w, &e)
		                                                  : encode_conversation(c, w, &e);
		if (w->result < 0)
			error_prefix(&w->err, "%s", where);
	}
	example_clear(&e);
}

void encoded_record_clear(struct encoded_record *w)
{
	token_list_free(&w->ids);
	token_list_free(&w->labels);
	token_list_free(&w->prompt);
	token_list_free(&w->answer);
	token_list_free(&w->rejected);
}
