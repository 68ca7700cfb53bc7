/* SPDX-License-Identifier: Apache-2.0 */
/* Tests dataset/: data files become rows of tokens with masks, which are packed, split and cached. */
#include "engine/dataset/cache.h"
#include <dirent.h>
#include <sys/wait.h>

#include "dataset_fixture.h"
#include "failing_memory.h"

START_TEST(test_masks)
{
	const char *path = put("a.json", "[{\"instruction\":\"Q\",\"input\":\"I\",\"output\":\"A\","
	                                 "\"history\":[[\"q\",\"a\"]],\"system\":\"\"}]");
	struct notes notes = {0};
	struct dataset_options o = options(path, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	struct dataset *d;

	o.template_name = "mistral";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_row(d, 0,
	       "<s>[INST] q[/INST] a</s>[INST] Q\nI[/INST] A</s>|"
	       "________________ a</s>_________________ A</s>_");
	dataset_close(d);
	o.mask_history = true;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_row(d, 0,
	       "<s>[INST] q[/INST] a</s>[INST] Q\nI[/INST] A</s>|"
	       "____________________________________ A</s>_");
	dataset_close(d);
	o.mask_history = false;
	o.train_on_prompt = true;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_row(d, 0,
	       "<s>[INST] q[/INST] a</s>[INST] Q\nI[/INST] A</s>|"
	       "_[INST] q[/INST] a</s>[INST] Q\nI[/INST] A</s>_");
	dataset_close(d);
	o.train_on_prompt = false;
	/* A template without text for the end of an answer. */
	o.template_name = "default";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_row(d, 0,
	       "Human: q</s>\nAssistant:a</s>\nHuman: Q\nI</s>\nAssistant:A</s>\n|"
	       "____________________a</s>\n______________________A</s>\n_");
	dataset_close(d);
	o.template_name = "mistral";
	o.efficient_eos = true;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_row(d, 0,
	       "<s>[INST] q[/INST] a[INST] Q\nI[/INST] A</s>|"
	       "________________ a</s>________________ A</s>_");
	dataset_close(d);
	o.template_name = "chatml";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err,
	         "efficient_eos does not go with template chatml");
	o.efficient_eos = false;
	o.mask_history = o.train_on_prompt = true;
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "exclude each other");
}
END_TEST

START_TEST(test_tools)
{
	const char *path = put(
	    "t.json",
	    "[{\"conversations\":[{\"from\":\"system\",\"value\":\"S\"},{\"from\":\"human\",\"value\":\"u\"},"
	    "{\"from\":\"function_call\",\"value\":\"{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{\\\"x\\\":0."
	    "1}}\"},"
	    "{\"from\":\"observation\",\"value\":\"o\"},{\"from\":\"gpt\",\"value\":\"g\"}],"
	    "\"tools\":\"[{\\\"name\\\":\\\"f\\\"}]\"}]");
	struct notes notes = {0};
	struct dataset_options o = options(path, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	struct dataset_row row;
	struct dataset *d;
	char *text;

	o.template_name = "qwen";
	o.max_length = 4000;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	dataset_row(d, 0, &row);
	text = stub_text(row.ids, row.length);
	ck_assert_ptr_nonnull(strstr(text, "<|im_start|>system\nS\n\n# Tools\n"));
	ck_assert_ptr_nonnull(
	    strstr(text, "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>"));
	ck_assert_ptr_nonnull(strstr(
	    text, "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 0.1}}\n"
	          "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\no\n</tool_response>"));
	free(text);
	dataset_close(d);

	/* The same as OpenAI's messages. */
	o.paths = (const char *[]){
	    put("o.jsonl",
	        "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":[{"
	        "\"type\":"
	        "\"text\",\"text\":\"u\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"
	        "\"type\":"
	        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":0.1}\"}}]},"
	        "{\"role\":\"tool\",\"content\":\"o\"},{\"role\":\"assistant\",\"content\":\"g\"}],"
	        "\"tools\":[{\"name\":\"f\"}]}\n"),
	    NULL};
	{
		_cleanup_(dataset_closep) struct dataset *e = NULL, *f = NULL;
		struct dataset_row a, b;
		struct dataset_options p = options(path, &notes);

		p.template_name = "qwen";
		p.max_length = 4000;
		ck_ok(dataset_open(&p, &tok, &f, NULL, &err), &err);
		only[0] = NULL;
		ck_ok(dataset_open(&o, &tok, &e, NULL, &err), &err);
		dataset_row(e, 0, &a);
		dataset_row(f, 0, &b);
		ck_assert_int_eq(a.length, b.length);
		ck_assert_int_eq(memcmp(a.ids, b.ids, 4 * a.length), 0);
		ck_assert_int_eq(memcmp(a.targets, b.targets, 4 * a.length), 0);
	}
}
END_TEST

/* ---
 * whole datasets -------------------------------------------------------------------------------------- */

START_TEST(test_packing)
{
	const char *path = put("p.jsonl", "{\"instruction\":\"1\",\"output\":\"aaaa\"}\n"
	                                  "{\"instruction\":\"2\",\"output\":\"b\"}\n"
	                                  "{\"instruction\":\"3\",\"output\":\"c\"}\n");
	struct notes notes = {0};
	struct dataset_options o = options(path, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	struct dataset_row row;
	struct dataset *d;

	/* In template empty these are 5, 2 and 2 tokens. */
	o.template_name = "empty";
	o.packing = true;
	o.max_length = 7; /* 6 to fill */
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 2);
	ck_assert_int_eq(dataset_examples(d), 3);
	ck_row(d, 0, "1aaaa|_aaaa_");
	ck_row(d, 1, "3c2b|_c_b_");
	dataset_row(d, 1, &row);
	ck_assert_int_eq(row.documents, 2);
	ck_assert_int_eq(row.starts[0], 0);
	ck_assert_int_eq(row.starts[1], 2);
	ck_assert_int_eq(row.starts[2], 4);
	ck_assert_int_eq(row.counted, 2);
	ck_assert_int_eq(dataset_row_counted(d, 1), 2);
	ck_assert_int_eq(dataset_max_row(d), 5);
	ck_assert_int_eq(dataset_tokens(d), 9);
	dataset_close(d);
	o.cross_documents = true;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	dataset_row(d, 1, &row);
	ck_assert_int_eq(row.documents, 1);
	ck_assert_int_eq(row.starts[1], 4);
	dataset_close(d);
}
END_TEST

/* What is cut is counted with the rows, in turns that are left out as a whole, too. */
START_TEST(test_cut)
{
	static const struct {
		int max_length;
		bool packing;
		int64_t examples, tokens, kept;
	} cases[] = {{8, false, 0, 0, 14}, {4, false, 2, 4, 10}, {4, true, 2, 6, 8}, {8, true, 0, 0, 14}};
	const char *path = put("cut.jsonl", "{\"instruction\":\"1\",\"output\":\"aaaa\"}\n"
	                                    "{\"instruction\":\"2\",\"output\":\"b\"}\n"
	                                    "{\"instruction\":\"3\",\"output\":\"c\",\"history\":[[\"4\","
	                                    "\"dddd\"]]}\n");
	struct notes notes = {0};
	struct dataset_options o = options(path, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	struct dataset *d;

	o.template_name = "empty"; /* 5, 2 and 7 tokens */
	for (size_t i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
		o.max_length = cases[i / 2].max_length;
		o.packing = cases[i / 2].packing;
		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		ck_assert_int_eq(notes.builds,
		                 (int)i / 2 + 1); /* the second time, the rows are in the cache */
		ck_assert_int_eq(dataset_examples(d), 3);
		ck_assert_int_eq(dataset_cut_examples(d), cases[i / 2].examples);
		ck_assert_int_eq(dataset_cut_tokens(d), cases[i / 2].tokens);
		ck_assert_int_eq(dataset_tokens(d), cases[i / 2].kept);
		dataset_close(d);
	}
	o.max_length = 4;
	o.packing = false;
	o.mask_history = true; /* the last turn comes first */
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_cut_examples(d), 2);
	ck_assert_int_eq(dataset_cut_tokens(d), 4);
	dataset_close(d);
}
END_TEST

START_TEST(test_pretrain)
{
	const char *path = put("p.txt", "abc\n\nde\nfghij\n");
	struct notes notes = {0};
	struct dataset_options o = options(path, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {.adds_bos = true};
	struct dataset_row row;
	struct dataset *d;

	o.task = DATASET_PRETRAIN;
	o.template_name = NULL;
	o.max_length = 5;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 3);
	ck_row(d, 0, "<s>abc</s>|_abc</s>_");
	ck_row(d, 2, "<s>fghi|_fghi_");
	ck_assert_int_eq(dataset_cut_examples(d), 1);
	ck_assert_int_eq(dataset_cut_tokens(d), 0);
	dataset_close(d);
	o.packing = true; /* abc$d e$fgh ij$ */
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 3);
	ck_assert_int_eq(dataset_cut_examples(d), 0);
	ck_row(d, 2, "<s>j</s>|_j</s>_");
	ck_row(d, 0, "<s>bc</s>d|_bc</s>__");
	ck_row(d, 1, "<s></s>fgh|_</s>_gh_");
	dataset_row(d, 1, &row);
	ck_assert_int_eq(row.documents, 2);
	ck_assert_int_eq(row.starts[1], 2);
	dataset_close(d);
	o.cross_documents = true;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_row(d, 1, "<s></s>fgh|_</s>fgh_");
	dataset_close(d);
	o.format = "files";
	o.max_length = 100; /* less than a block: one short row */
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 1);
	ck_row(d, 0, "<s>bc\n\nde\nfghij</s>|_bc\n\nde\nfghij</s>_");
	dataset_close(d);
	o.format = "paragraphs";
	o.cross_documents = false;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	dataset_row(d, 0, &row);
	ck_assert_int_eq(row.documents, 2);
	dataset_close(d);
	o.paths = (const char *[]){put("q.jsonl", "{\"text\":\"xy\"}\n{\"text\":\"\"}\n"), NULL};
	o.format = NULL;
	o.packing = false;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 1);
	ck_row(d, 0, "<s>xy</s>|_xy</s>_");
	ck_assert_int_eq(notes.warnings, 1);
	dataset_close(d);
}
END_TEST

/* A long document is encoded as a whole, though its pieces are, where it is packed. */
START_TEST(test_long_document)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	struct error err = ERROR_INIT;
	struct tokenizer tok = {.space_first = true};
	struct notes notes = {0};
	struct dataset_options o;

	for (int i = 0; i < 30000; i++)
		strbuf_addf(&text, "line %d\n", i);
	strbuf_adds(&text, "end");
	o = options(put("long.txt", text.data), &notes);
	o.task = DATASET_PRETRAIN;
	o.template_name = NULL;
	o.format = "files";
	for (int packing = 0; packing < 2; packing++) {
		_cleanup_(dataset_closep) struct dataset *d = NULL;
		_cleanup_free_ char *got = NULL;
		struct dataset_row row;

		o.packing = packing;
		o.max_length = text.len + 2; /* the space in front, and the end token */
		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		ck_assert_int_eq(dataset_rows(d), 1);
		dataset_row(d, 0, &row);
		ck_assert_int_eq(row.length, text.len + 2);
		ck_assert_int_eq(row.documents, 1);
		got = stub_text(row.ids, row.length);
		ck_assert_int_eq(got[0], ' ');
		ck_assert(str_starts(got + 1, text.data));
		ck_assert_str_eq(got + 1 + text.len, "</s>");
	}
	/* Without packing it is cut at max_length alone. */
	{
		_cleanup_(dataset_closep) struct dataset *d = NULL;

		o.packing = false;
		o.max_length = 200000;
		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		ck_assert_int_eq(dataset_rows(d), 1);
		ck_assert_int_eq(dataset_examples(d), 1);
		ck_assert_int_eq(dataset_max_row(d), 200000);
	}
}
END_TEST

/* Every token of every batch is in a row, of both splits, in the order of the texts. */
START_TEST(test_blocks_of_batches)
{
	struct strbuf text = {0}, want[2] = {{0}}, got[2] = {{0}};
	struct dataset *d[2] = {NULL};
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	struct notes notes = {0};
	struct dataset_options o;
	int64_t held = 0, examples = 0;

	for (int i = 0; i < 3500; i++)
		strbuf_addf(&text, "%d\n", i);
	o = options(put("lines.txt", text.data), &notes);
	o.task = DATASET_PRETRAIN;
	o.template_name = NULL;
	o.packing = true;
	o.max_length = 9001; /* more than a batch of 1000 lines of 4 tokens; the held-out ones have less */
	o.eval_fraction = 0.01;
	ck_ok(dataset_open(&o, &tok, &d[0], &d[1], &err), &err);
	for (int k = 0; k < 2; k++) {
		ck_assert_ptr_nonnull(d[k]);
		examples += dataset_examples(d[k]);
		for (int64_t i = 0; i < dataset_rows(d[k]); i++) {
			struct dataset_row row;
			_cleanup_free_ char *part = NULL;

			dataset_row(d[k], i, &row);
			ck_assert_int_eq(row.length == 9001, i + 1 < dataset_rows(d[k]));
			part = stub_text(row.ids, row.length);
			strbuf_adds(&got[k], part);
			for (int n = 1; n < row.documents; n++)
				ck_assert_int_eq(row.ids[row.starts[n] - 1], 2);
		}
	}
	/* In order: a line is in the split whose text goes on with it. */
	for (int i = 0; i < 3500; i++) {
		_cleanup_free_ char *line = str_printf("%d</s>", i);
		int k = want[1].len < got[1].len && str_starts(got[1].data + want[1].len, line);

		strbuf_adds(&want[k], line);
		held += k;
	}
	strbuf_free(&text);
	ck_assert_int_eq(examples, 3500);
	ck_assert_int_eq(held, dataset_examples(d[1]));
	ck_assert_int_eq(held, 35);
	for (int k = 0; k < 2; k++) {
		ck_assert_str_eq(got[k].data, want[k].data);
		strbuf_free(&got[k]);
		strbuf_free(&want[k]);
		dataset_close(d[k]);
	}
}
END_TEST

static const char *many(int n)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	strbuf_adds(&b, "[");
	for (int i = 0; i < n; i++)
		strbuf_addf(&b, "%s\n{\"instruction\":\"%d\",\"input\":\"\",\"output\":\"a%d\"}",
		            i ? "," : "", i, i);
	strbuf_adds(&b, "]");
	return put("many.json", b.data);
}

START_TEST(test_split)
{
	struct notes notes = {0};
	struct dataset_options o = options(many(2345), &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	bool seen[2345] = {0};
	char first[2][64];

	o.template_name = "empty";
	for (int pass = 0; pass < 2; pass++) {
		struct dataset *parts[2];

		memset(seen, 0, sizeof(seen));
		o.eval_fraction = pass ? 100 : 0.1;
		ck_ok(dataset_open(&o, &tok, &parts[0], &parts[1], &err), &err);
		ck_assert_int_eq(dataset_rows(parts[1]), pass ? 100 : 235);
		ck_assert_int_eq(dataset_rows(parts[0]) + dataset_rows(parts[1]), 2345);
		for (int k = 0; k < 2; k++) {
			for (int64_t i = 0; i < dataset_rows(parts[k]); i++) {
				_cleanup_free_ char *text = row_text(parts[k], i);
				int n = atoi(text);

				n = atoi(strchr(text, 'a') + 1);
				ck_assert(!seen[n]);
				seen[n] = true;
			}
		}
		for (int i = 0; i < 2345; i++)
			ck_assert(seen[i]);
		{
			_cleanup_free_ char *text = row_text(parts[1], 0);

			snprintf(first[pass], sizeof(first[pass]), "%s", text);
		}
		dataset_close(parts[0]);
		dataset_close(parts[1]);
	}
	o.max_samples = 7;
	o.eval_fraction = 0;
	{
		_cleanup_(dataset_closep) struct dataset *d = NULL;

		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		ck_assert_int_eq(dataset_rows(d), 7);
		dataset_close(d);
		o.eval_fraction = 8;
		ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "none is left");
	}
}
END_TEST

START_TEST(test_cache)
{
	struct notes notes = {0};
	const char *path = many(50);
	struct dataset_options o = options(path, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	_cleanup_free_ char *command = str_printf("ls %s/*.train | wc -l", dir), *cut = NULL;
	struct dataset *d;

	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	dataset_close(d);
	ck_assert_int_eq(notes.builds, 1);
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	dataset_close(d);
	ck_assert_int_eq(notes.builds, 1);
	/* Truncated or overwritten: built again. */
	for (int i = 0; i < 2; i++) {
		cut = str_printf(i ? "for f in %s/*.train; do printf x | dd of=$f bs=1 seek=70 conv=notrunc "
		                     "2>/dev/null; done"
		                   : "for f in %s/*.train; do truncate -s -8 $f; done",
		                 dir);
		ck_assert_int_eq(system(cut), 0);
		free(cut);
		cut = NULL;
		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		ck_assert_int_eq(dataset_rows(d), 50);
		dataset_close(d);
		ck_assert_int_eq(notes.builds, 2 + i);
	}
	/* Other data, another tokenizer, another option: another cache. */
	many(51);
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 51);
	dataset_close(d);
	tok.hash = 1;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	dataset_close(d);
	o.max_length = 20;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_le(dataset_max_row(d), 20);
	dataset_close(d);
	ck_assert_int_eq(notes.builds, 6);
	/* Without a directory: a temporary one, which is removed. */
	o.cache_dir = NULL;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 51);
	dataset_close(d);
}
END_TEST

/* Several processes at once: one builds, all see the same rows. This has to be the first test: with
 * CK_FORK=no no OpenMP threads may exist yet, since a child process does not have them. */
START_TEST(test_processes)
{
	struct notes notes = {0};
	struct dataset_options o = options(many(5000), &notes);
	struct tokenizer tok = {0};
	int builds = 0;
	pid_t pids[4];

	for (int i = 0; i < 4; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			struct error err = ERROR_INIT;
			struct dataset *d;

			if (dataset_open(&o, &tok, &d, NULL, &err) < 0 || dataset_rows(d) != 5000)
				_exit(9);
			_exit(notes.builds);
		}
	}
	for (int i = 0; i < 4; i++) {
		int status;

		ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
		ck_assert(WIFEXITED(status) && WEXITSTATUS(status) < 2);
		builds += WEXITSTATUS(status);
	}
	ck_assert_int_eq(builds, 1);
}
END_TEST

static int flock_error; /* 0: locks work */

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation)
{
	errno = flock_error;
	return flock_error ? -1 : __real_flock(fd, operation);
}

/* On a file system without locks. */
START_TEST(test_without_locks)
{
	const char *path = many(2000);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};

	for (int i = 0; i < 4; i++) {
		_cleanup_(dataset_closep) struct dataset *d = NULL;
		struct notes notes = {0};
		struct dataset_options o = options(path, &notes);
		int r;

		flock_error = (const int[]){ENOSYS, EOPNOTSUPP, ENOLCK, EIO}[i];
		o.seed = i; /* rows of its own */
		r = dataset_open(&o, &tok, &d, NULL, &err);
		flock_error = 0;
		if (i == 3) {
			ck_fails(r, &err, "cannot lock ");
			continue;
		}
		ck_ok(r, &err);
		ck_assert_int_eq(dataset_rows(d), 2000);
		ck_assert_int_eq(notes.warnings, 1);
		ck_assert_ptr_nonnull(strstr(notes.last, "each process tokenizes the data for itself"));
	}
}
END_TEST

/* Two processes write the same rows at once. */
START_TEST(test_writers_without_locks)
{
	_cleanup_free_ char *path = str_printf("%s/rows", dir);
	_cleanup_(cache_writer_freep) struct cache_writer *mine = NULL, *other = NULL;
	const int32_t ids[] = {1, 2, 3}, starts[] = {0, 3};
	struct error err = ERROR_INIT;
	struct cache_key key;
	struct cache rows;
	int status;
	pid_t pid;

	cache_key_init(&key);
	ck_ok(cache_writer_open(path, &key, false, &mine, &err), &err);
	ck_ok(cache_writer_add(mine, ids, ids, 3, starts, 1, false, &err), &err);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (cache_writer_open(path, &key, false, &other, &err) < 0 ||
		    cache_writer_add(other, ids, ids, 3, starts, 1, false, &err) < 0 ||
		    cache_writer_finish(other, &err) < 0)
			_exit(1);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ck_ok(cache_open(path, &key, &rows, &err), &err);
	cache_close(&rows);
	ck_ok(cache_writer_finish(mine, &err), &err);
	ck_ok(cache_open(path, &key, &rows, &err), &err);
	ck_assert_int_eq(rows.count, 1);
	cache_close(&rows);
}
END_TEST

/* Columns that hold what JSON lacks, as Python writes missing values, skip no record. */
START_TEST(test_missing_numbers)
{
	struct notes notes = {0};
	struct dataset_options o =
	    options(put("nan.jsonl", "{\"instruction\":\"q\",\"input\":NaN,\"output\":\"a\",\"score\":NaN}\n"
	                             "{\"instruction\":\"q\",\"output\":\"b\",\"score\":1e400}\n"),
	            &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	_cleanup_(dataset_closep) struct dataset *d = NULL;

	o.template_name = "empty";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(notes.warnings, 0);
	ck_assert_int_eq(dataset_rows(d), 2);
	ck_row(d, 0, "qa|_a_");
}
END_TEST

START_TEST(test_errors)
{
	struct notes notes = {0};
	struct dataset_options o = options(NULL, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	struct dataset *d = NULL;
	static const struct {
		const char *name, *content, *words;
	} cases[] = {
	    {"a.json", "[{\"instruction\":\"q\",\"answer\":\"a\"}]",
	     "a.json:1: column 'output' is missing; the columns there are: instruction, answer; map it with "
	     "data.columns"},
	    {"b.jsonl", "{\"foo\":1}\n", "b.jsonl:1: the columns there are (foo) tell no format"},
	    {"c.json", "[]", "no usable example"},
	    {"d.json", "[{\"instruction\":\"q\",\"output\":\"a\"},\n{\"instr",
	     "d.json:2: the JSON value that begins"},
	    {"e.csv", "a,b", ".csv files cannot be read"},
	    {"f.txt", "plain", "plain text is for task pretrain"},
	    {"g.jsonl", "{\"instruction\":\"q\",\"output\":5}\n", "no usable example (1 skipped)"},
	    {"h.jsonl", "[1]\n", "a JSON object is needed"},
	    {"i.dat", "hello", "neither a JSON array nor JSON lines"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		only[0] = put(cases[i].name, cases[i].content);
		ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, cases[i].words);
		ck_assert_ptr_null(d);
	}
	only[0] = "/nowhere/x.json";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "cannot read /nowhere/x.json");
	only[0] =
	    put("bad.jsonl", "{\"instruction\":\"q\",\"output\":\"a\"}\n{oops\n{\"instruction\":\"q\"}\n[2]\n"
	                     "{\"instruction\":\"q\",\"output\":null}\n");
	notes = (struct notes){0};
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 1);
	ck_assert_int_eq(notes.warnings, 4); /* three and the count */
	ck_assert_ptr_nonnull(strstr(notes.last, "4 examples in all"));
	dataset_close(d);
	o.template_name = "nothing";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "unknown template");
	o.template_name = "chatml";
	o.columns_json = "{\"prompts\":\"x\"}";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err,
	         "'prompts' is not known here; known are prompt");
	o.columns_json = "{\"prompt\":\"instruction\"}";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "names no column for the response");
	o.columns_json = NULL;
	o.format = "parquet";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "unknown format 'parquet'");
}
END_TEST

START_TEST(test_dataset_info)
{
	struct notes notes = {0};
	struct dataset_options o = options(NULL, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	struct dataset *d = NULL;
	const char *names[2] = {"one", NULL};

	put("dataset_info.json",
	    "{\"one\":{\"file_name\":\"one.jsonl\",\"columns\":{\"prompt\":\"q\",\"response\":\"a\"},"
	    "\"num_samples\":5},"
	    "\"hub\":{\"hf_hub_url\":\"x/y\"},\"rank\":{\"file_name\":\"one.jsonl\",\"ranking\":true},"
	    "\"pic\":{\"file_name\":\"one.jsonl\",\"columns\":{\"prompt\":\"q\",\"images\":\"i\"}},"
	    "\"gone\":{\"file_name\":\"gone.json\"},"
	    "\"chat\":{\"file_name\":\"chat.json\",\"formatting\":\"sharegpt\",\"columns\":{\"messages\":"
	    "\"m\"},"
	    "\"tags\":{\"role_tag\":\"r\",\"content_tag\":\"c\",\"user_tag\":\"U\",\"assistant_tag\":\"A\"}}"
	    "}");
	put("one.jsonl", "{\"q\":\"1\",\"a\":\"x\",\"input\":\"no\"}\n{\"q\":\"2\",\"a\":\"y\"}\n");
	put("chat.json", "[{\"m\":[{\"r\":\"U\",\"c\":\"hi\"},{\"r\":\"A\",\"c\":\"ho\"}]},"
	                 "{\"m\":[{\"r\":\"system\",\"c\":\"s\"},{\"r\":\"U\",\"c\":\"hi\"},{\"r\":\"A\","
	                 "\"c\":\"ho\"}]}]");
	only[0] = NULL;
	o.datasets = names;
	o.dataset_dir = dir;
	o.template_name = "empty";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 5); /* two, drawn twice, and one of them again */
	ck_row(d, 0, "1x|_x_");
	ck_row(d, 1, "1x|_x_");
	dataset_close(d);
	names[0] = "chat";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 1); /* no system_tag: the second is invalid */
	ck_row(d, 0, "hiho|__ho_");
	ck_assert_ptr_nonnull(strstr(notes.last, "unknown role 'system'"));
	dataset_close(d);
	names[0] = "hub";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "hf_hub_url is 'x/y'");
	names[0] = "rank";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "ranking");
	names[0] = "pic";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "columns.images");
	names[0] = "gone";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "gone.json");
	names[0] = "nope";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "no dataset 'nope'; there are: one, hub");
	names[0] = "one,hub";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err,
	         "no dataset 'one,hub'; several are a list of strings: data.dataset = [\"a\", \"b\"]");
	o.dataset_dir = "/nowhere";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "/nowhere/dataset_info.json");
}
END_TEST

static void check_nothing_is_left(const char *cache)
{
	_cleanup_(closedirp) DIR *files = opendir(cache);
	const struct dirent *e;

	ck_assert_ptr_nonnull(files);
	while ((e = readdir(files)))
		ck_assert_msg(!str_ends(e->d_name, ".tmp"), "%s is left", e->d_name);
}

static int open_both(void *context, struct error *err)
{
	_cleanup_(dataset_closep) struct dataset *train = NULL, *held_out = NULL;
	struct dataset_options *o = context;
	_cleanup_free_ char *cache = unit_tmpdir();
	struct tokenizer tok = {0};
	int r;

	o->cache_dir = cache;
	r = dataset_open(o, &tok, &train, &held_out, err);
	check_nothing_is_left(cache);
	file_remove_tree(cache, NULL);
	return r;
}

/* The cache is made anew each time. */
START_TEST(memory_may_run_out_at_any_place)
{
	struct notes notes = {0};
	struct dataset_options o =
	    options(put("a.json", "[{\"instruction\":\"a\",\"input\":\"x\",\"output\":\"b\"},"
	                          "{\"instruction\":\"c\",\"output\":\"d\"},"
	                          "{\"instruction\":\"e\",\"output\":\"f\"}]"),
	            &notes);

	o.eval_fraction = 0.4;
	memory_runs_out(open_both, &o);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dataset");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {test_processes,
	                              test_masks,
	                              test_tools,
	                              test_packing,
	                              test_cut,
	                              test_pretrain,
	                              test_long_document,
	                              test_blocks_of_batches,
	                              test_missing_numbers,
	                              test_without_locks,
	                              test_writers_without_locks,
	                              test_split,
	                              test_cache,
	                              test_errors,
	                              test_dataset_info,
	                              memory_may_run_out_at_any_place};

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
