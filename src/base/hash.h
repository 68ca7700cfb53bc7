/* SPDX-License-Identifier: Apache-2.0 */
/* A fast hash of many bytes, for comparing contents: against mistakes and damage, not against malice. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), the same on every machine. The hash of a sequence
 * of pieces is that of each with the one before as its seed. */
uint64_t hash_bytes(const void *data, size_t len, uint64_t seed);
