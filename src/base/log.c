/* SPDX-License-Identifier: Apache-2.0 */
/* The log: lines with fields to the journal where systemd reads stderr, plain lines elsewhere. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include "base/str.h"

/* The one process-wide state that has no owner to hang off: where log lines go. Set by log_init before
 * threads. */
static struct {
	const char *ident;
	int max_level;
	bool journal;
} log_state = {"dtrain", LOG_INFO, false};

static bool stderr_is_journal(void)
{
	const char *s = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return s && sscanf(s, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
	       st.st_dev == (dev_t)dev && st.st_ino == (ino_t)ino;
}

void log_init(const char *ident, int max_level)
{
	log_state.ident = ident;
	log_state.max_level = max_level;
	log_state.journal = stderr_is_journal();
}

void log_set_level(int max_level)
{
	log_state.max_level = max_level;
}

static void to_journal(int level, const char *fields, const char *message)
{
	_cleanup_free_ char *m = str_printf("MESSAGE=%s", message), *f = fields ? strdup(fields) : NULL;
	char priority[16], *owned[16], *save = NULL;
	struct iovec iov[20];
	int n = 0, k = 0;

	snprintf(priority, sizeof(priority), "PRIORITY=%d", level);
	if (!m)
		return;
	iov[n++] = (struct iovec){m, strlen(m)};
	iov[n++] = (struct iovec){priority, strlen(priority)};
	for (char *s = f ? strtok_r(f, "\n", &save) : NULL; s && k < 16; s = strtok_r(NULL, "\n", &save)) {
		owned[k] = str_printf("DTRAIN_%s", s);
		if (!owned[k])
			break;
		iov[n++] = (struct iovec){owned[k], strlen(owned[k])};
		k++;
	}
	sd_journal_sendv(iov, n);
	while (k > 0)
		free(owned[--k]);
}

void log_write(int level, const char *fields, const char *fmt, ...)
{
	char message[1024];
	va_list ap;

	if (level > log_state.max_level)
		return;
	va_start(ap, fmt);
	vsnprintf(message, sizeof(message), fmt, ap);
	va_end(ap);
	for (char *p = message; *p; p++) /* a line is one line, whatever it quotes */
		memset(p, ' ', str_control_length(p));
	if (log_state.journal)
		to_journal(level, fields, message);
	else
		fprintf(stderr, "%s: %s\n", log_state.ident, message);
}
