/* The calls of the CANN runtime whose answers torch_npu reads.  All others are generated and
   only return success.  Device memory is host memory and starts as zeros; kernels do nothing;
   every event is already reached.  With STANDIN_LOG=FILE the order of launches, collectives,
   events, core limits and waits of the host is appended there, a line each. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUBE = 0, VECTOR = 1, TO_HOST = 2, MOST_STREAMS = 64 };
static const uint32_t ALL_CORES[2] = {24, 48};
static const size_t HBM_BYTES = (size_t)64 << 30;
static const int64_t L2_BYTES = (int64_t)192 << 20;

void standin_note(const char *format, ...) {
    static FILE *file;
    const char *path = getenv("STANDIN_LOG");
    va_list values;
    if (path == NULL) return;
    if (file == NULL && (file = fopen(path, "a")) == NULL) return;
    va_start(values, format);
    vfprintf(file, format, values);
    va_end(values);
    fputc('\n', file);
    fflush(file);
}

/* Handles are numbers that no pointer has; steps of 16 keep them apart in logs. */
static int next_handle(void **handle) {
    static uintptr_t last = 0x1000;
    *handle = (void *)(last += 0x10);
    return 0;
}

static int zeroed(void **memory, size_t bytes) {
    size_t rounded = (bytes + 511) / 512 * 512;
    /* Fresh pages are zeros already, and untouched ones take no memory. */
    if (posix_memalign(memory, 512, rounded ? rounded : 512) != 0) return 1;
    if (rounded <= (size_t)1 << 20) memset(*memory, 0, rounded);
    return 0;
}

/* ---- devices ---- */
static __thread int current_device;
int aclrtGetDeviceCount(uint32_t *count) {
    const char *text = getenv("STANDIN_DEVICES");
    *count = text ? (uint32_t)atoi(text) : 1;
    return 0;
}
const char *aclrtGetSocName(void) { return "Ascend910_9391"; }
int aclrtSetDevice(int device) { current_device = device; return 0; }
int aclrtGetDevice(int *device) { *device = current_device; return 0; }
int aclrtGetCurrentContext(void **context) {
    *context = (void *)(uintptr_t)(0x100 + current_device);
    return 0;
}
int aclrtGetPrimaryCtxState(int device, uint32_t *flags, int *active) {
    *active = 1;
    return 0;
}
int aclGetDeviceCapability(uint32_t device, int what, int64_t *value) {
    *value = what == 2 ? L2_BYTES : ALL_CORES[what == 1 ? VECTOR : CUBE];
    return 0;
}
int aclrtGetDeviceInfo(uint32_t device, int what, int64_t *value) {
    *value = ALL_CORES[what == 101 ? VECTOR : CUBE];
    return 0;
}
int aclrtGetMemInfo(int kind, size_t *available, size_t *total) {
    *available = *total = HBM_BYTES;
    return 0;
}

/* ---- memory ---- */
int aclrtMalloc(void **memory, size_t bytes, int policy) { return zeroed(memory, bytes); }
int aclrtMallocAlign32(void **memory, size_t bytes, int policy) { return zeroed(memory, bytes); }
int aclrtMallocHost(void **memory, size_t bytes) { return zeroed(memory, bytes); }
int aclrtFree(void *memory) { free(memory); return 0; }
int aclrtFreeHost(void *memory) { free(memory); return 0; }
int aclrtMemcpy(void *to, size_t most, const void *from, size_t bytes, int kind) {
    memcpy(to, from, bytes);
    return 0;
}
int aclrtMemcpyAsync(void *to, size_t most, const void *from, size_t bytes, int kind, void *s) {
    memcpy(to, from, bytes);
    if (kind == TO_HOST) standin_note("launch %p copy_to_host", s);
    return 0;
}
int aclrtMemset(void *memory, size_t most, int value, size_t bytes) {
    memset(memory, value, bytes);
    return 0;
}
int aclrtMemsetAsync(void *memory, size_t most, int value, size_t bytes, void *stream) {
    memset(memory, value, bytes);
    return 0;
}

/* ---- streams and events ---- */
int aclrtCreateStream(void **stream) { return next_handle(stream); }
int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flags) {
    return next_handle(stream);
}
int aclrtStreamGetId(void *stream, int *id) { *id = (int)((uintptr_t)stream >> 4); return 0; }
int aclrtStreamQuery(void *stream, int *done) { *done = 1; return 0; }
int aclrtCreateEventExWithFlag(void **event, uint32_t flags) { return next_handle(event); }
int aclrtCreateEventWithFlag(void **event, uint32_t flags) { return next_handle(event); }
int aclrtQueryEventStatus(void *event, int *done) { *done = 1; return 0; }
int aclrtQueryEventWaitStatus(void *event, int *done) { *done = 1; return 0; }
int aclrtRecordEvent(void *event, void *stream) {
    standin_note("record %p %p", stream, event);
    return 0;
}
int aclrtStreamWaitEvent(void *stream, void *event) {
    standin_note("wait %p %p", stream, event);
    return 0;
}
int aclrtSynchronizeStream(void *stream) {
    standin_note("sync %p", stream);
    return 0;
}
int aclrtSynchronizeStreamWithTimeout(void *stream, int timeout) {
    return aclrtSynchronizeStream(stream);
}

/* ---- collectives: a group's line says how many ranks it has, and which of them this is ---- */
int HcclGetRootInfo(void *info) { return 0; }
int HcclCommInitRootInfoConfig(uint32_t ranks, void *info, uint32_t rank, void *config, void **g) {
    next_handle(g);
    standin_note("group %p %u %u", *g, ranks, rank);
    return 0;
}
int HcclCommInitRootInfo(uint32_t ranks, void *info, uint32_t rank, void **group) {
    return HcclCommInitRootInfoConfig(ranks, info, rank, NULL, group);
}
int HcclGetCommName(void *group, char *name) { sprintf(name, "%p", group); return 0; }
static int collective(const char *name, void *group, void *stream) {
    standin_note("collective %p %s %p", stream, name, group);
    return 0;
}
int HcclAllGather(void *from, void *to, uint64_t count, int type, void *group, void *stream) {
    return collective("HcclAllGather", group, stream);
}
int HcclAllReduce(void *from, void *to, uint64_t count, int type, int sum, void *group, void *s) {
    return collective("HcclAllReduce", group, s);
}
int HcclReduceScatter(void *from, void *to, uint64_t count, int type, int sum, void *g, void *s) {
    return collective("HcclReduceScatter", g, s);
}
int HcclAlltoAll(void *from, uint64_t count, int type, void *to, uint64_t arriving, int its_type,
                 void *group, void *stream) {
    return collective("HcclAlltoAll", group, stream);
}
int HcclAlltoAllV(void *from, void *counts, void *places, int type, void *to, void *arriving,
                  void *its_places, int its_type, void *group, void *stream) {
    return collective("HcclAlltoAllV", group, stream);
}
int HcclSend(void *from, uint64_t count, int type, uint32_t peer, void *group, void *stream) {
    return collective("HcclSend", group, stream);
}
int HcclRecv(void *to, uint64_t count, int type, uint32_t peer, void *group, void *stream) {
    return collective("HcclRecv", group, stream);
}

/* ---- core limits ---- */
static uint32_t *limits_of(void *stream) {
    static struct { void *stream; uint32_t cores[2]; } known[MOST_STREAMS];
    static int count;
    int i = 0;
    while (i < count && known[i].stream != stream) i++;
    if (i == count) {
        if (count == MOST_STREAMS) abort();
        known[count].stream = stream;
        memcpy(known[count++].cores, ALL_CORES, sizeof ALL_CORES);
    }
    return known[i].cores;
}
int aclrtGetStreamResLimit(void *stream, int kind, uint32_t *cores) {
    *cores = limits_of(stream)[kind == 1];
    return 0;
}
int aclrtSetStreamResLimit(void *stream, int kind, uint32_t cores) {
    limits_of(stream)[kind == 1] = cores;
    standin_note("limit %p %s %u", stream, kind == 1 ? "vector" : "cube", cores);
    return 0;
}
int aclrtResetStreamResLimit(void *stream) {
    memcpy(limits_of(stream), ALL_CORES, sizeof ALL_CORES);
    standin_note("limit %p reset 0", stream);
    return 0;
}
int aclrtGetDeviceResLimit(int device, int kind, uint32_t *cores) {
    *cores = ALL_CORES[kind == 1];
    return 0;
}

/* ---- graph capture ---- */
static int capturing;
int aclmdlRICaptureBegin(void *stream, int mode) { capturing = 1; return 0; }
int aclmdlRICaptureEnd(void *stream, void **model) {
    capturing = 0;
    *model = (void *)0x77;
    return 0;
}
int aclmdlRICaptureGetInfo(void *stream, int *status, void **model) {
    *status = capturing;
    *model = capturing ? (void *)0x77 : NULL;
    return 0;
}
int aclmdlRIGetId(void *model, uint32_t *id) { *id = 1; return 0; }

/* ---- versions and options ---- */
int aclsysGetVersionStr(char *package, char *version) {
    strcpy(version, "9.0.0");
    return 0;
}
const char *aclGetRecentErrMsg(void) { return ""; }
int aclGetCompileoptSize(int option) { return 8; }
int aclGetCompileopt(int option, char *value, size_t bytes) {
    snprintf(value, bytes, "disable");
    return 0;
}

/* ---- what CANN's C library adds ---- */
int vsnprintf_s(char *to, size_t most, size_t count, const char *format, va_list values) {
    return vsnprintf(to, most < count + 1 ? most : count + 1, format, values);
}
int snprintf_s(char *to, size_t most, size_t count, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = vsnprintf_s(to, most, count, format, values);
    va_end(values);
    return written;
}
int strcpy_s(char *to, size_t most, const char *from) {
    if (strlen(from) >= most) return 1;
    strcpy(to, from);
    return 0;
}

/* ---- ge::AscendString: a shared pointer to a text; here the text and no control block ---- */
struct ascend_string { char *text; void *control; };
#define IS(name) __asm__(name)
void as_make(struct ascend_string *self, const char *text) IS("_ZN2ge12AscendStringC1EPKc");
const char *as_text(const struct ascend_string *self) IS("_ZNK2ge12AscendString9GetStringEv");
int as_less(const struct ascend_string *a, const struct ascend_string *b)
    IS("_ZNK2ge12AscendStringltERKS0_");
int as_equal(const struct ascend_string *a, const struct ascend_string *b)
    IS("_ZNK2ge12AscendStringeqERKS0_");
void as_make(struct ascend_string *self, const char *text) {
    self->text = strdup(text ? text : "");
    self->control = NULL;
}
const char *as_text(const struct ascend_string *self) { return self->text ? self->text : ""; }
int as_less(const struct ascend_string *a, const struct ascend_string *b) {
    return strcmp(as_text(a), as_text(b)) < 0;
}
int as_equal(const struct ascend_string *a, const struct ascend_string *b) {
    return strcmp(as_text(a), as_text(b)) == 0;
}
