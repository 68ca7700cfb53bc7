/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command gets the environment in which it was submitted: the virtual environment, the search paths, the
 * settings of NCCL and Hugging Face, the umask. They go into the run's configuration here, in the client; no
 * service ever has them as its own environment.
 */
#include "dtrain/environment.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "dtrain/client.h"

/* What a command takes along; a '*' at the end stands for anything. dtrain-run(5) lists them. */
static const char *const taken[] = {
    "PATH",       "VIRTUAL_ENV",     "CONDA_PREFIX",    "CONDA_DEFAULT_ENV",
    "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "HF_*",
    "NCCL_*",
};

static bool is_taken(const char *entry)
{
	size_t n = strcspn(entry, "=");

	for (size_t i = 0; i < ARRAY_SIZE(taken); i++) {
		size_t len = strcspn(taken[i], "*");

		if (strncmp(entry, taken[i], len) == 0 && (taken[i][len] ? n >= len : n == len))
			return entry[n] == '=';
	}
	return false;
}

static int take_along(struct run_config *config, struct error *err)
{
	mode_t mask = umask(0);

	umask(mask);
	for (char **e = environ; *e; e++)
		if (is_taken(*e) && str_is_utf8(*e) &&
		    run_config_set_variable(config, *e, true, "environment", err) < 0)
			return err->code;
	if (!config->umask)
		config->umask = str_printf("%03o", (unsigned)mask & 0777);
	return config->umask ? 0 : error_oom(err);
}

/* JSON cannot carry what is not UTF-8. */
static void warn_of_left_out(const struct run_config *config)
{
	for (char **e = environ; *e; e++) {
		size_t n = strcspn(*e, "=");
		char **given = config->environment;

		if (!is_taken(*e) || str_is_utf8(*e))
			continue;
		while (given && *given && strncmp(*given, *e, n + 1))
			given++;
		if (!given || !*given)
			client_fail(0,
			            "warning: %.*s is not taken along: its value here is not valid UTF-8; "
			            "--env %.*s=VALUE gives it another",
			            (int)MIN(n, 100), *e, (int)MIN(n, 100), *e);
	}
}

/* A name as shells have it, up to '='. */
static bool is_name(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)s[i]) && s[i] != '_')
			return false;
	return n > 0 && !isdigit((unsigned char)*s);
}

static int set_variable(struct run_config *config, const char *entry, struct error *err)
{
	size_t n = strcspn(entry, "=");
	_cleanup_free_ char *here = NULL;
	const char *value;

	if (!is_name(entry, n))
		return error_set(err, -EINVAL,
		                 "--env %.100s: \"%.*s\" is not the name of a variable; expected NAME=VALUE, "
		                 "or NAME alone "
		                 "for the value that it has here",
		                 entry, (int)MIN(n, 100), entry);
	if (!entry[n]) {
		value = getenv(entry);
		if (!value)
			return error_set(err, -ENOENT,
			                 "--env %.100s: it is not set here; give --env %.100s=VALUE", entry,
			                 entry);
		entry = here = str_printf("%s=%s", entry, value);
		if (!here)
			return error_oom(err);
	}
	return run_config_set_variable(config, entry, false, "--env", err);
}

static int set_line(struct run_config *config, char *line, const char *where, struct error *err)
{
	size_t n;

	line += strspn(line, " \t");
	line[strcspn(line, "\r\n")] = '\0';
	if (!*line || *line == '#')
		return 0;
	n = strcspn(line, "=");
	if (!line[n] || !is_name(line, n))
		return error_set(err, -EINVAL, "%s: \"%.*s\" is not NAME=VALUE", where, (int)MIN(n, 100),
		                 line);
	return run_config_set_variable(config, line, false, where, err);
}

/* The value is all that follows the '=', quotes included. */
static int read_file(struct run_config *config, const char *path, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	char *rest, *line;
	unsigned number = 0;
	struct stat st;
	size_t len;
	int r;

	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return error_set(err, -EINVAL, "--env-file %s: it is not a file", path);
	r = file_read(path, 1 << 20, &text, &len, err);
	if (r < 0)
		return error_prefix(err, "--env-file");
	if (strlen(text) != len)
		return error_set(err, -EINVAL, "--env-file %s: not a text file: a NUL byte in it", path);
	for (rest = text; r == 0 && (line = strsep(&rest, "\n"));) {
		_cleanup_free_ char *where = str_printf("%s:%u", path, ++number);

		r = where ? set_line(config, line, where, err) : error_oom(err);
	}
	return r;
}

int environment_collect(const struct environment_options *options, struct run_config *config,
                        struct error *err)
{
	bool takes = config->task == RUN_COMMAND && !options->none;
	int r = takes ? take_along(config, err) : 0;

	for (size_t i = 0; r == 0 && i < options->files.count; i++)
		r = read_file(config, options->files.items[i], err);
	for (size_t i = 0; r == 0 && i < options->variables.count; i++)
		r = set_variable(config, options->variables.items[i], err);
	if (r == 0 && takes)
		warn_of_left_out(config);
	return r;
}
