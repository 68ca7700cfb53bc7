/* SPDX-License-Identifier: Apache-2.0 */
/* Completion of the words of a subcommand, from its table of options and from what the service knows. */
#include "dtrain/complete.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "config/keys.h"
#include "config/run.h"
#include "engine/chat/template.h"
#include "engine/train/hardware.h"
#include "http/local.h"
#include "wire/node_view.h"
#include "wire/run_view.h"

enum { RUNS_OFFERED = 50 };
static const double TIMEOUT_SECONDS = 2.0; /* for an answer of the service: a user waits at the keyboard */

/* What is being completed, and what stands before it in the same word ("--set=", "train.schedule="). */
struct typed {
	struct client *client;
	const char *prefix, *text;
};

void complete_offer(const char *typed, const char *word, const char *what)
{
	_cleanup_free_ char *plain = what ? strdup(what) : NULL;

	if (str_starts(word, typed))
		printf("%s\t%s\n", word, plain ? str_make_plain(plain) : "");
}

static void offer(const struct typed *t, const char *word, const char *what)
{
	_cleanup_free_ char *whole = str_printf("%s%s", t->prefix, word), *plain = what ? strdup(what) : NULL;

	if (str_starts(word, t->text) && whole)
		printf("%s\t%s\n", whole, plain ? str_make_plain(plain) : "");
}

/* NULL where the service does not answer: nothing is offered then, and nothing is said. */
static json_t *get_quietly(struct client *client, const char *target)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	json_t *answer = NULL;
	size_t len;
	int status;

	if (!client->http && http_local_open(client->socket, &client->http, &err) < 0)
		return NULL;
	if (http_local_bytes(client->http, "GET", target, NULL, NULL, 0, TIMEOUT_SECONDS, &status, &text,
	                     &len, &err) < 0 ||
	    status != 200) {
		client_release(client);
		return NULL;
	}
	return json_parse(text, len, "dtraind", &answer, &err) < 0 ? NULL : answer;
}

static void offer_runs(const struct typed *t, bool active)
{
	_cleanup_free_ char *target =
	    str_printf("/v1/runs?state=%s&limit=%d", active ? "active" : "all", RUNS_OFFERED);
	_cleanup_json_ json_t *answer = target ? get_quietly(t->client, target) : NULL;
	_cleanup_(run_list_release) struct run_list runs = {0};

	run_list_decode(answer, &runs, NULL);
	for (size_t i = 0; i < runs.count; i++) {
		const struct run_view *run = &runs.runs[i];
		_cleanup_free_ char *id = str_printf("%lld", (long long)run->id);
		_cleanup_free_ char *what =
		    str_printf("%s, %s", run->name ? run->name : "", run_states[run->state]);

		if (id)
			offer(t, id, what);
	}
}

/* Those who have submitted the newest runs. */
static void offer_users(const struct typed *t)
{
	_cleanup_free_ char *target = str_printf("/v1/runs?state=all&limit=%d", RUNS_OFFERED);
	_cleanup_json_ json_t *answer = target ? get_quietly(t->client, target) : NULL;
	_cleanup_(run_list_release) struct run_list runs = {0};

	run_list_decode(answer, &runs, NULL);
	for (size_t i = 0; i < runs.count; i++) {
		size_t first = 0;

		while (!str_eq(runs.runs[first].user, runs.runs[i].user))
			first++;
		if (first == i && runs.runs[i].user)
			offer(t, runs.runs[i].user, NULL);
	}
}

static void offer_nodes(const struct typed *t)
{
	_cleanup_json_ json_t *answer = get_quietly(t->client, "/v1/nodes");
	_cleanup_(node_list_release) struct node_list nodes = {0};

	node_list_decode(answer, &nodes, NULL);
	for (size_t i = 0; i < nodes.count; i++)
		offer(t, nodes.nodes[i].name, node_states[nodes.nodes[i].state]);
}

/* "8xH" -> "8xH100-80GB", "8xH200-141GB". */
static void offer_devices(const struct typed *t)
{
	size_t counts = strspn(t->text, "0123456789x");
	_cleanup_free_ char *before = str_printf("%s%.*s", t->prefix, (int)counts, t->text);
	struct typed rest = {t->client, before ? before : "", t->text + counts};
	const struct hardware *h;

	for (size_t i = 0; (h = hardware_at(i)); i++)
		offer(&rest, h->name, NULL);
	if (counts == 0)
		offer(t, "cluster", NULL);
}

/* The parts of "a|b|c". Words in capitals stand for something else: "FILE", "DIR"; others of them for
 * nothing. */
static void offer_choices(const struct typed *t, const char *choices)
{
	_cleanup_free_ char *copy = strdup(choices);
	char *rest = copy, *one;

	while ((one = strsep(&rest, "|")))
		if (str_eq(one, "FILE"))
			puts(":files");
		else if (*one < 'A' || *one > 'Z')
			offer(t, one, NULL);
}

static void offer_value(const struct typed *t, const struct key *key)
{
	const struct template *template;

	switch (key->type) {
	case KEY_CHOICE:
		offer_choices(t, key->choices);
		break;
	case KEY_COUNT:
		offer_choices(t, "all");
		break;
	case KEY_BOOL:
		offer_choices(t, "false|true");
		break;
	default:
		if (str_eq(key->section, "data") && str_eq(key->name, "template"))
			for (size_t i = 0; (template = template_at(i)); i++)
				offer(t, template->name, NULL);
		else if (str_eq(key->section, "resources") && str_eq(key->name, "hosts"))
			offer_nodes(t);
	}
}

/* "train.sch" -> "train.schedule=", then "train.schedule=c" -> "train.schedule=cosine". */
static void offer_settings(const struct typed *t)
{
	const char *equals = strchr(t->text, '=');

	for (size_t i = 0; i <= run_keys.count; i++) {
		const struct key *key = i < run_keys.count ? &run_keys.list[i] : &run_task_key;
		_cleanup_free_ char *name =
		    str_printf("%s%s%s=", key->section ?: "", key->section ? "." : "", key->name);
		_cleanup_free_ char *prefix = name ? str_printf("%s%s", t->prefix, name) : NULL;

		if (!prefix)
			return;
		if (!equals)
			offer(t, name, key->help);
		else if (str_starts(t->text, name))
			offer_value(&(struct typed){t->client, prefix, equals + 1}, key);
	}
}

/* By the name that the help gives to a value or an argument. */
static void offer_named(const struct typed *t, const char *name, const char *command)
{
	static const char states[] =
	    "active|all|queued|starting|running|stopping|succeeded|failed|cancelled|timed-out";
	static const char *const files[] = {"RUN_FILE", "FILE", "PATH"}, *const directories[] = {
	                                                                     "DIR", "DIRECTORY", "MODEL"};

	if (str_starts(name, "KEY=VALUE"))
		offer_settings(t);
	else if (str_eq(name, "RUN"))
		offer_runs(t, str_eq(command, "cancel"));
	else if (str_starts(name, "NODE"))
		offer_nodes(t);
	else if (str_eq(name, "USER"))
		offer_users(t);
	else if (str_eq(name, "STATE"))
		offer_choices(t, states);
	else if (str_eq(name, "DEVICES"))
		offer_devices(t);
	else if (strchr(name, '|'))
		offer_choices(t, name);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		if (str_eq(name, files[i]))
			puts(":files");
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
		if (str_eq(name, directories[i]))
			puts(":directories");
}

/* The name of the n-th argument, from 0, in "MODEL PROMPT", "[RUN]" or "DIR [ID…|-]": the last one may come
 * again. */
static char *argument_name(const char *arguments, size_t n)
{
	_cleanup_free_ char *copy = strdup(arguments);
	char *rest = copy, *one, *found = NULL;

	while ((one = strsep(&rest, " ")) && !str_eq(one, "|")) {
		bool again = strstr(one, "…") != NULL;

		found = one + (*one == '[');
		found[strcspn(found, "]\xe2")] = '\0'; /* the first byte of … */
		if (n-- == 0 || again)
			return strdup(found);
	}
	return NULL;
}

static const struct option_spec *find_option(const struct usage *u, const char *word)
{
	for (size_t i = 0; i < u->count; i++) {
		const struct option_spec *o = &u->options[i];
		bool by_letter = word[0] == '-' && o->letter && word[1] == o->letter && !word[2];

		if (by_letter || (str_starts(word, "--") && str_eq(word + 2, o->name)))
			return o;
	}
	return NULL;
}

static bool takes_value(const struct usage *u, const char *word)
{
	const struct option_spec *o = find_option(u, word);

	return str_eq(word, "--socket") || (o && o->type != OPTION_FLAG);
}

static void offer_options(const struct usage *u, const char *typed)
{
	for (size_t i = 0; i < u->count; i++) {
		const struct option_spec *o = &u->options[i];
		_cleanup_free_ char *name = str_printf("--%s", o->name);
		const char letter[] = {'-', o->letter, '\0'};

		if (o->letter && strlen(typed) < 2)
			complete_offer(typed, letter, o->help);
		if (name)
			complete_offer(typed, name, o->help);
	}
	complete_offer(typed, "--socket", "the service's socket");
	complete_offer(typed, "--help", "show this help");
}

int complete_options(struct client *client, const struct usage *u, int argc, char **argv)
{
	const char *cur = argv[argc - 1], *before = argc > 2 ? argv[argc - 2] : "",
	           *equals = strchr(cur, '=');
	_cleanup_free_ char *option = strndup(cur, strcspn(cur, "=")), *prefix = NULL, *name = NULL;
	struct typed t = {client, "", cur};
	size_t arguments = 0;
	bool dashes = false;

	for (int i = 1; i < argc - 1; i++) {
		bool value = i > 1 && !dashes && takes_value(u, argv[i - 1]);

		dashes = dashes || (!value && str_eq(argv[i], "--"));
		arguments += !value && argv[i][0] != '-';
	}
	if (dashes) { /* a command's own words */
		puts(":files");
	} else if (takes_value(u, before)) {
		const struct option_spec *o = find_option(u, before);

		offer_named(&t, o ? o->value : "PATH", u->command);
	} else if (str_starts(cur, "--") && equals && option && takes_value(u, option)) {
		const struct option_spec *o = find_option(u, option);

		prefix = str_printf("%s=", option);
		t = (struct typed){client, prefix ? prefix : "", equals + 1};
		offer_named(&t, o ? o->value : "PATH", u->command);
	} else if (cur[0] == '-') {
		offer_options(u, cur);
	} else {
		name = argument_name(u->arguments, arguments);
		if (name)
			offer_named(&t, name, u->command);
	}
	return EXIT_SUCCESS;
}
