/* Drives every function of quire.h from C99, with every error that its comment names.
 *
 *   abi_c99_test <folder of tiny models> [part] */
#include <stdlib.h>

#include "abi_test.h"

static const struct {
  const char* name;
  void (*run)(void);
} parts[] = {
    {"version_and_structs", test_version_and_structs},
    {"runtime", test_runtime},
    {"callbacks", test_callbacks},
    {"model", test_model},
    {"load_errors", test_load_errors},
    {"model_files", test_model_files},
    {"snapshot", test_snapshot},
    {"snapshot_streams", test_snapshot_streams},
    {"store", test_store},
    {"tokenizer", test_tokenizer},
    {"chat", test_chat},
    {"strategy", test_strategy},
    {"session", test_session},
    {"session_results", test_session_results},
    {"overflow_and_budget", test_overflow_and_budget},
    {"stream", test_stream},
    {"stream_errors", test_stream_errors},
    {"wait_handle", test_wait_handle},
    {"finish_reasons", test_finish_reasons},
    {"sampling", test_sampling},
    {"sampling_chain", test_sampling_chain},
    {"reading_along", test_reading_along},
    {"dry", test_dry},
    {"labels", test_labels},
    {"cite", test_cite},
    {"memory_plan", test_memory_plan},
    {"truncate", test_truncate},
    {"spill", test_spill},
    {"edit", test_edit},
    {"prefix", test_prefix},
    {"adapter", test_adapter},
    {"closed", test_closed},
};

int main(int argc, char** argv) {
  size_t n_run = 0;
  if (argc < 2) {
    fprintf(stderr, "usage: %s MODELS [PART]\n", argv[0]);
    return 2;
  }
  set_model_root(argv[1]);
  for (size_t i = 0; i < QUIRE_COUNT(parts); ++i) {
    const int before = checks_made();
    if (argc > 2 && strcmp(argv[2], parts[i].name) != 0) continue;
    parts[i].run();
    ++n_run;
    printf("%-24s %d checks\n", parts[i].name, checks_made() - before);
    fflush(stdout);
  }
  if (checks_failed() > 0) printf("%d of %d checks failed\n", checks_failed(), checks_made());
  return n_run > 0 && checks_failed() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
