/* What C calls of Go, and what Go keeps in C's memory. */
#ifndef QUIRE_GO_CALLBACKS_H_
#define QUIRE_GO_CALLBACKS_H_

#include <quire/quire.h>
#include <stdlib.h>

extern void quireGoDestroy(void*);
extern void quireGoLog(void*, int32_t, char*, size_t);
extern void* quireGoAllocate(void*, size_t, size_t);
extern void quireGoFree(void*, void*, size_t, size_t);
extern void quireGoProgress(void*, int64_t, int64_t);
extern int64_t quireGoWrite(void*, void*, size_t, quire_error*);
extern int32_t quireGoCommit(void*, quire_error*);
extern int64_t quireGoRead(void*, int64_t, void*, size_t, quire_error*);

/* What quire_stream_next fills. In C's memory nothing of it is checked or scanned for each token. */
typedef struct quire_go_step {
  quire_event event;
  quire_error error;
} quire_go_step;

#endif /* QUIRE_GO_CALLBACKS_H_ */
