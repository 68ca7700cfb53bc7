/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the members of a config.json. */
#include "engine/model/config_values.h"

#include <errno.h>
#include <math.h>

const json_t *config_member(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_null(v) ? NULL : v;
}

int config_int(const json_t *o, const char *key, const char *where, int64_t min, int64_t max,
               int64_t fallback, int64_t *out, struct error *err)
{
	*out = fallback;
	if (!config_member(o, key) && fallback >= min)
		return 0;
	return json_need_int(o, key, where, min, max, out, err);
}

int config_number(const json_t *o, const char *key, const char *where, double min, double max,
                  double fallback, double *out, struct error *err)
{
	const json_t *v = config_member(o, key);

	*out = fallback;
	if (!v)
		return 0;
	if (!json_is_number(v) || !(json_number_value(v) >= min && json_number_value(v) <= max))
		return error_set(err, -EINVAL, "%s: %s: a number from %g to %g is needed", where, key, min,
		                 max);
	*out = json_number_value(v);
	return 0;
}

int config_need_number(const json_t *o, const char *key, const char *where, double min, double max,
                       double fallback, double *out, struct error *err)
{
	if (!json_object_get(o, key) && isnan(fallback))
		return error_set(err, -EINVAL, "%s: %s is missing", where, key);
	if (json_is_null(json_object_get(o, key)))
		return error_set(err, -EINVAL, "%s: %s: null; a number from %g to %g is needed", where, key,
		                 min, max);
	return config_number(o, key, where, min, max, fallback, out, err);
}

int config_bool(const json_t *o, const char *key, const char *where, bool fallback, bool *out,
                struct error *err)
{
	const json_t *v = config_member(o, key);

	*out = fallback;
	if (!v)
		return 0;
	if (!json_is_boolean(v))
		return error_set(err, -EINVAL, "%s: %s: true or false is needed", where, key);
	*out = json_is_true(v);
	return 0;
}

int config_word(const json_t *o, const char *key, const char *where, const char *fallback, const char **out,
                struct error *err)
{
	*out = fallback;
	return json_object_get(o, key) ? json_need_string(o, key, where, out, err) : 0;
}

int32_t config_first_id(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (json_is_array(v))
		v = json_array_get(v, 0);
	return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < INT32_MAX
	           ? (int32_t)json_integer_value(v)
	           : -1;
}
