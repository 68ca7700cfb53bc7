/* SPDX-License-Identifier: Apache-2.0 */
/* A device as its node describes it: in heartbeats, and in the answer to GET /v1/devices. */
#pragma once

#include "wire/message.h"

enum device_kind {
	DEVICE_KIND_CPU,
	DEVICE_KIND_GPU,
	DEVICE_KINDS,
	DEVICE_KIND_OTHER, /* in answers: a newer service has more kinds, and states */
};

enum slot_state {
	SLOT_FREE,
	SLOT_LEASED,
	SLOT_DRAINING, /* leased, and drained once it is free */
	SLOT_DRAINED,
	SLOT_STATES,
	SLOT_OTHER, /* the same */
};

/* By enum device_kind and slot_state. The words that are known end with NULL; that of another one follows. */
extern const char *const device_kinds[], *const slot_states[];

/* A part of a GPU. */
struct mig_info {
	int64_t gpu_instance, compute_instance;
};

/* The last Xid since the service has started. */
struct xid_info {
	int64_t code;
	char *message;
	double time; /* Unix seconds */
};

/* What a GPU alone has. What the driver or the GPU does not tell is absent. */
struct gpu_info {
	int64_t gpu;          /* as nvidia-smi counts */
	char *pci;            /* the address */
	int64_t numa;         /* the node next to it; -1 */
	struct mig_info *mig; /* NULL: a whole GPU */
	char **links;         /* to the device of each slot, as topology.h has the words; "": not known */
	char *driver, *cuda;  /* versions */
	struct xid_info *xid; /* NULL: none */
	double read;          /* Unix seconds of what follows; 0: nothing was read yet */
	int64_t memory_used;  /* bytes; -1 */
	int64_t utilization;  /* percent; -1 */
	int64_t temperature;  /* degrees Celsius; -1 */
	double power, power_limit; /* watts; -1 */
	int64_t ecc_errors;        /* uncorrected, since the driver was loaded; -1 */
};

struct device_info {
	char *node;
	int64_t index; /* of its slot */
	enum device_kind kind;
	char *name;
	int64_t memory; /* bytes */
	int64_t threads;
	enum slot_state state;
	char *uuid;                /* NULL: it has none */
	int64_t run;               /* that has it; 0: none */
	int64_t reserved_for;      /* the run for which it is kept as a spare; 0: none */
	char *reason;              /* why it is drained; NULL: it is not */
	struct gpu_info *gpu_info; /* NULL: no GPU */
};

MESSAGE_DECLARE(device_info)
