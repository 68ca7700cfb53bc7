/* SPDX-License-Identifier: Apache-2.0 */
/* Knowledge distillation (Hinton et al. 2015): the loss of a chunk of logits, beside those of a teacher. */
#include "engine/model/internal.h"

void model_distill(struct model *m, int64_t first, int64_t n, float scale)
{
	struct model *t = m->teacher;
	const struct device_distillation d = {.teacher = t->logits,
	                                      .teacher_vocab = t->c.vocab,
	                                      .weight = (float)m->o.distillation_weight,
	                                      .temperature = (float)m->o.distillation_temperature,
	                                      .cap = (float)m->c.logits_cap,
	                                      .teacher_cap = (float)t->c.logits_cap};

	model_linear(t, head_unit(t), head_role(t), t->logits,
	             m->lesson + (size_t)(first * t->c.hidden) * t->size, n);
	device_distillation(m->dev, &d, m->logits, m->o.type, m->targets + first, n, m->c.vocab, scale,
	                    m->losses);
}
