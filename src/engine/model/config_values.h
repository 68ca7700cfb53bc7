/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the members of a config.json: each by key, with the value that transformers takes where the key is
 * absent. Errors name the text (`where`), the key and what it may be. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"

/* NULL: absent, or null. */
const json_t *config_member(const json_t *o, const char *key);
/* A fallback below min: the key is needed. */
int config_int(const json_t *o, const char *key, const char *where, int64_t min, int64_t max,
               int64_t fallback, int64_t *out, struct error *err);
int config_number(const json_t *o, const char *key, const char *where, double min, double max,
                  double fallback, double *out, struct error *err);
/* The same, where null is a mistake; without a fallback (NaN) the key is needed. */
int config_need_number(const json_t *o, const char *key, const char *where, double min, double max,
                       double fallback, double *out, struct error *err);
int config_bool(const json_t *o, const char *key, const char *where, bool fallback, bool *out,
                struct error *err);
/* A string; null is a mistake, as it is to transformers. */
int config_word(const json_t *o, const char *key, const char *where, const char *fallback, const char **out,
                struct error *err);
/* An id, or the first of a list of them; -1: none. */
int32_t config_first_id(const json_t *o, const char *key);
