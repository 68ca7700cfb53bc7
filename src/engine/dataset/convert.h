/* SPDX-License-Identifier: Apache-2.0 */
/* A record of a file -> the turns of a conversation, whatever the format (LLaMA-Factory's rules). */
#pragma once

#include <stddef.h>

#include "engine/chat/conversation.h"
#include "engine/dataset/source.h"

/* Parses and converts a record of a source that source_detect() has settled; a column that the record lacks
 * is as null. Errors: -EBADMSG the example is broken and should be skipped, -ENOMEM. `where`: "file:line",
 * begins all messages. */
int example_convert(const struct source *s, enum dataset_task task, const char *data, size_t len,
                    const char *where, struct example *e, struct error *err);
