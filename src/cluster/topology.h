/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the free slots of a node go together best. Pure: from a matrix of how closely each two are linked.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* How good a link is, by the name that nodes give it: NV18 … NV1, PIX, PXB, PHB, NODE, SYS; NULL or unknown:
 * as across sockets. Two parts of one GPU (MIG) come last: NCCL does not join them. */
unsigned char topology_weight(const char *link);

/*
 * Takes `want` of the slots that are not taken: those whose ranks reach each other over the best links; among
 * such the ones that leave the best linked rest; among such the lowest. They are in the order of ranks:
 * neighbours, and the last and the first, are linked as closely as can be. links: slots × slots weights.
 * There have to be so many free ones. Up to 16 free slots all combinations are looked at, beyond that it is
 * greedy.
 */
void topology_choose(const unsigned char *links, size_t slots, const bool *taken, size_t want, int *chosen);
