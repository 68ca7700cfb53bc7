/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scaler of fp16 does with sequences of overflows what DeepSpeed's does, also when it is
 * interrupted. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "engine/optim/scaler.h"
#include "scaler_cases.h"
#include "unit.h"

/* Saved and read again before step `interrupted`. */
static void check_case(const struct scaler_case *c, int interrupted)
{
	struct error err = ERROR_INIT;
	struct loss_scaler s;
	int64_t skipped = 0;

	loss_scaler_start(&s, &c->o);
	for (int i = 0; c->overflows[i]; i++) {
		bool overflow = c->overflows[i] == 'x';

		if (i == interrupted) {
			_cleanup_json_ json_t *j = loss_scaler_to_json(&s);
			struct loss_scaler state;

			ck_ok(loss_scaler_from_json(&state, j, "state.json", &err), &err);
			loss_scaler_start(&s, &c->o);
			loss_scaler_resume(&s, &state);
		}
		if (i == c->scales) {
			ck_assert_int_eq(loss_scaler_update(&s, overflow, &err), -ERANGE);
			ck_assert_ptr_nonnull(strstr(err.message, "bf16"));
			return;
		}
		ck_ok(loss_scaler_update(&s, overflow, &err), &err);
		skipped += overflow;
		ck_assert_msg(s.scale == c->scale[i], "%s: %g after step %d, not %g", c->overflows, s.scale,
		              i, c->scale[i]);
		ck_assert_int_eq(s.skipped, skipped);
	}
	ck_assert_int_eq(c->scales, (int)strlen(c->overflows));
}

START_TEST(as_deepspeed)
{
	check_case(&scaler_cases[_i], -1);
	check_case(&scaler_cases[_i], 7);
	check_case(&scaler_cases[_i], 13);
}
END_TEST

START_TEST(fixed)
{
	struct error err = ERROR_INIT;
	struct loss_scaler s, other;

	loss_scaler_start(&s, &(struct loss_scaler_options){.fixed = 512});
	for (int i = 0; i < 9; i++) {
		ck_ok(loss_scaler_update(&s, i % 2, &err), &err);
		ck_assert_double_eq(s.scale, 512);
	}
	ck_assert_int_eq(s.skipped, 4);
	/* A run that goes on with another scale has the other one, and still knows what it skipped. */
	loss_scaler_start(&other, &(struct loss_scaler_options){.fixed = 64});
	loss_scaler_resume(&other, &s);
	ck_assert_double_eq(other.scale, 64);
	ck_assert_int_eq(other.skipped, 4);
}
END_TEST

START_TEST(damaged_state)
{
	static const struct {
		const char *text, *words;
	} bad[] = {
	    {"{}", "steps"},
	    {"{\"scale\":0,\"steps\":1,\"last_overflow\":-1,\"hysteresis\":2,\"skipped\":0}", "scale"},
	    {"{\"scale\":1,\"steps\":-1,\"last_overflow\":-1,\"hysteresis\":2,\"skipped\":0}", "steps"},
	    {"{\"scale\":1,\"steps\":1,\"last_overflow\":-2,\"hysteresis\":2,\"skipped\":0}",
	     "last_overflow"},
	    {"{\"scale\":1,\"steps\":1,\"last_overflow\":-1,\"hysteresis\":0,\"skipped\":0}", "hysteresis"},
	};
	_cleanup_json_ json_t *j = NULL;
	struct error err = ERROR_INIT;
	struct loss_scaler s;

	ck_ok(json_parse(bad[_i].text, (int64_t)strlen(bad[_i].text), "state.json", &j, &err), &err);
	ck_fails(loss_scaler_from_json(&s, j, "state.json", &err), &err, bad[_i].words);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("scaler");
	TCase *c = tcase_create("scaler");

	tcase_add_loop_test(c, as_deepspeed, 0, ARRAY_SIZE(scaler_cases));
	tcase_add_test(c, fixed);
	tcase_add_loop_test(c, damaged_state, 0, 5);
	suite_add_tcase(suite, c);
	return unit_run(suite);
}
