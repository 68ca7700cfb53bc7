/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reading of what etcd's gateway answers. What is read as a text and written again is the same. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "wire/etcd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As a key of a request, in the place of one of an answer. */
static void write_again(const struct etcd_pair *pair)
{
	_cleanup_json_ json_t *request = etcd_range_request(pair->key, NULL, 0);
	_cleanup_json_ json_t *answer = json_pack("{s:[O]}", "kvs", request);
	struct etcd_pairs again;

	if (!answer || etcd_range_read(answer, &again, NULL) < 0 || again.count != 1 ||
	    strcmp(again.list[0].key, pair->key) != 0)
		abort();
	etcd_pairs_clear(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;
	struct etcd_pairs pairs;
	int64_t a, b;
	bool done;

	if (json_parse((const char *)data, size, "fuzz", &json, NULL) < 0)
		return 0;
	if (etcd_range_read(json, &pairs, &err) == 0) {
		for (size_t i = 0; i < pairs.count; i++)
			write_again(&pairs.list[i]);
		etcd_pairs_clear(&pairs);
	} else if (!err.message[0])
		abort();
	etcd_txn_read(json, &done, &a, NULL);
	etcd_lease_read(json, &a, &b, NULL);
	return etcd_error(json) && strlen(etcd_error(json)) > size ? -1 : 0;
}
