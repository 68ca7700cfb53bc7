/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training processes in children of the test, each with what the launcher sets: worker_main() with the device
 * of the CPU, a small model of bytes and a small text. A service that answers everything keeps their
 * requests.
 */
#pragma once

#include <jansson.h>

#include "unit.h"

struct worker_call {
	int status; /* exit status */
	char *output, *errors;
};

/* A directory of its own for each test, which is the current one. It contains text.txt. */
void worker_setup(void);
void worker_teardown(void);

void worker_file(const char *name, const char *text);
char *worker_read(const char *name); /* owned by the caller */
json_t *worker_json(const char *name);

/* Writes the configuration NAME.json: a pretraining of two steps into out/, of a model that begins at random,
 * with these keys changed ("train.max_steps=4"). A key that is named again is what it is named last. */
#define worker_config(name, ...)                                                                             \
	worker_write_config(                                                                                 \
	    name, (const char *const[]){"model.init=" SRCDIR "/tests/engine/bytes", ##__VA_ARGS__, NULL})
/* The same of the model in the directory model. */
#define worker_config_model(name, ...)                                                                       \
	worker_write_config(name, (const char *const[]){"model.path=model", ##__VA_ARGS__, NULL})
void worker_write_config(const char *name, const char *const *overrides);
/* The same of another run file, in the syntax of run files. */
void worker_write_task(const char *name, const char *text, const char *const *overrides);

/* Starts a rank of NAME.json. The ranks of a run find each other by files. */
pid_t worker_start(const char *name, int rank, int ranks);
struct worker_call worker_wait(pid_t pid, const char *name, int rank);
struct worker_call worker_run(const char *name); /* one rank, to its end */
void worker_run_ranks(const char *name, struct worker_call *calls, int ranks);
void worker_release(struct worker_call *call);
/* Until the file has the words: NAME.RANK.out is what a rank writes to stdout. */
void worker_await_words(const char *file, const char *words);
/* The same, which have to end well; what rank 0 writes to stdout. Owned by the caller. */
char *worker_output(const char *name, int ranks);
/* Writes the configuration and runs it with one rank, as worker_output. */
#define worker_train(name, ...)       (worker_config(name, ##__VA_ARGS__), worker_output(name, 1))
#define worker_train_model(name, ...) (worker_config_model(name, ##__VA_ARGS__), worker_output(name, 1))
/* The run has to end with status 1, and with a line of error that contains the words. */
void worker_fails(const char *name, const char *words);

/* The text has these words; has a line that is this one, or begins with it. */
void expect_words(const char *text, const char *words);
void expect_no_words(const char *text, const char *words);
void expect_line(const char *text, const char *line);

/* Lines of metrics.jsonl in a directory: those of steps, as JSON, in an array. */
json_t *worker_steps(const char *directory);
json_t *worker_marks(const char *directory); /* those of events */
void worker_expect_mark(const json_t *marks, size_t at, const char *event, int step);

/* From here on workers have a service, for run 7. The file "requests" has "POST /v1/… HTTP/1.1\nBODY\n" of
 * each request that it has answered. */
void worker_serve(void);
