/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks of a communicator form which group in comm_split. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What a rank has called comm_split with. */
struct split_choice {
	int32_t color, key;
};

static inline bool split_before(const struct split_choice *all, int a, int b)
{
	return all[a].key < all[b].key || (all[a].key == all[b].key && a < b);
}

/* members[0 … n): the ranks with the color of `rank`, in the order of the new communicator. Returns n, 0
 * where the color of `rank` is negative; *position is that of `rank`. members has room for `size`. */
static inline int split_members(const struct split_choice *all, int size, int rank, int *members,
                                int *position)
{
	int n = 0;

	for (int r = 0; r < size && all[rank].color >= 0; r++) {
		int at = n;

		if (all[r].color != all[rank].color)
			continue;
		for (; at > 0 && split_before(all, r, members[at - 1]); at--)
			members[at] = members[at - 1];
		members[at] = r;
		n++;
	}
	for (int i = 0; i < n; i++)
		if (members[i] == rank)
			*position = i;
	return n;
}
