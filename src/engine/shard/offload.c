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

	if (s->o.offload)
		device_transfer(s->dev, DEVICE_TO_HOST, u->host_gradients, u->own_gradients,
		                (size_t)u->own * sizeof(float), u->down);
}

int shard_wait_host(struct shard *s, int unit, struct error *err)
{
	/* The transfers are in one order: what came up before these gradients went down has come up. */
	return s->o.offload ? device_event_finish(s->dev, s->unit[unit].down, err) : 0;
}

/* Only when weights are loaded, so that a plain loop serves. */
static void round_master(const struct shard *s, struct shard_unit *u)
{
	uint16_t *copy = u->host_copy;

	for (int64_t i = 0; i < u->own; i++)
		copy[i] =
		    s->o.type == DTYPE_BF16 ? bf16_from_float(u->master[i]) : f16_from_float(u->master[i]);
}

void offload_publish(struct shard *s, int unit, bool converted)
{
	struct shard_unit *u = &s->unit[unit];
	size_t bytes = (size_t)u->own * dtype_size(s->o.type);

	if (!converted && !u->master) { /* loaded weights are on the device: they are all there is */
		device_transfer(s->dev, DEVICE_TO_HOST, u->host_copy, u->own_weights, bytes, u->up);
		return;
	}
	if (!converted && u->host_copy)
		round_master(s, u);
	device_transfer(s->dev, DEVICE_FROM_HOST, u->own_weights, u->host_copy ? u->host_copy : u->master,
	                bytes, u->up);
	device_event_wait(s->dev, u->up);
}
