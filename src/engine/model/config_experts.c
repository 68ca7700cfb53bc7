/* SPDX-License-Identifier: Apache-2.0 */
/* What a config.json says of a mixture of experts. */
#include "engine/model/config_experts.h"

#include <errno.h>

#include "engine/device/device.h"
#include "engine/model/config_values.h"

/* What is not computed here: layers without experts, noise in front of the router, clipped q, k and v. */
static int check_experts(const json_t *o, const char *where, const struct family *f, struct error *err)
{
	const json_t *dense = config_member(o, "mlp_only_layers");
	int64_t step;
	double noise, clip;
	int r;

	if (dense && (!json_is_array(dense) || json_array_size(dense) > 0))
		return error_set(
		    err, -EINVAL,
		    "%s: mlp_only_layers: layers without experts are not supported; expected an empty list",
		    where);
	if ((r = config_int(o, "decoder_sparse_step", where, 0, INT32_MAX, 1, &step, err)) < 0 ||
	    (r = config_number(o, "router_jitter_noise", where, 0, 1, 0, &noise, err)) < 0 ||
	    (r = config_number(o, "clip_qkv", where, 0, 1e9, 0, &clip, err)) < 0)
		return r;
	if (step != 1 && f->expert_width_key)
		return error_set(err, -EINVAL,
		                 "%s: decoder_sparse_step: %lld is not supported; expected 1, which is "
		                 "experts in every layer",
		                 where, (long long)step);
	if (noise > 0 && f->naming == MODEL_NAMES_MIXTRAL)
		return error_set(err, -EINVAL, "%s: router_jitter_noise: %g is not supported; expected 0",
		                 where, noise);
	if (clip > 0)
		return error_set(err, -EINVAL, "%s: clip_qkv: %g is not supported; expected null", where,
		                 clip);
	return 0;
}

int config_read_experts(const json_t *o, const char *where, const struct family *f, struct model_config *c,
                        struct error *err)
{
	static const char older[] = "num_experts", newer[] = "num_local_experts";
	const char *key = config_member(o, newer) ? newer : older;
	int64_t experts, same, chosen, width = c->intermediate;
	bool balanced;
	int r;

	if (!f->default_experts)
		return 0;
	if ((r = check_experts(o, where, f, err)) < 0 ||
	    (r = config_int(o, key, where, 1, DEVICE_EXPERTS_MAX, f->default_experts, &experts, err)) < 0 ||
	    (r = config_int(o, "num_experts_per_tok", where, 1, DEVICE_CHOSEN_MAX, f->default_chosen, &chosen,
	                    err)) < 0 ||
	    (f->expert_width_key && (r = config_int(o, f->expert_width_key, where, 1, 1 << 22,
	                                            f->default_expert_width, &width, err)) < 0) ||
	    (r = config_bool(o, "norm_topk_prob", where, false, &c->normalized_experts, err)) < 0 ||
	    (r = config_bool(o, "output_router_logits", where, false, &balanced, err)) < 0 ||
	    (r = config_number(o, "router_aux_loss_coef", where, 0, 1e3, f->default_router_loss,
	                       &c->router_loss, err)) < 0)
		return r;
	/* transformers has two names for one number. */
	if ((r = config_int(o, older, where, 1, DEVICE_EXPERTS_MAX, experts, &same, err)) < 0)
		return r;
	if (same != experts)
		return error_set(err, -EINVAL, "%s: %s (%d) and %s (%d) differ; expected one of them", where,
		                 older, (int)same, newer, (int)experts);
	if (chosen > experts)
		return error_set(err, -EINVAL, "%s: num_experts_per_tok (%d) is more than %s (%d)", where,
		                 (int)chosen, key, (int)experts);
	c->experts = (int)experts;
	c->chosen_experts = (int)chosen;
	c->intermediate = (int)width;
	c->normalized_experts |= f->always_normalized;
	c->router_loss = balanced ? c->router_loss : 0;
	return 0;
}
