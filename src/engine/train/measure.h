/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the rates of a device (rates.h). */
#pragma once

#include "engine/comm/comm.h"
#include "engine/device/device.h"
#include "engine/train/rates.h"

/* The median of n seconds, which it sorts. */
double measure_median(double *seconds, size_t n);
/* out->threads is set before: those of the device, 0 for a GPU. Fills the rates that the device has now;
 * takes some seconds, and 300 MB. */
int rates_measure(struct device *dev, struct rate_set *out, struct error *err);
/* rates.gather and rates.reduce between the ranks of comm; all of them call it at the same time. */
int rates_measure_links(struct device *dev, struct comm *comm, double gather[RATE_LENGTHS],
                        double reduce[RATE_LENGTHS], struct error *err);
