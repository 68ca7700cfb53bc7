/* SPDX-License-Identifier: Apache-2.0 */
/* Generated rows, for tests of code that reads rows; the sampler is the real one. */
#pragma once

#include "engine/dataset/dataset.h"

/* `rows` rows of `length` to `length + spread` tokens, ids below vocab, in documents of about half a row; the
 * first third of each row's targets masked where `masked`. Each id follows from the previous one by a rule,
 * which a model can learn. dataset_close frees it. */
struct dataset *fake_dataset(int64_t rows, int32_t length, int32_t spread, int32_t vocab, bool masked);
/* The same, with one document in each row, and all rows of `length`. */
struct dataset *fake_dataset_whole(int64_t rows, int32_t length, int32_t vocab);
/* The documents of another data set, each as a row of its own. */
struct dataset *fake_dataset_unpacked(const struct dataset *packed);
/* Of given rows, which it takes over: the array and what they point to are from malloc. */
struct dataset *fake_dataset_of(struct dataset_row *row, int64_t rows);
