/* SPDX-License-Identifier: Apache-2.0 */
/* Saving from a GPU: the saved bytes, and the number of reads, each of which waits for the GPU. */
#include <cuda_runtime_api.h>

#include "../engine/fake_dataset.h"
#include "base/str.h"
#include "engine/checkpoint/save_write.h"
#include "engine/train/trainer.h"
#include "unit.h"

/* An embedding of 1.5 million elements; all others are far below one million. */
static const char model_text[] =
    "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":160,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":48000,\"tie_word_embeddings\":true}";

/* The saved values of a parameter, converted one by one. */
static void expect_bytes(struct trainer *t, const struct model_parameter *p, const void *saved)
{
	float *all = malloc((size_t)p->count * sizeof(*all));
	uint16_t *want = malloc((size_t)p->count * sizeof(*want));
	struct error err = ERROR_INIT;

	ck_ok(trainer_read(t, STATE_WEIGHTS, p, 0, p->count, all, &err), &err);
	for (int64_t i = 0; i < p->count; i++)
		want[i] = bf16_from_float(all[i]);
	ck_assert_msg(!memcmp(saved, want, (size_t)p->count * sizeof(*want)), "%s", p->name);
	free(all);
	free(want);
}

/* _i: weights without a master copy, which are in bf16 already. */
START_TEST(one_read_for_a_million_elements)
{
	struct save_plan_options save = {.world_size = 1, .type = DTYPE_BF16};
	_cleanup_(save_plan_freep) struct save_plan *plan = NULL;
	_cleanup_(save_writer_freep) struct save_writer *writer = NULL;
	struct save_write write;
	uint64_t list_bytes, list_hash;
	_cleanup_(dataset_closep) struct dataset *data = fake_dataset(4, 9, 4, 50, false);
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_free_ char *directory = unit_tmpdir();
	struct model_init init = {.seed = 1, .std = 0.1};
	const struct model_layout *layout;
	struct error err = ERROR_INIT;
	struct train_options o;
	struct parameter_access access;
	struct trainer *t = NULL;
	struct model_config c;
	struct device *dev;
	int before, pieces = 0;

	ck_ok(model_config_parse(model_text, strlen(model_text), "config.json", &c, &err), &err);
	train_options_default(&o);
	o.precision = DTYPE_BF16;
	o.without_master = _i;
	ck_ok(device_create(NULL, &dev, &err), &err);
	ck_ok(trainer_create(dev, NULL, &c, &o, data, NULL, &t, &err), &err);
	access = trainer_access(t);
	ck_ok(trainer_load(t, model_init_fill, &init, &err), &err);
	ck_ok(save_plan_create(&access, &save, &plan, &err), &err);
	write = (struct save_write){.directory = directory, .plan = plan, .access = &access};
	before = simt_reads();
	ck_ok(save_writer_create(&write, &writer, &err), &err);
	ck_ok(save_writer_own(writer, NULL, &list_bytes, &list_hash, &err), &err);
	layout = trainer_layout(t);
	for (int i = 0; i < layout->parameters; i++)
		pieces += (int)((layout->parameter[i].count + (1 << 20) - 1) >> 20);
	ck_assert_int_eq(pieces, layout->parameters + 1);
	ck_assert_int_eq(simt_reads() - before, pieces);
	ck_ok(safetensors_open(directory, &st, &err), &err);
	for (int i = 0; i < layout->parameters; i++) {
		const struct tensor *saved = safetensors_find(st, layout->parameter[i].name);

		ck_assert_ptr_nonnull(saved);
		ck_assert_int_eq(saved->bytes, 2 * layout->parameter[i].count);
		expect_bytes(t, &layout->parameter[i], saved->data);
	}
	trainer_free(t);
	device_destroy(dev);
	ck_assert(!file_remove_tree(directory, NULL));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("saving");
	TCase *tc = tcase_create("saving");

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, one_read_for_a_million_elements, 0, 2);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
