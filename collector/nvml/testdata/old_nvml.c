// A library of the time before memory version 2, MPS lists, row remapping and MIG: calling what it lacks ends the process. Eight
// cards, one process on each, and one Xid 31 of card 1. Built by TestLibraryOfAnOldDriver.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef int ret;
enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, SMALL = 7, LATE = 10 };
enum { CARDS = 8 };

static int cards[CARDS], told;
static int number(void *d) { return (int *)d - cards; }

ret nvmlInit_v2(void) { return OK; }
ret nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(ret r) { return "an error"; }
ret nvmlDeviceGetCount_v2(unsigned *n) { *n = CARDS; return OK; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = &cards[i]; return i < CARDS ? OK : INVALID; }
ret nvmlDeviceGetUUID(void *d, char *s, unsigned n) { snprintf(s, n, "GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f%d", number(d)); return OK; }
ret nvmlDeviceGetName(void *d, char *s, unsigned n) { snprintf(s, n, "Tesla V100-SXM2-32GB"); return OK; }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
ret nvmlDeviceGetPciInfo_v3(void *d, struct pci *p) { memset(p, 0, sizeof *p); p->bus = 0x1a + number(d); return OK; }

struct memory { unsigned long long total, free, used; };
ret nvmlDeviceGetMemoryInfo(void *d, struct memory *m) { m->total = 34359738368, m->used = 5492310016, m->free = m->total - m->used; return OK; }

struct process { unsigned pid; unsigned long long used; };
ret nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, struct process *p) {
	if (*n < 2) { *n = 2; return SMALL; }
	p[0].pid = 4242, p[0].used = 4847370240, p[1].pid = 4343, p[1].used = ~0ULL, *n = 2;
	return OK;
}
ret nvmlDeviceGetGraphicsRunningProcesses(void *d, unsigned *n, struct process *p) { *n = 0; return OK; }
ret nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 61250; return OK; }
ret nvmlDeviceGetTemperature(void *d, int sensor, unsigned *c) { *c = 41; return OK; }
ret nvmlDeviceGetUtilizationRates(void *d, unsigned *u) { u[0] = 50, u[1] = 1; return OK; }
ret nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, unsigned long long *n) { *n = kind + counter; return OK; }

ret nvmlEventSetCreate(void **s) { *s = &told; return OK; }
ret nvmlEventSetFree(void *s) { return OK; }
ret nvmlDeviceGetSupportedEventTypes(void *d, unsigned long long *t) { *t = 0x1f; return OK; }
ret nvmlDeviceRegisterEvents(void *d, unsigned long long t, void *s) { return t == 10 ? OK : UNSUPPORTED; }

struct happened { void *device; unsigned long long type, value; unsigned gi, ci; };
ret nvmlEventSetWait_v2(void *s, struct happened *e, unsigned ms) {
	if (told++) { usleep(ms * 1000); return LATE; }
	e->device = &cards[1], e->type = 8, e->value = 31, e->gi = e->ci = ~0U;
	return OK;
}
