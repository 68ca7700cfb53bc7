/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of data files. Needs no thread and no device, so that the client can check a run file with
 * it. */
#pragma once

#include "engine/dataset/dataset.h"
#include "engine/dataset/reader.h"
#include "engine/dataset/source.h"

/* Completes formats, columns and tags in `sources`: each file is there, and of a format that is known. */
int dataset_detect(const struct dataset_options *options, struct source_list *sources, struct error *err);
/* The same for one file. Where no record tells, the first one's error says why; a file without any JSON is
 * left to be skipped, record by record. */
int dataset_detect_file(struct source *s, enum dataset_task task, struct error *err);
/* How the reader cuts such a file into records. */
enum record_kind source_record_kind(const struct source *s);
