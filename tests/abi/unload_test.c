/* What quire_runtime_close promises: afterwards no thread is left, and the library may be unloaded, even by a host that
 * still holds handles (a plugin whose garbage collector is late). Opens the library as such a host does.
 *
 *   unload_test LIBRARY MODEL_DIRECTORY */
#define _DEFAULT_SOURCE /* syscall */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "quire/quire.h"

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

static int count_threads(void) {
  int n = 0;
  struct dirent* entry;
  DIR* tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  while ((entry = readdir(tasks)) != NULL) n += entry->d_name[0] != '.';
  closedir(tasks);
  return n;
}

static void* find(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  CHECK(symbol != NULL);
  return symbol;
}

/* FUNCTION(name): a pointer to it, of its own type. memcpy, because C99 has no cast from data to function pointers. */
#define FUNCTION(name)                         \
  __typeof__(&name) p_##name;                  \
  do {                                         \
    void* symbol = find(library, #name);       \
    memcpy(&p_##name, &symbol, sizeof symbol); \
  } while (0)

/* Handles that outlive the library. Global, so that a leak checker sees that somebody has them. */
enum { kRounds = 6 };
static struct {
  quire_runtime* runtime;
  quire_model* model;
  quire_session* session;
  quire_stream* stream;
} kept[kRounds];

static void open_close_unload(const char* path, const char* directory, int round) {
  const int threads_before = count_threads();
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  CHECK(library != NULL);
  FUNCTION(quire_runtime_create);
  FUNCTION(quire_runtime_close);
  FUNCTION(quire_model_load);
  FUNCTION(quire_session_create);
  FUNCTION(quire_session_feed_tokens);
  FUNCTION(quire_stream_open);
  FUNCTION(quire_stream_next);

  quire_runtime_options options = {0};
  options.struct_size = sizeof options;
  options.n_threads = 4;
  options.n_io_threads = round == 2 ? -1 : round == 3 ? 1 : 0;
  CHECK(p_quire_runtime_create(&options, &kept[round].runtime, NULL) == QUIRE_OK);
  CHECK(count_threads() > threads_before);
  CHECK(p_quire_model_load(kept[round].runtime, directory, strlen(directory), NULL, &kept[round].model, NULL) ==
        QUIRE_OK);
  quire_session_options with_dca = {0};
  with_dca.struct_size = sizeof with_dca;
  with_dca.strategy = "dca";
  with_dca.strategy_len = 3;
  with_dca.kv_file_directory = "/tmp";
  with_dca.kv_file_directory_len = 4;
  const int threads_without_io = count_threads();
  CHECK(p_quire_session_create(kept[round].model, &with_dca, &kept[round].session, NULL) == QUIRE_OK);
  CHECK(count_threads() == threads_without_io + (options.n_io_threads < 0 ? 0 : 1));
  if (round % 2 == 1) { /* in the middle of a prompt */
    int32_t ids[3000];
    for (int i = 0; i < 3000; ++i) ids[i] = 3 + i % 60;
    CHECK(p_quire_session_feed_tokens(kept[round].session, ids, 3000, NULL) == QUIRE_OK);
    quire_stream_options generate = {0};
    generate.struct_size = sizeof generate;
    generate.max_tokens = 1000;
    CHECK(p_quire_stream_open(kept[round].session, &generate, &kept[round].stream, NULL) == QUIRE_OK);
    quire_event event = {0};
    event.struct_size = sizeof event;
    CHECK(p_quire_stream_next(kept[round].stream, -1, &event, NULL) == QUIRE_OK);
  }
  CHECK(p_quire_runtime_close(kept[round].runtime, NULL) == QUIRE_OK);
  /* A thread that was joined has left the library, but /proc may list it for a moment more. With a thread that stays
   * this loop has no end, and the test runs out of time. */
  while (count_threads() != threads_before) sched_yield();
  CHECK(dlclose(library) == 0);
}

static void* tell_path(void* path) {
  snprintf(path, 64, "/proc/self/task/%ld", (long)syscall(SYS_gettid));
  return NULL;
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  /* A sanitizer starts a thread of its own beside the first one: that is to be there before threads are counted. */
  pthread_t thread;
  char path[64];
  CHECK(pthread_create(&thread, NULL, tell_path, path) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  while (access(path, F_OK) == 0) sched_yield(); /* joined, and still listed */
  for (int round = 0; round < kRounds; ++round) open_close_unload(argv[1], argv[2], round);
  return 0;
}
