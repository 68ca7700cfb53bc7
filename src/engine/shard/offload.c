/* SPDX-License-Identifier: Apache-2.0 */
/* Units whose optimizer state is in host memory: gradients go down, weights come up. */
#include "engine/shard/offload.h"

int offload_open(struct shard *s, struct error *err)
{
	int r;

	for (int i = 0; i < s->units && s->o.offload; i++)
		if ((r = device_event_create(s->dev, &s->unit[i].down, err)) < 0 ||
		    (r = device_event_create(s->dev, &s->unit[i].up, err)) < 0)
			return r;
	return 0;
}

void offload_close(struct shard *s)
{
	for (int i = 0; i < s->units && s->o.offload; i++) {
		device_event_destroy(s->unit[i].down);
		device_event_destroy(s->unit[i].up);
		s->unit[i].down = s->unit[i].up = NULL;
	}
}

void offload_gradients(struct shard *s, int unit)
{
	struct shard_unit *u = &s->unit[unit];

	if (!s->o.offload)
		return;
	if (s->o.offload == SHARD_OFFLOAD_ALL && u->last)
		device_sum_squares(s->dev, u->own_gradients, DTYPE_F32, u->own, s->squares);
	device_transfer(s->dev, DEVICE_TO_HOST, u->host_gradients, u->own_gradients,
	                (size_t)u->own * sizeof(float), u->down);
}

static const void *host_weights(const struct shard_unit *u)
{
	return u->host_copy ? u->host_copy : u->master;
}

static size_t weight_bytes(const struct shard *s, int64_t n)
{
	return (size_t)n * dtype_size(s->o.type);
}

void offload_weights(struct shard *s, int unit)
{
	struct shard_unit *u = &s->unit[unit];

	device_transfer(s->dev, DEVICE_FROM_HOST, (char *)u->weights + weight_bytes(s, u->first),
	                host_weights(u), weight_bytes(s, u->own), u->up);
	u->coming = true;
}

void offload_take_back(struct shard *s, int unit)
{
	struct shard_unit *u = &s->unit[unit];

	/* The transfers are in one order: who waits for the event of a later one waits for these, too. */
	device_transfer(s->dev, DEVICE_FROM_HOST, u->own_gradients, u->host_gradients,
	                (size_t)u->own * sizeof(float), u->up);
}

int shard_wait_host(struct shard *s, int unit, struct error *err)
{
	/* The transfers are in one order: what came up before these gradients went down has come up. */
	return s->o.offload && !s->unit[unit].frozen ? device_event_finish(s->dev, s->unit[unit].down, err)
	                                             : 0;
}

/* Only when weights are loaded, so that a plain loop serves. */
void offload_round(const struct shard *s, struct shard_unit *u, const float *master, int64_t at, int64_t n)
{
	uint16_t *copy = (uint16_t *)u->host_copy + at;

	for (int64_t i = 0; i < n; i++)
		copy[i] = s->o.type == DTYPE_BF16 ? bf16_from_float(master[i]) : f16_from_float(master[i]);
}

void offload_publish(struct shard *s, int unit, bool converted)
{
	struct shard_unit *u = &s->unit[unit];

	if (!converted && u->host_copy && u->master)
		offload_round(s, u, u->master, 0, u->own);
	if (!u->own_weights) /* they come up when they are needed */
		return;
	device_transfer(s->dev, DEVICE_FROM_HOST, u->own_weights, host_weights(u), weight_bytes(s, u->own),
	                u->up);
	device_event_wait(s->dev, u->up);
}
