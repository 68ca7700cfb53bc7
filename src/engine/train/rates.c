/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes the file of measured rates, and interpolates between them. */
#include "engine/train/rates.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/str.h"

const int64_t rate_lengths[RATE_LENGTHS] = {64, 192, 512, 2048};
const int64_t rate_widths[RATE_WIDTHS] = {32, 128};
const int64_t rate_bytes[RATE_LENGTHS] = {64 << 10, 1 << 20, 8 << 20, 64 << 20};

static const char *const types[RATE_TYPES] = {
    [DTYPE_F32] = "fp32", [DTYPE_BF16] = "bf16", [DTYPE_F16] = "fp16"};
static const char *const products[RATE_PRODUCTS] = {"forward", "input", "weight"};
static const char *const directions[2] = {"forward", "backward"};
static const char *const operations[RATE_OPERATIONS] = {
    [RATE_NORM] = "norm",         [RATE_NORM_BACKWARD] = "norm_backward",
    [RATE_ROTATION] = "rotation", [RATE_SWIGLU] = "swiglu",
    [RATE_LOSS] = "loss",         [RATE_SWIGLU_BACKWARD] = "swiglu_backward",
    [RATE_COPY] = "copy",         [RATE_OPTIMIZER] = "optimizer",
};

/* The tables of a set: a group, the names in it, and how many rates each has. */
enum { GROUPS = 3 };
static const struct {
	const char *name;
	const char *const *names;
	int members, rates;
} groups[GROUPS] = {
    {"products", products, RATE_PRODUCTS, RATE_LENGTHS *RATE_LENGTHS *RATE_LENGTHS},
    {"attention", directions, 2, RATE_WIDTHS *RATE_LENGTHS},
    {"operations", operations, RATE_OPERATIONS, RATE_LENGTHS},
};

static double *table(struct rate_set *s, int group, int type, int member)
{
	return group == 0   ? s->product[type][member]
	       : group == 1 ? s->attention[type][member]
	                    : s->operation[type][member];
}

json_t *rates_encode(const struct rates *r)
{
	json_t *sets = json_array(), *all;

	for (int i = 0; i < r->sets; i++) {
		struct rate_set *s = (struct rate_set *)&r->set[i];
		json_t *set = json_pack("{s:i,s:i}", "threads", s->threads, "ranks", s->ranks);

		for (int g = 0; g < GROUPS; g++) {
			json_t *group = json_object();

			for (int t = 0; t < RATE_TYPES; t++) {
				json_t *of_type = json_object();

				for (int m = 0; m < groups[g].members && s->has[t]; m++) {
					json_t *list = json_array();

					for (int k = 0; k < groups[g].rates; k++)
						json_array_append_new(list, json_real(table(s, g, t, m)[k]));
					json_object_set_new(of_type, groups[g].names[m], list);
				}
				if (s->has[t])
					json_object_set_new(group, types[t], of_type);
				else
					json_decref(of_type);
			}
			json_object_set_new(set, groups[g].name, group);
		}
		json_array_append_new(sets, set);
	}
	all = json_pack("{s:s,s:s,s:o}", "device", r->device, "version", r->version, "sets", sets);
	for (int k = 0; k < 2; k++) {
		const double *from = k ? r->reduce : r->gather;
		json_t *list = json_array();

		for (int i = 0; i < RATE_LENGTHS; i++)
			json_array_append_new(list, json_real(from[i]));
		if (from[0] > 0)
			json_object_set_new(all, k ? "reduce" : "gather", list);
		else
			json_decref(list);
	}
	return all;
}

static int read_list(const json_t *list, double *to, int n)
{
	if (json_array_size(list) != (size_t)n)
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		to[i] = json_number_value(json_array_get(list, (size_t)i));
		if (!(to[i] > 0) || !isfinite(to[i]))
			return -EINVAL;
	}
	return 0;
}

/* -ESTALE: of ranks on a CPU, but not how many there were. */
static int read_set(const json_t *json, struct rate_set *s)
{
	s->threads = (int)json_get_int(json, "threads", -1);
	s->ranks = (int)json_get_int(json, "ranks", 1);
	if (s->threads < 0 || s->ranks < 1)
		return -EINVAL;
	if (s->threads > 0 && !json_object_get(json, "ranks"))
		return -ESTALE;
	for (int t = 0; t < RATE_TYPES; t++) {
		s->has[t] = json_object_get(json_object_get(json, groups[0].name), types[t]) != NULL;
		for (int g = 0; g < GROUPS && s->has[t]; g++) {
			const json_t *group = json_object_get(json, groups[g].name);

			for (int m = 0; m < groups[g].members; m++)
				if (read_list(
				        json_object_get(json_object_get(group, types[t]), groups[g].names[m]),
				        table(s, g, t, m), groups[g].rates) < 0)
					return -EINVAL;
		}
	}
	return 0;
}

int rates_decode(const json_t *json, const char *where, struct rates *out, struct error *err)
{
	const json_t *sets = json_object_get(json, "sets");
	bool old = false;

	*out = (struct rates){.sets = (int)MIN(json_array_size(sets), (size_t)RATE_SETS_MAX)};
	snprintf(out->device, sizeof(out->device), "%s", json_get_string(json, "device", ""));
	snprintf(out->version, sizeof(out->version), "%s", json_get_string(json, "version", ""));
	for (int i = 0; i < out->sets; i++) {
		int r = read_set(json_array_get(sets, (size_t)i), &out->set[i]);

		old = old || r == -ESTALE;
		if (r < 0)
			out->sets = 0;
	}
	for (int k = 0; k < 2; k++) {
		const json_t *list = json_object_get(json, k ? "reduce" : "gather");

		if (list && read_list(list, k ? out->reduce : out->gather, RATE_LENGTHS) < 0)
			out->sets = 0;
	}
	if (old)
		return error_set(err, -EINVAL,
		                 "%s: an earlier release measured it, without ranks that run at the same "
		                 "time; write a new one with dtrain estimate --measure",
		                 where);
	return out->sets > 0 ? 0
	                     : error_set(err, -EINVAL,
	                                 "%s: no file of rates; write a new one with dtrain estimate "
	                                 "--measure",
	                                 where);
}

int rates_read(const char *path, struct rates **out, struct error *err)
{
	_cleanup_free_ struct rates *r = malloc(sizeof(*r));
	_cleanup_json_ json_t *json = NULL;
	int e;

	if (!r)
		return error_oom(err);
	if ((e = json_read_file(path, &json, err)) < 0 || (e = rates_decode(json, path, r, err)) < 0)
		return e;
	*out = steal_pointer(r);
	return 0;
}

const char *rates_version_note(const struct rates *r, char *text, size_t size)
{
	*text = '\0';
	if (!str_eq(r->version, DTRAIN_VERSION))
		snprintf(
		    text, size,
		    "dtrain %s measured the rates, this is dtrain %s: dtrain estimate --measure measures "
		    "them again",
		    *r->version ? r->version : "before 0.2.0", DTRAIN_VERSION);
	return text;
}

/* ---- between what was measured ---- */

/* Where v lies in a rising list: between [*at] and [*at + 1], and how far. */
static double place(const int64_t *list, int n, double v, int *at)
{
	for (*at = 0; *at < n - 2 && v > (double)list[*at + 1]; (*at)++)
		;
	v = (log(v) - log((double)list[*at])) / (log((double)list[*at + 1]) - log((double)list[*at]));
	return MIN(MAX(v, 0), 1);
}

/* The set of one rank with that many threads, else with the nearest number. */
static const struct rate_set *alone(const struct rates *r, int threads)
{
	const struct rate_set *best = NULL;

	for (int i = 0; i < r->sets; i++)
		if (r->set[i].ranks == 1 &&
		    (!best || abs(r->set[i].threads - threads) < abs(best->threads - threads)))
			best = &r->set[i];
	return best ?: &r->set[0];
}

/* The set of the most ranks at the same time; NULL: there is none of several. */
static const struct rate_set *together(const struct rates *r)
{
	const struct rate_set *best = NULL;

	for (int i = 0; i < r->sets; i++)
		if (r->set[i].ranks > (best ? best->ranks : 1))
			best = &r->set[i];
	return best;
}

/* More threads than were measured are as much faster. */
static double scale(const struct rate_set *s, int threads)
{
	return s->threads > 0 ? (double)threads / s->threads : 1;
}

/* Which rate of a set: of a product, of attention, or of another operation. */
struct rate_key {
	enum dtype type;
	enum rate_product product;
	double lengths[3];
	bool backward;
	double row, width;
	enum rate_operation operation;
	double bytes;
};

/* The logarithm of that rate in a set. */
typedef double log_rate_fn(const struct rate_set *s, const struct rate_key *key);

static double interpolate(const struct rates *r, int slots, int threads, log_rate_fn *log_rate_in,
                          const struct rate_key *key)
{
	const struct rate_set *one = alone(r, threads), *all = together(r);
	double log_rate, part;

	if ((int)key->type >= RATE_TYPES || !one->has[key->type])
		return 0;
	log_rate = log_rate_in(one, key) + log(scale(one, threads));
	if (all && all->has[key->type] && slots > 1) {
		part = ((double)slots * threads - 1) / ((double)all->ranks * all->threads - 1);
		part = MIN(MAX(part, 0), 1);
		log_rate = (1 - part) * log_rate + part * (log_rate_in(all, key) + log(scale(all, threads)));
	}
	return exp(log_rate);
}

static double log_product_rate(const struct rate_set *s, const struct rate_key *key)
{
	double part[3], sum = 0;
	int at[3];

	for (int i = 0; i < 3; i++)
		part[i] = place(rate_lengths, RATE_LENGTHS, key->lengths[i], &at[i]);
	for (int corner = 0; corner < 8; corner++) {
		double weight = 1;
		int index = 0;

		for (int i = 0; i < 3; i++) {
			int up = corner >> i & 1;

			weight *= up ? part[i] : 1 - part[i];
			index = index * RATE_LENGTHS + at[i] + up;
		}
		if (weight > 0)
			sum += weight * log(s->product[key->type][key->product][index]);
	}
	return sum;
}

double rates_product(const struct rates *r, int slots, int threads, enum dtype type, enum rate_product kind,
                     double m, double n, double k)
{
	return interpolate(r, slots, threads, log_product_rate,
	                   &(struct rate_key){.type = type, .product = kind, .lengths = {m, n, k}});
}

static double log_attention_rate(const struct rate_set *s, const struct rate_key *key)
{
	const double *at = s->attention[key->type][key->backward];
	double x, y;
	int i, j;

	x = place(rate_widths, RATE_WIDTHS, key->width, &i);
	y = place(rate_lengths, RATE_LENGTHS, key->row, &j);
	at += i * RATE_LENGTHS + j;
	return (1 - x) * ((1 - y) * log(at[0]) + y * log(at[1])) +
	       x * ((1 - y) * log(at[RATE_LENGTHS]) + y * log(at[RATE_LENGTHS + 1]));
}

double rates_attention(const struct rates *r, int slots, int threads, enum dtype type, bool backward,
                       double row, double width)
{
	return interpolate(
	    r, slots, threads, log_attention_rate,
	    &(struct rate_key){.type = type, .backward = backward, .row = row, .width = width});
}

static double log_operation_rate(const struct rate_set *s, const struct rate_key *key)
{
	const double *at = s->operation[key->type][key->operation];
	int i;
	double part = place(rate_bytes, RATE_LENGTHS, key->bytes, &i);

	return (1 - part) * log(at[i]) + part * log(at[i + 1]);
}

double rates_operation(const struct rates *r, int slots, int threads, enum dtype type, enum rate_operation op,
                       double bytes)
{
	return interpolate(r, slots, threads, log_operation_rate,
	                   &(struct rate_key){.type = type, .operation = op, .bytes = bytes});
}

static double rate_of_bytes(const double *rates, double bytes)
{
	int at;
	double part = place(rate_bytes, RATE_LENGTHS, bytes, &at);

	return rates[0] > 0 ? exp((1 - part) * log(rates[at]) + part * log(rates[at + 1])) : 0;
}

double rates_gather(const struct rates *r, double bytes)
{
	return rate_of_bytes(r->gather, bytes);
}

/* Files from before it was measured have the gather alone. */
double rates_reduce(const struct rates *r, double bytes)
{
	return rate_of_bytes(r->reduce[0] > 0 ? r->reduce : r->gather, bytes);
}
