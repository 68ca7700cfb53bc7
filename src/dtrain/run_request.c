/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a submission: a run file with its paths made absolute, or a command line. */
#include "dtrain/run_request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "config/run.h"

/* Consumes config. */
static int to_json(struct run_config *config, const struct environment_options *environment, json_t **out,
                   struct error *err)
{
	_cleanup_(run_config_freep) struct run_config *c = config;
	_cleanup_free_ char *here = getcwd(NULL, 0);
	char *directory;

	if (!here)
		return error_errno(err, -errno, "the current directory");
	directory = str_path_join(here, c->directory ? c->directory : "");
	if (!directory)
		return error_oom(err);
	if (!c->directory)
		directory[strlen(here)] = '\0'; /* without the slash of an empty name */
	free(c->directory);
	c->directory = directory;
	if (environment && environment_collect(environment, c, err) < 0)
		return err->code;
	return run_config_to_json(c, out, err);
}

int run_request_file(const char *path, const char *const *overrides,
                     const struct environment_options *environment, json_t **out, struct error *err)
{
	struct run_config *config;
	int r = run_config_read(path, overrides, &config, err);

	return r < 0 ? r : to_json(config, environment, out, err);
}

/* A libconfig string. */
static void add_quoted(struct strbuf *b, const char *s)
{
	strbuf_addc(b, '"');
	for (; *s; s++)
		if (*s == '"' || *s == '\\')
			strbuf_addf(b, "\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			strbuf_addf(b, "\\x%02x", *s);
		else
			strbuf_addc(b, *s);
	strbuf_addc(b, '"');
}

int run_request_command(char **argv, const char *const *overrides,
                        const struct environment_options *environment, json_t **out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	struct run_config *config;
	const char *slash;
	int r;

	/* As a run file would say it: overrides take no list with commas in its items. */
	strbuf_adds(&text, "command = [");
	for (char **a = argv; *a; a++) {
		strbuf_adds(&text, a > argv ? ", " : "");
		add_quoted(&text, *a);
	}
	slash = strrchr(argv[0], '/');
	strbuf_adds(&text, "]; name = ");
	add_quoted(&text, slash && slash[1] ? slash + 1 : argv[0]);
	strbuf_adds(&text, ";\n");
	if (text.failed)
		return error_oom(err);
	r = run_config_parse(text.data, "command line", overrides, &config, err);
	return r < 0 ? r : to_json(config, environment, out, err);
}

int run_request_task(const char *task, const char *list, const char *const *items,
                     const char *const *overrides, json_t **out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	struct run_config *config;
	int r;

	strbuf_addf(&text, "task = \"%s\"; name = \"%s\";\n", task, task);
	if (items && *items) {
		strbuf_addf(&text, "%s = { %s = [", task, list);
		for (const char *const *s = items; *s; s++) {
			strbuf_adds(&text, s > items ? ", " : "");
			add_quoted(&text, *s);
		}
		strbuf_adds(&text, "]; };\n");
	}
	if (text.failed)
		return error_oom(err);
	r = run_config_parse(text.data, "command line", overrides, &config, err);
	return r < 0 ? r : to_json(config, NULL, out, err);
}
