/* SPDX-License-Identifier: Apache-2.0 */
/* Where optimizer state lies in the file of parallel.offload_dir. Nothing in this file needs a device or a
 * disk, so that an estimate can use it without. */
#include "engine/shard/offload.h"

/* Elements, unless options say otherwise: 16 MiB of each kind. */
#define PIECE ((int64_t)4 << 20)

int64_t state_piece_elements(const struct shard *s)
{
	return s->o.state_piece > 0 ? s->o.state_piece : PIECE;
}

bool shard_state_is_on_disk(const struct shard *s, enum shard_state which)
{
	/* In fp32 the master weights are the weights, which come up from the host's memory. */
	return s->o.offload_dir && (which != SHARD_MASTER || s->o.type != DTYPE_F32);
}

bool state_has(const struct shard *s, const struct shard_unit *u, enum shard_state which)
{
	if (!shard_state_is_on_disk(s, which))
		return false;
	return which == SHARD_MASTER    ? !s->o.without_master
	       : which == SHARD_MOMENT1 ? u->m_from < u->own
	                                : u->v_from < u->own;
}

int64_t state_place_in(const struct shard *s, const struct shard_unit *u, int64_t n, enum shard_state which)
{
	int64_t at = 0;

	for (int i = 0; i < (int)which; i++)
		at +=
		    state_has(s, u, (enum shard_state)i) ? state_round_bytes(n * (int64_t)sizeof(float)) : 0;
	return at;
}

int64_t state_cut(const struct shard *s, struct state_piece *pieces, int64_t *largest)
{
	int64_t bytes = 0, count = 0, most = state_piece_elements(s);

	*largest = 0;
	for (int i = 0; i < s->units; i++) {
		const struct shard_unit *u = &s->unit[i];

		for (int64_t first = 0; first < u->own && !u->frozen; first += most, count++) {
			int64_t n = MIN(u->own - first, most), size = state_place_in(s, u, n, SHARD_STATES);

			if (pieces)
				pieces[count] = (struct state_piece){i, first, n, bytes};
			bytes += size;
			*largest = MAX(*largest, size);
		}
	}
	return bytes;
}

int64_t shard_disk_bytes(const struct shard *s)
{
	int64_t largest;

	return s->o.offload_dir ? state_cut(s, NULL, &largest) : 0;
}

void state_place_buffers(struct shard *s, struct arena *host)
{
	int64_t largest;

	if (state_cut(s, NULL, &largest) == 0)
		return;
	for (int i = 0; i < SHARD_STATE_BUFFERS; i++) {
		char *memory = arena_take(host, BUFFER_OPTIMIZER, (size_t)largest + DISK_QUEUE_ALIGNMENT,
		                          "buffer %d of optimizer state", i);

		s->state_buffer[i] =
		    memory ? memory + (-(uintptr_t)memory & (DISK_QUEUE_ALIGNMENT - 1)) : NULL;
	}
	s->state_buffer_bytes = largest;
}

int64_t shard_state_pieces(const struct shard *s, int unit)
{
	int64_t most = state_piece_elements(s);

	if (s->unit[unit].frozen)
		return 0;
	return s->o.offload_dir ? (s->unit[unit].own + most - 1) / most : 1;
}
