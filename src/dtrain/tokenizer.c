/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain tokenizer train|encode|decode: works where it stands, without a service. */
#include "engine/tokenizer/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/complete.h"
#include "dtrain/options.h"
#include "engine/chat/exact_json.h"
#include "engine/dataset/reader.h"

static int fail(const struct error *err)
{
	return client_fail(EXIT_FAILURE, "%s", err->message);
}

/* ---- train ---- */

static const char chatml[] = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                             "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if "
                             "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* Texts of all files: a mapped text file piece by piece, or the "text" of each record of a .jsonl. */
struct texts {
	char **paths;
	int at, count;
	struct file_map map;
	size_t done;
	struct records *records; /* of a .jsonl */
	json_t *object;
	bool used;           /* a record of this file */
	struct error unused; /* of the first record of this file that cannot be used */
	int64_t skipped;     /* records that cannot be used, of all files */
	bool open;
};

#define TEXT_PIECE   (4u << 20)
#define WARNINGS_MAX 3

static void texts_close(struct texts *t)
{
	if (t->records)
		records_close(t->records);
	else if (t->open)
		file_map_close(&t->map);
	json_decref(t->object);
	t->records = NULL;
	t->object = NULL;
	t->open = false;
}

static int texts_open(struct texts *t, struct error *err)
{
	const char *path = t->paths[t->at];
	int r = str_ends(path, ".jsonl") ? records_open(path, RECORDS_JSON, &t->records, err)
	                                 : file_map_open(path, &t->map, err);

	t->open = r == 0;
	t->done = !t->records && t->open ? records_mark(t->map.data, t->map.len) : 0;
	t->used = false;
	t->unused = (struct error)ERROR_INIT;
	return r;
}

/* Pieces end at the end of a line, so that no word is cut. */
static bool next_piece(struct texts *t, const char **text, size_t *len)
{
	const char *data = t->map.data;
	size_t left = t->map.len - t->done, n = MIN(left, TEXT_PIECE);
	const char *end = n < left ? memrchr(data + t->done, '\n', n) : NULL;

	if (end)
		n = (size_t)(end - (data + t->done)) + 1;
	*text = data + t->done;
	*len = n;
	t->done += n;
	return n > 0;
}

/* The text of a record that is `where`. -EBADMSG: it has none. */
static int read_text(struct texts *t, const struct record *record, const char *where, const char **text,
                     size_t *len, struct error *err)
{
	int r;

	json_decref(t->object);
	if ((r = exact_json_parse(record->data, record->len, where, &t->object, err)) < 0)
		return r;
	if (json_need_string(t->object, "text", where, text, err) < 0)
		return -EBADMSG;
	*len = json_string_length(json_object_get(t->object, "text"));
	return 0;
}

/* A file of which no record can be used is an error, which is that of its first one. */
static int next_line(struct texts *t, const char **text, size_t *len, struct error *err)
{
	struct record record;
	int r;

	while ((r = records_next(t->records, &record, err)) > 0) {
		_cleanup_free_ char *where = str_printf("%s:%" PRId64, t->paths[t->at], record.line);
		struct error why = ERROR_INIT;

		r = where ? read_text(t, &record, where, text, len, &why) : error_oom(&why);
		if (r == 0)
			t->used = true;
		if (r == 0)
			return 1;
		if (!t->unused.code)
			t->unused = why;
		if (r != -EBADMSG) {
			*err = why;
			return r;
		}
		if (t->skipped++ < WARNINGS_MAX)
			client_fail(0, "skipped: %s", why.message);
	}
	if (r == 0 && !t->used && t->unused.code) {
		*err = t->unused;
		return err->code;
	}
	return r;
}

static int next_text(void *context, const char **text, size_t *len, struct error *err)
{
	struct texts *t = context;

	for (; t->at < t->count; t->at++) {
		int r = t->open ? 0 : texts_open(t, err);

		if (r < 0 || (r = t->records ? next_line(t, text, len, err) : next_piece(t, text, len)) != 0)
			return r;
		texts_close(t);
	}
	return 0;
}

struct shown {
	bool any;
	int64_t tokens; /* that there are so far */
};

static void show_progress(void *context, int64_t done, int64_t total)
{
	struct shown *shown = context;

	shown->tokens = done;
	if (!isatty(STDERR_FILENO))
		return;
	fprintf(stderr, "\r%lld of %lld tokens", (long long)done, (long long)total);
	shown->any = true;
}

static void print_trained(const char *directory, int64_t tokens, int64_t wanted, int64_t min_frequency)
{
	char rarer[64] = "";

	if (min_frequency > 1)
		snprintf(rarer, sizeof(rarer), " that occur %lld times or more", (long long)min_frequency);
	printf("%s: %lld tokens\n", directory, (long long)tokens);
	if (tokens < wanted)
		printf("only %lld of the %lld tokens of --vocab-size: the text has no more pairs to merge%s; "
		       "a longer "
		       "text has\n",
		       (long long)tokens, (long long)wanted, rarer);
}

static int read_template(const char *name, char **out, struct error *err)
{
	size_t len;

	*out = NULL;
	if (!name)
		return 0;
	if (str_eq(name, "chatml")) {
		*out = strdup(chatml);
		return *out ? 0 : error_oom(err);
	}
	return file_read(name, 16 << 20, out, &len, err);
}

/* The usual three first, then those given, each once. */
static int special_tokens(const struct option_list *given, struct option_list *all)
{
	static const char *const usual[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

	for (size_t i = 0; i < ARRAY_SIZE(usual); i++)
		if (option_list_add(all, usual[i]) < 0)
			return -ENOMEM;
	for (size_t i = 0; i < given->count; i++)
		if (option_list_add(all, given->items[i]) < 0)
			return -ENOMEM;
	return 0;
}

/* A tokenizer that is there may be that of a model, which no other one fits. */
static int refuse_existing(const char *directory, struct error *err)
{
	if (!file_exists_in(directory, "tokenizer.json"))
		return 0;
	return error_set(err, -EEXIST,
	                 "%s has a tokenizer already; choose another directory, or give --overwrite",
	                 directory);
}

static int train(struct client *client, int argc, char **argv)
{
	bool overwrite = false;
	const char *output = NULL, *chat_template = NULL, *bos = "<|im_start|>", *eos = "<|im_end|>",
	           *pad = "<|endoftext|>";
	int64_t vocab_size = 6400, min_frequency = 1;
	struct option_list given = {0}, all = {0};
	const struct option_spec specs[] = {
	    {'n', "vocab-size", OPTION_INT, &vocab_size, "N",
	     "tokens in all, special ones and the 256 bytes included (6400)"},
	    {'o', "output", OPTION_STRING, &output, "DIR", "where the tokenizer goes"},
	    {0, "special", OPTION_LIST, &given, "TOKEN",
	     "a special token beside <|endoftext|>, <|im_start|> and <|im_end|>; may be given again"},
	    {0, "bos", OPTION_STRING, &bos, "TOKEN", "the one that begins a text (<|im_start|>)"},
	    {0, "eos", OPTION_STRING, &eos, "TOKEN", "the one that ends a text (<|im_end|>)"},
	    {0, "pad", OPTION_STRING, &pad, "TOKEN", "the one that fills up (<|endoftext|>)"},
	    {0, "chat-template", OPTION_STRING, &chat_template, "chatml|FILE",
	     "the template of conversations: chatml, or a file with Jinja source"},
	    {0, "min-frequency", OPTION_INT, &min_frequency, "N",
	     "merge no pair that is rarer than this (1)"},
	    {0, "overwrite", OPTION_FLAG, &overwrite, NULL, "replace a tokenizer in DIR"},
	};
	const struct usage usage = {
	    "tokenizer train",
	    "FILE…",
	    "Trains a byte-level BPE on text files, or on the \"text\" of .jsonl files",
	    NULL,
	    specs,
	    ARRAY_SIZE(specs),
	    1,
	    -1,
	};
	_cleanup_free_ char *source = NULL;
	struct texts texts = {0};
	struct error err = ERROR_INIT;
	struct shown shown = {0};
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL), r;

	if (status != OPTIONS_DONE) {
		option_list_release(&given);
		return status;
	}
	status = EXIT_SUCCESS;
	texts.paths = argv + first;
	texts.count = argc - first;
	if (!output) {
		status = client_fail(STATUS_USAGE, "tokenizer train: --output DIR is needed");
	} else if (!overwrite && refuse_existing(output, &err) < 0) {
		/* err says so */
	} else if ((r = special_tokens(&given, &all)) < 0) {
		error_oom(&err);
	} else if (read_template(chat_template, &source, &err) == 0) {
		const struct tokenizer_train_options options = {
		    .vocab_size = (int32_t)MIN(vocab_size, INT32_MAX),
		    .special_tokens = all.items,
		    .bos = *bos ? bos : NULL,
		    .eos = *eos ? eos : NULL,
		    .pad = *pad ? pad : NULL,
		    .chat_template = source,
		    .min_frequency = min_frequency,
		    .progress = show_progress,
		    .progress_context = &shown,
		};

		tokenizer_train(&options, next_text, &texts, output, &err);
	}
	if (shown.any)
		fputc('\n', stderr);
	if (!err.code && texts.skipped > WARNINGS_MAX)
		client_fail(0, "skipped: %" PRId64 " records in all could not be used", texts.skipped);
	if (err.code)
		status = fail(&err);
	else if (status == EXIT_SUCCESS)
		print_trained(output, shown.tokens, vocab_size, min_frequency);
	texts_close(&texts);
	option_list_release(&given);
	option_list_release(&all);
	return status;
}

/* ---- encode and decode ---- */

/* The argument, or all of standard input where there is none or it is "-". */
static int read_input(const char *argument, char **text, size_t *len, struct error *err)
{
	struct strbuf b = {0};
	char chunk[65536];
	size_t n;

	if (argument && !str_eq(argument, "-")) {
		*text = strdup(argument);
		*len = strlen(argument);
		return *text ? 0 : error_oom(err);
	}
	while ((n = fread(chunk, 1, sizeof(chunk), stdin)) > 0)
		strbuf_add(&b, chunk, n);
	*len = b.len;
	*text = strbuf_steal(&b);
	if (!*text)
		return error_oom(err);
	return ferror(stdin) ? error_set(err, -EIO, "standard input can't be read") : 0;
}

/* One token as text; bytes that are no text of their own come out as the vocabulary has them. */
static json_t *token_json(const struct tokenizer *tok, int32_t id)
{
	const char *s = tokenizer_id_to_token(tok, id);

	return s ? json_string(s) : json_null();
}

static int print_ids(const struct tokenizer *tok, const struct token_list *ids, bool as_json)
{
	_cleanup_json_ json_t *numbers = json_array(), *tokens = json_array(), *object = NULL;
	_cleanup_free_ char *text = NULL;

	if (!as_json) {
		for (size_t i = 0; i < ids->len; i++)
			printf(i ? " %d" : "%d", ids->ids[i]);
		putchar('\n');
		return EXIT_SUCCESS;
	}
	for (size_t i = 0; i < ids->len; i++) {
		json_array_append_new(numbers, json_integer(ids->ids[i]));
		json_array_append_new(tokens, token_json(tok, ids->ids[i]));
	}
	object = json_pack("{s:O,s:O}", "ids", numbers, "tokens", tokens);
	text = object ? json_to_string(object) : NULL;
	if (!text)
		return client_fail(EXIT_FAILURE, "out of memory");
	puts(text);
	return EXIT_SUCCESS;
}

static int encode(struct client *client, int argc, char **argv)
{
	bool as_json = false, special = false;
	const struct option_spec specs[] = {
	    {0, "json", OPTION_FLAG, &as_json, NULL, "ids and tokens as JSON"},
	    {0, "add-special", OPTION_FLAG, &special, NULL,
	     "with the tokens that the tokenizer puts around a text"},
	};
	const struct usage usage = {
	    "tokenizer encode",
	    "DIR [TEXT|-]",
	    "Prints the ids of a text, or of standard input",
	    NULL,
	    specs,
	    ARRAY_SIZE(specs),
	    1,
	    2,
	};
	_cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
	_cleanup_free_ char *text = NULL;
	struct token_list ids = {0};
	struct error err = ERROR_INIT;
	size_t len;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	if (tokenizer_load(argv[first], &tok, &err) < 0 ||
	    read_input(first + 1 < argc ? argv[first + 1] : NULL, &text, &len, &err) < 0 ||
	    tokenizer_encode(tok, text, len, special, &ids, &err) < 0)
		status = fail(&err);
	else
		status = print_ids(tok, &ids, as_json);
	token_list_free(&ids);
	return status;
}

/* Ids apart by blanks or commas; a JSON list too. */
static int read_ids(const char *text, struct token_list *ids, struct error *err)
{
	static const char between[] = " \t\r\n,[]";

	for (const char *p = text + strspn(text, between); *p; p += strspn(p, between)) {
		size_t n = strcspn(p, between);
		_cleanup_free_ char *word = strndup(p, n);
		int64_t v;
		int32_t id;

		if (!word)
			return error_oom(err);
		if (str_to_int64(word, 0, INT32_MAX, &v) < 0)
			return error_set(err, -EINVAL,
			                 "\"%.40s\" is no id; whole numbers from 0 on are needed", word);
		id = (int32_t)v;
		if (token_list_add(ids, &id, 1) < 0)
			return error_oom(err);
		p += n;
	}
	return 0;
}

static int decode_ids(const struct tokenizer *tok, const char *arguments, bool skip, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	struct token_list ids = {0};
	size_t len = 0;
	int r = read_ids(arguments, &ids, err);

	if (r == 0)
		r = tokenizer_decode(tok, ids.ids, ids.len, skip, &text, &len, err);
	if (r == 0) {
		fwrite(text, 1, len, stdout);
		putchar('\n');
	}
	token_list_free(&ids);
	return r;
}

static int decode(struct client *client, int argc, char **argv)
{
	bool skip = false;
	const struct option_spec specs[] = {
	    {0, "skip-special", OPTION_FLAG, &skip, NULL, "leave special tokens out"},
	};
	const struct usage usage = {
	    "tokenizer decode",
	    "DIR [ID…|-]",
	    "Prints the text of ids, given or on standard input",
	    NULL,
	    specs,
	    ARRAY_SIZE(specs),
	    1,
	    -1,
	};
	_cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
	_cleanup_free_ char *text = NULL;
	_cleanup_strbuf_ struct strbuf words = {0};
	struct error err = ERROR_INIT;
	size_t len;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	for (int i = first + 1; i < argc; i++)
		strbuf_addf(&words, "%s ", argv[i]);
	if (words.failed)
		return client_fail(EXIT_FAILURE, "out of memory");
	if (tokenizer_load(argv[first], &tok, &err) < 0)
		return fail(&err);
	if (!words.data || str_eq(words.data, "- ")) {
		if (read_input(NULL, &text, &len, &err) < 0 || decode_ids(tok, text, skip, &err) < 0)
			return fail(&err);
		return EXIT_SUCCESS;
	}
	return decode_ids(tok, words.data, skip, &err) < 0 ? fail(&err) : EXIT_SUCCESS;
}

int cmd_tokenizer(struct client *client, int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(struct client *client, int argc, char **argv);
	} parts[] = {{"train", train}, {"encode", encode}, {"decode", decode}};
	static const char help[] = "Usage: dtrain tokenizer train|encode|decode [OPTION…] [ARGUMENT…]\n"
	                           "Trains a tokenizer, or tries one.\n\n"
	                           "  train --vocab-size N --output DIR FILE…  train a byte-level BPE\n"
	                           "  encode DIR [TEXT|-]                      print the ids of a text\n"
	                           "  decode DIR [ID…|-]                       print the text of ids\n\n"
	                           "\"dtrain tokenizer train --help\" tells more about each.\n";

	if (client->completing && argc == 2) {
		for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
			complete_offer(argv[1], parts[i].name, NULL);
		return EXIT_SUCCESS;
	}
	if (argc > 1 && (str_eq(argv[1], "--help") || str_eq(argv[1], "-h"))) {
		fputs(help, stdout);
		return EXIT_SUCCESS;
	}
	for (size_t i = 0; argc > 1 && i < ARRAY_SIZE(parts); i++)
		if (str_eq(argv[1], parts[i].name))
			return parts[i].run(client, argc - 1, argv + 1);
	for (size_t i = 0; argc > 1 && i < ARRAY_SIZE(parts); i++)
		if (str_distance(argv[1], parts[i].name) <= 2)
			return client_fail(STATUS_USAGE, "tokenizer: there is no \"%s\"; did you mean %s?",
			                   argv[1], parts[i].name);
	if (argc > 1)
		client_fail(0, "tokenizer: there is no \"%s\"", argv[1]);
	fputs(help, stderr);
	return STATUS_USAGE;
}
