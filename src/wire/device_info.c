/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of devices. */
#include "wire/device_info.h"

const char *const device_kinds[] = {[DEVICE_KIND_CPU] = "cpu",
                                    [DEVICE_KIND_GPU] = "gpu",
                                    [DEVICE_KINDS] = NULL,
                                    [DEVICE_KIND_OTHER] = "unknown"};
const char *const slot_states[] = {
    [SLOT_FREE] = "free",       [SLOT_LEASED] = "leased", [SLOT_DRAINING] = "draining",
    [SLOT_DRAINED] = "drained", [SLOT_STATES] = NULL,     [SLOT_OTHER] = "unknown"};

#define F(...) MESSAGE_FIELD(mig_info, __VA_ARGS__)

static const struct field mig_fields[] = {
    F(gpu_instance, FIELD_INT, FIELD_REQUIRED),
    F(compute_instance, FIELD_INT, FIELD_REQUIRED),
};
static const struct message mig_message = {"mig", sizeof(struct mig_info), mig_fields, ARRAY_SIZE(mig_fields),
                                           MESSAGE_OPEN};

#undef F
#define F(...) MESSAGE_FIELD(xid_info, __VA_ARGS__)

static const struct field xid_fields[] = {
    F(code, FIELD_INT, FIELD_REQUIRED),
    F(message, FIELD_STRING, FIELD_REQUIRED),
    F(time, FIELD_NUMBER, FIELD_REQUIRED),
};
static const struct message xid_message = {"xid", sizeof(struct xid_info), xid_fields, ARRAY_SIZE(xid_fields),
                                           MESSAGE_OPEN};

#undef F
#define F(...) MESSAGE_FIELD(gpu_info, __VA_ARGS__)

static const struct field gpu_fields[] = {
    F(gpu, FIELD_INT, FIELD_REQUIRED),
    F(pci, FIELD_STRING, FIELD_NULL),
    F(numa, FIELD_INT, FIELD_NULL, .absent = -1),
    F(mig, FIELD_STRUCT, FIELD_NULL, .message = &mig_message),
    F(links, FIELD_STRINGS, FIELD_OPTIONAL),
    F(driver, FIELD_STRING, FIELD_NULL),
    F(cuda, FIELD_STRING, FIELD_NULL),
    F(xid, FIELD_STRUCT, FIELD_NULL, .message = &xid_message),
    F(read, FIELD_NUMBER, FIELD_NULL, .varies = true),
    F(memory_used, FIELD_INT, FIELD_NULL, .absent = -1, .varies = true),
    F(utilization, FIELD_INT, FIELD_NULL, .absent = -1, .varies = true),
    F(temperature, FIELD_INT, FIELD_NULL, .absent = -1, .varies = true),
    F(power, FIELD_NUMBER, FIELD_NULL, .absent = -1, .varies = true),
    F(power_limit, FIELD_NUMBER, FIELD_NULL, .absent = -1),
    F(ecc_errors, FIELD_INT, FIELD_NULL, .absent = -1),
};
static const struct message gpu_message = {"gpu", sizeof(struct gpu_info), gpu_fields, ARRAY_SIZE(gpu_fields),
                                           MESSAGE_OPEN};

#undef F
#define F(...) MESSAGE_FIELD(device_info, __VA_ARGS__)

static const struct field device_fields[] = {
    F(node, FIELD_STRING, FIELD_REQUIRED),
    F(index, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
    F(kind, FIELD_ENUM, FIELD_REQUIRED, .names = device_kinds, .other = DEVICE_KIND_OTHER),
    F(name, FIELD_STRING, FIELD_REQUIRED),
    F(memory, FIELD_INT, FIELD_REQUIRED),
    F(threads, FIELD_INT, FIELD_REQUIRED),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = slot_states, .other = SLOT_OTHER),
    F(uuid, FIELD_STRING, FIELD_NULL),
    F(run, FIELD_INT, FIELD_NULL),
    F(reserved_for, FIELD_INT, FIELD_OPTIONAL),
    F(reason, FIELD_STRING, FIELD_NULL),
    F(gpu_info, FIELD_MEMBERS, FIELD_OPTIONAL, .message = &gpu_message),
};
const struct message device_info_message = {"device", sizeof(struct device_info), device_fields,
                                            ARRAY_SIZE(device_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(device_info)
