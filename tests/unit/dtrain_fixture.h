/* SPDX-License-Identifier: Apache-2.0 */
/* Calls subcommands of the client with a fake service, and keeps their output. */
#pragma once

#include "fake_service.h"
#include "unit.h"

#include "dtrain/commands.h"

typedef int (*command_fn)(struct client *client, int argc, char **argv);

struct call {
	int status;
	char *output, *errors; /* stdout and stderr */
};

void fixture_setup(void); /* a directory of its own for each test */
void fixture_teardown(void);
const char *fixture_dir(void);
const char *fixture_socket(void);
/* Calls a subcommand with the words of `line`, separated by spaces. */
struct call fixture_call(command_fn command, const char *line);
/* The same on a terminal with that many columns; stdout and stderr are both in `output`. */
struct call fixture_terminal(command_fn command, const char *line, int columns);
void call_release(struct call *call);
/* An HTTP answer with that body; owned by the caller. */
char *fixture_answer(const char *body);
/* An answer with an error: {"error":{…}}. */
char *fixture_refusal(int status, const char *code, const char *message);
/* Serves answers[i] ({request, body of the answer}) while `line` is called; fails unless all are
 * requested. */
struct exchange {
	const char *request, *answer;
};
struct call fixture_exchange(command_fn command, const char *line, const struct exchange *list, size_t count);
/* The same with a full device as stdout: `output` is NULL. */
struct call fixture_exchange_full(command_fn command, const char *line, const struct exchange *list,
                                  size_t count);
/* The same in another process, which is on a terminal, and is interrupted (SIGINT) after all requests, but
 * for a DELETE at their end, which has to come after that. */
struct call fixture_interrupt(command_fn command, const char *line, const struct exchange *list,
                              size_t count);
