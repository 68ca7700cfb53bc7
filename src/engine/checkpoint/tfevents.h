/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard's event files: TFRecord frames (length, masked CRC-32C) around hand-encoded Event messages
 * (tensorflow/core/util/event.proto). */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

struct tfevents;

/* Makes a new file in `directory`, named as TensorFlow names its files. TensorBoard then ignores what earlier
 * files of the directory have for first_step and later steps. */
int tfevents_open(const char *directory, int64_t first_step, struct tfevents **out, struct error *err);
int tfevents_scalar(struct tfevents *t, double time, int64_t step, const char *tag, float value,
                    struct error *err);
/* Markdown, shown under TensorBoard's tab of texts. */
int tfevents_text(struct tfevents *t, double time, int64_t step, const char *tag, const char *text,
                  struct error *err);
void tfevents_close(struct tfevents *t);
DEFINE_CLEANUP(struct tfevents *, tfevents_close)

uint32_t tfevents_crc32c(const void *data, size_t len); /* plain, not masked */
