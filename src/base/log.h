/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging. Under systemd (stderr is the journal: JOURNAL_STREAM) lines go to the journal with fields;
 * elsewhere plain lines to stderr, "dtraind: message". Levels are syslog's.
 */
#pragma once

#include <stdbool.h>
#include <syslog.h>

/* Once, first thing in main(): the name before each line, and the highest level that is shown. */
void log_init(const char *ident, int max_level);
void log_set_level(int max_level);

/* fields: NULL, or "RUN_ID=17\nRANK=0": journal fields "DTRAIN_RUN_ID", … are made of them. */
void log_write(int level, const char *fields, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define log_debug(...) log_write(LOG_DEBUG, NULL, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, NULL, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARNING, NULL, __VA_ARGS__)
#define log_err(...)   log_write(LOG_ERR, NULL, __VA_ARGS__)
