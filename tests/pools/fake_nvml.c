/* A fake NVML for tests: what the probe asks, answered from the environment. A symbol that is missing makes the binding
   raise NVMLError_FunctionNotFound, as on an old driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process_t;
typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } event_t;

/* Handles: 1 + GPU, and 100 * (1 + GPU) + slice for MIG. */
static long number(void *h) { return (long)h >= 100 ? (long)h / 100 - 1 : (long)h - 1; }
static int is_slice(void *h) { return (long)h >= 100; }
static int is_set(const char *name, long gpu) { char *s = getenv(name); return s && atoi(s) == gpu; }
static int lost(void *h) { return is_set("FAKE_NVML_LOST", number(h)); }
static int count(void) { char *s = getenv("FAKE_NVML_COUNT"); return s ? atoi(s) : 2; }

int nvmlInitWithFlags(unsigned f) { (void)f; char *s = getenv("FAKE_NVML_INIT"); return s ? atoi(s) : 0; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *c) { *c = count(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
  if ((int)i >= count()) return 2;
  if (is_set("FAKE_NVML_NO_HANDLE", i)) return 15;
  *h = (void *)((long)i + 1);
  return 0;
}
int nvmlDeviceGetName(void *h, char *b, unsigned l) { (void)h; snprintf(b, l, "FAKE GPU (no hardware)"); return 0; }
int nvmlDeviceGetUUID(void *h, char *b, unsigned l) {
  if (is_slice(h)) snprintf(b, l, "MIG-fake-%ld-%ld", number(h), (long)h % 100);
  else snprintf(b, l, "GPU-fake0000-0000-0000-0000-%012ld", number(h));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) {
  if (lost(h)) return 15;
  m->total = 16ULL << 30;
  m->used = is_set("FAKE_NVML_LEFT_OVER", number(h)) ? 6ULL << 30 : 1ULL << 29;
  m->free = m->total - m->used;
  return 0;
}
int nvmlDeviceGetMigMode(void *h, unsigned *a, unsigned *b) {
  if (!is_set("FAKE_NVML_MIG", number(h))) return 3;
  *a = *b = 1;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *c) { (void)h; *c = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **s) {
  if (i > 1) return 6;
  *s = (void *)(100 * (number(h) + 1) + (long)i);
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void *h, int a, int b, unsigned long long *c) {
  (void)a; (void)b;
  *c = is_set("FAKE_NVML_ECC", number(h)) ? 3 : 0;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *c, process_t *p) {
  if (!is_set("FAKE_NVML_FOREIGN", number(h))) { *c = 0; return 0; }
  if (p == NULL || *c < 1) { *c = 1; return 7; }
  memset(p, 0, sizeof *p);
  p->pid = 1;
  p->used = 4ULL << 30;
  *c = 1;
  return 0;
}
/* FAKE_NVML_LINKS="4": each four GPUs in a row are linked with each other. */
int nvmlDeviceGetP2PStatus(void *a, void *b, unsigned what, unsigned *status) {
  char *s = getenv("FAKE_NVML_LINKS");
  if (!s) return 3;
  if (lost(a) || lost(b)) return 15;
  *status = what == 2 && number(a) / atoi(s) == number(b) / atoi(s) ? 0 : 5;
  return 0;
}
static int reported;
int nvmlEventSetCreate(void **s) { *s = (void *)1; return 0; }
int nvmlEventSetFree(void *s) { (void)s; return 0; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long kinds, void *s) { (void)h; (void)kinds; (void)s; return 0; }
int nvmlEventSetWait_v2(void *s, event_t *e, unsigned ms) {
  char *xid = getenv("FAKE_NVML_XID");
  (void)s; (void)ms;
  if (!xid || reported++) return 10;
  e->device = (void *)1;
  e->type = 8;
  e->data = strtoull(xid, NULL, 10);
  return 0;
}
