// SPDX-License-Identifier: Apache-2.0
/* placeholder */
#pragma once
#include "engine/device/cuda/attention.cuh"
