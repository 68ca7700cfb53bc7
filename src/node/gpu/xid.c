/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After NVIDIA's Xid catalogue: what it answers with "restart the application" is the application's; what it
 * answers with a reset of the GPU, a restart of the machine or a look at the hardware drains the device. So
 * do 63 (the row or page is replaced by the next reset only) and 92, which foretell worse. What NVIDIA
 * decides by bits that only the kernel's log has (74, 144 to 150: NVLink) counts as the device's.
 */
#include "node/gpu/xid.h"

#include "base/cleanup.h"

static const struct xid xids[] = {
    {8, 8, XID_APPLICATION, false, "stopped processing"},
    {11, 11, XID_APPLICATION, false, "invalid commands"},
    {13, 13, XID_APPLICATION, false, "exception in the compute engine"},
    {25, 25, XID_APPLICATION, false, "invalid commands"},
    {31, 31, XID_APPLICATION, false, "memory page fault"},
    {32, 32, XID_APPLICATION, false, "invalid commands"},
    {37, 38, XID_NOTICE, false, "driver firmware error"},
    {39, 41, XID_APPLICATION, false, "exception in a copy engine"},
    {43, 43, XID_NOTICE, false, "stopped an application's work after a fault of its own"},
    {44, 44, XID_NOTICE, false, "fault during a context switch"},
    {45, 45, XID_NOTICE, false, "removed an application's work after an earlier error"},
    {46, 46, XID_DEVICE, false, "stopped processing"},
    {48, 48, XID_DEVICE, true, "uncorrectable memory error (double-bit ECC)"},
    {54, 54, XID_DEVICE, false, "auxiliary power is not connected"},
    {60, 60, XID_APPLICATION, false, "exception in a video engine"},
    {61, 61, XID_DEVICE, false, "internal microcontroller stopped"},
    {62, 62, XID_DEVICE, false, "internal microcontroller halted"},
    {63, 63, XID_DEVICE, true, "a memory row or page waits to be retired by a reset"},
    {64, 64, XID_DEVICE, false, "a memory row or page could not be retired"},
    {66, 67, XID_NOTICE, false, "illegal access by the driver"},
    {68, 69, XID_APPLICATION, false, "exception in an engine"},
    {70, 72, XID_APPLICATION, false, "exception in a copy engine"},
    {74, 74, XID_DEVICE, false, "NVLink error"},
    {75, 77, XID_APPLICATION, false, "exception in a copy engine"},
    {78, 78, XID_NOTICE, false, "a virtual GPU could not be started"},
    {79, 79, XID_DEVICE, false, "fell off the bus"},
    {80, 80, XID_APPLICATION, false, "corrupted commands"},
    {82, 84, XID_APPLICATION, false, "exception in a video engine"},
    {85, 85, XID_APPLICATION, false, "exception in a copy engine"},
    {86, 89, XID_APPLICATION, false, "exception in a video engine"},
    {92, 92, XID_DEVICE, false, "high rate of corrected memory errors"},
    {93, 93, XID_NOTICE, false, "wear of the infoROM"},
    {94, 94, XID_DEVICE, true, "contained uncorrectable memory error"},
    {95, 95, XID_DEVICE, true, "uncontained uncorrectable memory error"},
    {96, 105, XID_APPLICATION, false, "exception in a video engine"},
    {106, 107, XID_NOTICE, false, "test message"},
    {109, 109, XID_DEVICE, false, "context switch timed out"},
    {110, 110, XID_DEVICE, false, "security fault"},
    {119, 119, XID_DEVICE, false, "its firmware (GSP) does not answer"},
    {120, 120, XID_DEVICE, false, "error in its firmware (GSP)"},
    {121, 121, XID_NOTICE, false, "corrected error on the link to the CPU (C2C)"},
    {126, 135, XID_APPLICATION, false, "exception in a copy engine"},
    {136, 136, XID_DEVICE, false, "NVLink training failed"},
    {137, 137, XID_NOTICE, false, "NVLink access by a peer was refused"},
    {139, 139, XID_APPLICATION, false, "exception in a video engine"},
    {140, 140, XID_DEVICE, true, "unrecovered memory error (ECC)"},
    {141, 141, XID_NOTICE, false, "error on a fast path of CUDA"},
    {142, 142, XID_APPLICATION, false, "exception in a video engine"},
    {143, 143, XID_DEVICE, false, "could not be initialized"},
    {144, 150, XID_DEVICE, false, "NVLink error"},
    {151, 151, XID_DEVICE, false, "key rotation error"},
    {154, 154, XID_NOTICE, false, "the driver's advice for recovery has changed"},
    {155, 155, XID_DEVICE, false, "NVLink error"},
    {156, 156, XID_DEVICE, true, "a part of it waits to be retired by a reset"},
    {157, 157, XID_DEVICE, false, "a part of it could not be retired"},
    {158, 158, XID_DEVICE, false, "fatal timeout"},
    {160, 161, XID_NOTICE, false, "channel retirement"},
    {162, 165, XID_NOTICE, false, "power smoothing"},
    {167, 167, XID_DEVICE, false, "fatal PCIe timeout"},
    {169, 169, XID_DEVICE, false, "internal microcontroller halted"},
    {171, 172, XID_DEVICE, true, "uncorrectable memory error"},
};

const struct xid *xid_find(unsigned long long code)
{
	static const struct xid unknown = {0, 0, XID_NOTICE, false, "not in the list of known errors"};

	for (size_t i = 0; i < ARRAY_SIZE(xids); i++)
		if (code >= (unsigned)xids[i].first && code <= (unsigned)xids[i].last)
			return &xids[i];
	return &unknown;
}
