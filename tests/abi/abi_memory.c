/* Cutting a session's text, and a KV cache that does not fit in memory. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi_test.h"

static int same_tokens(const transcript* a, const transcript* b) {
  return a->failure == QUIRE_OK && b->failure == QUIRE_OK && a->n_tokens == b->n_tokens && a->n_tokens > 0 &&
         memcmp(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]) == 0;
}

static void expect_position(quire_session* session, int64_t tokens, int64_t pending) {
  int64_t n_tokens = -1, n_pending = -1;
  quire_error err;
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
  CHECK(n_tokens == tokens && n_pending == pending);
}

static quire_session_stats stats_of(quire_session* session) {
  quire_session_stats stats;
  quire_error err;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  EXPECT_OK(quire_session_get_stats(session, &stats, &err));
  return stats;
}

/* Cut anywhere, a session goes on as one that was never longer, whatever its strategy had dropped. */
void test_truncate(void) {
  loaded l = open_model("text_256");
  const char* strategies[] = {"full", "dca(chunk=48, cap=80)", "longheads(chunk=16, chunks=4)",
                              "longheads(chunk=16, chunks=4, init=full)", "streaming_llm(sinks=4, recent=20)"};
  const size_t cuts[] = {110, 109, 97, 96, 95, 65, 33, 1};
  static transcript expected, out;
  quire_error err;
  for (size_t s = 0; s < QUIRE_COUNT(strategies); ++s) {
    for (size_t c = 0; c < QUIRE_COUNT(cuts); ++c) {
      const int64_t n = (int64_t)cuts[c];
      quire_session* plain = open_session(l.model, strategies[s], 0, 16);
      quire_session* cut = open_session(l.model, strategies[s], 0, 16);
      feed_some(plain, l.model, cuts[c]);
      run_greedy(plain, 5, &expected);
      feed_some(cut, l.model, 110);
      run_greedy(cut, 9, &out);
      feed_some(cut, l.model, 3);
      EXPECT_OK(quire_session_truncate(cut, 121, &err));
      expect_position(cut, 119, 2);
      EXPECT_OK(quire_session_truncate(cut, n, &err));
      expect_position(cut, n, 0);
      EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_truncate(cut, n + 1, &err));
      EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_truncate(cut, -1, &err));
      run_greedy(cut, 5, &out);
      CHECK(same_tokens(&expected, &out));
      CHECK(out.n_prefill_events > 0); /* what is read again is reported */
      quire_session_release(plain);
      quire_session_release(cut);
    }
  }
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_truncate(NULL, 0, &err));
  close_model(&l);
}

void test_spill(void) {
  loaded l = open_model("text_256");
  quire_session_options options;
  quire_session_stats stats;
  quire_tier_stats host, file;
  quire_session* session = open_session(l.model, "longheads(chunk=16, chunks=4)", 0, 16);
  static transcript expected, out;
  quire_error err;
  feed_some(session, l.model, 600);
  run_greedy(session, 10, &expected);
  stats = stats_of(session);
  host = tier_of(session, QUIRE_TIER_HOST);
  file = tier_of(session, QUIRE_TIER_FILE);
  CHECK(host.n_chunks == stats.kv_chunks && host.budget_bytes == 0 && host.bytes > 0 && host.n_evicted == 0);
  CHECK(host.n_hits == 0 && host.n_misses == 0 && host.stall_ns == 0); /* nothing can be missing */
  CHECK(file.bytes == 0 && file.n_chunks == 0 && file.bytes_written == 0 && file.budget_bytes == 0);
  for (int32_t tier = QUIRE_TIER_DEVICE; tier <= QUIRE_TIER_COMPRESSED; tier += 2) {
    CHECK(tier_of(session, tier).bytes == 0 && tier_of(session, tier).n_chunks == 0);
  }
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_tier_stats(session, 0, &file, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_tier_stats(session, QUIRE_TIER_SNAPSHOT + 1, &file, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_tier_stats(session, QUIRE_TIER_FILE, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_tier_stats(NULL, QUIRE_TIER_FILE, &file, &err));
  quire_session_release(session);
  session = NULL;

  quire_session_options_init(&options, sizeof options);
  options.strategy = "longheads(chunk=16, chunks=4)";
  options.strategy_len = strlen(options.strategy);
  options.prefill_block = 16;
  options.kv_file_budget_bytes = 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_create(l.model, &options, &session, &err));
  CHECK_MESSAGE("kv_file_directory");
  options.kv_file_directory = "/no/such/directory";
  options.kv_file_directory_len = strlen(options.kv_file_directory);
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_create(l.model, &options, &session, &err));
  CHECK_MESSAGE("/no/such/directory");
  options.kv_file_directory = "/proc"; /* nobody may make files there */
  options.kv_file_directory_len = 5;
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_session_create(l.model, &options, &session, &err));
  CHECK_MESSAGE("/proc");
  CHECK(err.os_error != 0);

  options.kv_file_directory = "/tmp";
  options.kv_file_directory_len = 4;
  options.kv_host_budget_bytes = host.bytes_peak * 2 / 3;
  options.kv_file_budget_bytes = 0;
  EXPECT_OK(quire_session_create(l.model, &options, &session, &err));
  feed_some(session, l.model, 600);
  run_greedy(session, 10, &out);
  CHECK(same_tokens(&expected, &out));
  stats = stats_of(session);
  host = tier_of(session, QUIRE_TIER_HOST);
  file = tier_of(session, QUIRE_TIER_FILE);
  CHECK(host.budget_bytes == options.kv_host_budget_bytes && host.bytes_peak <= host.budget_bytes);
  CHECK(host.n_chunks < stats.kv_chunks && host.n_misses > 0 && host.n_evicted > 0);
  CHECK(file.bytes > 0 && file.bytes_written > 0 && file.bytes_read > 0 && file.n_hits > 0);
  CHECK(file.bytes_read % file.n_hits == 0); /* whole records */
  CHECK(host.n_hits > 0 && host.stall_ns > 0);
  quire_session_release(session);

  /* The same with compressed memory before the file, and instead of it. */
  for (int alone = 0; alone < 2; ++alone) {
    options.kv_compressed_budget_bytes = alone ? 2000000 : 300000;
    options.kv_file_directory_len = alone ? 0 : 4;
    EXPECT_OK(quire_session_create(l.model, &options, &session, &err));
    feed_some(session, l.model, 600);
    run_greedy(session, 10, &out);
    CHECK(same_tokens(&expected, &out));
    const quire_tier_stats compressed = tier_of(session, QUIRE_TIER_COMPRESSED);
    file = tier_of(session, QUIRE_TIER_FILE);
    CHECK(compressed.tier == QUIRE_TIER_COMPRESSED && compressed.stall_ns == 0);
    CHECK(compressed.budget_bytes == options.kv_compressed_budget_bytes);
    CHECK(compressed.bytes > 0 && compressed.bytes <= compressed.bytes_peak);
    CHECK(compressed.bytes_peak <= compressed.budget_bytes);
    CHECK(compressed.n_chunks > 0 && compressed.n_hits > 0 && compressed.bytes_written > 0);
    CHECK(compressed.bytes_read == compressed.n_hits * (compressed.bytes_read / compressed.n_hits));
    CHECK((compressed.n_evicted > 0) == !alone && (!alone || compressed.n_misses == 0));
    CHECK((file.bytes > 0) == !alone && (file.n_chunks > 0) == !alone);
    CHECK((file.bytes_written > 0) == !alone);
    quire_session_release(session);
  }
  options.kv_compressed_budget_bytes = 0;
  options.kv_file_directory_len = 4;

  /* The file's budget ends a stream as memory's does: at a token boundary, and the session lives. */
  options.kv_file_budget_bytes = 1;
  EXPECT_OK(quire_session_create(l.model, &options, &session, &err));
  feed_some(session, l.model, 40);
  run_greedy(session, 1, &out);
  CHECK(out.failure == QUIRE_ERROR_BUDGET && strstr(out.err.message, "spill file") != NULL);
  expect_position(session, 0, 40);
  quire_session_release(session);
  close_model(&l);
}

/* What a directory's configuration alone says is what the loaded model says. */
static void test_check_by_path(quire_runtime* runtime, quire_model* model, const char* path) {
  static const char* const strategies[] = {"full", "auto", "dca + yarn(factor=2)", "fool", "beacon", "full + longrope"};
  static const int64_t lengths[] = {0, 257, 5000};
  for (size_t i = 0; i < QUIRE_COUNT(strategies) * QUIRE_COUNT(lengths); ++i) {
    char planned[512] = "", loaded_says[512] = "";
    quire_session_options options;
    quire_error err;
    quire_session_options_init(&options, sizeof options);
    options.strategy = strategies[i / QUIRE_COUNT(lengths)];
    options.strategy_len = strlen(options.strategy);
    options.expected_tokens = lengths[i % QUIRE_COUNT(lengths)];
    const quire_status works = quire_model_check_session(model, &options, NULL);
    EXPECT(works, quire_runtime_check_session(runtime, path, strlen(path), NULL, &options, &err));
    const quire_status described =
        quire_model_describe_strategy(model, &options, loaded_says, sizeof loaded_says - 1, NULL, NULL);
    EXPECT(described, quire_runtime_describe_strategy(runtime, path, strlen(path), NULL, &options, planned,
                                                      sizeof planned - 1, NULL, &err));
    CHECK(strcmp(planned, loaded_says) == 0 && (described != QUIRE_OK || planned[0] != '\0'));
  }
  quire_error err;
  for (int narrows = 0; narrows < 2; ++narrows) { /* compressed memory without room for a chunk */
    quire_session_options options;
    quire_session* session = NULL;
    quire_session_options_init(&options, sizeof options);
    options.kv_old_type = narrows ? QUIRE_TYPE_INT8 : 0;
    options.kv_compressed_budget_bytes = 100000;
    EXPECT(QUIRE_ERROR_BUDGET, quire_session_create(model, &options, &session, &err));
    EXPECT(QUIRE_ERROR_BUDGET, quire_model_check_session(model, &options, &err));
    CHECK_MESSAGE("of compressed memory at least");
    EXPECT(QUIRE_ERROR_BUDGET, quire_runtime_check_session(runtime, path, strlen(path), NULL, &options, &err));
    options.kv_compressed_budget_bytes = 1000000;
    EXPECT_OK(quire_session_create(model, &options, &session, &err));
    quire_session_release(session);
    EXPECT_OK(quire_model_check_session(model, &options, &err));
    EXPECT_OK(quire_runtime_check_session(runtime, path, strlen(path), NULL, &options, &err));
  }
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_runtime_check_session(runtime, "/no", 3, NULL, NULL, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_check_session(NULL, path, strlen(path), NULL, NULL, &err));
}

/* How long it would take; and what would be refused is refused alike. */
static void test_estimate(quire_model* model) {
  quire_session_options options;
  quire_rate_estimate estimate;
  quire_error err;
  quire_session_options_init(&options, sizeof options);
  memset(&estimate, 0, sizeof estimate);
  estimate.struct_size = sizeof estimate;
  EXPECT_OK(quire_model_estimate_rates(model, &options, 300, &estimate, &err));
  CHECK(estimate.struct_size == sizeof estimate && estimate.measured_tokens == 300 && estimate.calibration_ns > 0);
  CHECK(estimate.prefill_ns > 0 && estimate.decode_token_ns > 0 && estimate.tier_read_bytes_per_second == 0);
  CHECK(estimate.decode_token_cold_ns == estimate.decode_token_ns);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_estimate_rates(NULL, &options, 300, &estimate, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_estimate_rates(model, &options, 0, &estimate, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_estimate_rates(model, &options, 300, NULL, &err));
  options.strategy = "fool";
  options.strategy_len = 4;
  EXPECT(QUIRE_ERROR_BAD_STRATEGY, quire_model_estimate_rates(model, &options, 300, &estimate, &err));
}

static int remove_files(const char* directory) {
  int n = 0;
  DIR* entries = opendir(directory);
  CHECK(entries != NULL);
  for (struct dirent* entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
    char path[512];
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    n += remove(path) == 0;
  }
  closedir(entries);
  return n;
}

/* Weights mapped from a file of packed ones take no allocated memory; a wrong option is refused. */
static void test_packed_weights(quire_runtime* planner, quire_model* unpacked, const char* path) {
  char directory[] = "/tmp/quire_abi_packed_XXXXXX";
  quire_runtime_options runtime_options;
  quire_model_options options;
  quire_memory_plan plan;
  quire_model* model = NULL;
  tracker counts;
  static transcript expected, out;
  quire_error err;
  CHECK(mkdtemp(directory) != NULL);
  memset(&plan, 0, sizeof plan);
  plan.struct_size = sizeof plan;
  quire_model_options_init(&options, sizeof options);
  options.packed_directory_len = strlen(directory);
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_load(planner, path, strlen(path), &options, &model, &err));
  CHECK_MESSAGE("packed_directory");
  options.packed_directory = directory;
  EXPECT_OK(quire_runtime_plan_memory(planner, path, strlen(path), &options, NULL, 40, &plan, &err));
  quire_session* session = open_session(unpacked, "full", 0, 16);
  feed_some(session, unpacked, 40);
  run_greedy(session, 5, &expected);
  quire_session_release(session);
  for (int round = 0; round < 2; ++round) { /* the first one writes the file */
    quire_runtime* runtime = NULL;
    memset(&counts, 0, sizeof counts);
    quire_runtime_options_init(&runtime_options, sizeof runtime_options);
    tracker_options(&counts, &runtime_options);
    EXPECT_OK(quire_runtime_create(&runtime_options, &runtime, &err));
    EXPECT_OK(quire_model_load(runtime, path, strlen(path), &options, &model, &err));
    CHECK(plan.mapped_bytes > 0 && tracker_bytes(&counts) == plan.weight_bytes);
    session = open_session(model, "full", 0, 16);
    feed_some(session, model, 40);
    run_greedy(session, 5, &out);
    CHECK(same_tokens(&expected, &out));
    quire_session_release(session);
    quire_model_release(model);
    EXPECT_OK(quire_runtime_close(runtime, &err));
    quire_runtime_release(runtime);
    CHECK(tracker_wait_destroyed(&counts, 2));
  }
  CHECK(remove_files(directory) == 1 && rmdir(directory) == 0);
}

/* What is planned is what is counted; and what would be refused is refused alike. */
void test_memory_plan(void) {
  const char* strategies[] = {"full", "dca", "longheads(chunk=16, chunks=4)", "streaming_llm(sinks=4, recent=60)"};
  const char* path = model_path("text_256");
  quire_runtime_options runtime_options;
  quire_session_options options;
  quire_memory_plan plan;
  quire_runtime* runtime = NULL;
  quire_model* model = NULL;
  tracker counts;
  static transcript out;
  quire_error err;
  memset(&counts, 0, sizeof counts);
  memset(&plan, 0, sizeof plan);
  plan.struct_size = sizeof plan;
  quire_session_options_init(&options, sizeof options);
  quire_runtime_options_init(&runtime_options, sizeof runtime_options);
  tracker_options(&counts, &runtime_options);
  runtime_options.n_threads = 2;
  EXPECT_OK(quire_runtime_create(&runtime_options, &runtime, &err));
  EXPECT_OK(quire_model_load(runtime, path, strlen(path), NULL, &model, &err));
  const int64_t loaded_bytes = tracker_bytes(&counts);
  for (size_t s = 0; s < QUIRE_COUNT(strategies); ++s) {
    quire_session* session = NULL;
    quire_session_stats stats;
    options.strategy = strategies[s];
    options.strategy_len = strlen(strategies[s]);
    options.prefill_block = 32;
    options.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
    EXPECT_OK(quire_runtime_plan_memory(runtime, path, strlen(path), NULL, &options, 700, &plan, &err));
    CHECK(plan.struct_size == sizeof plan && plan.kv_file_bytes == 0 && plan.kv_device_bytes == 0 &&
          plan.kv_compressed_bytes == 0 && plan.kv_bytes_per_token > 0);
    CHECK(plan.weight_bytes == loaded_bytes && plan.mapped_bytes == 0);
    CHECK((plan.representation_bytes > 0) == (s == 2));
    CHECK((plan.reach == 256) == (s == 0));
    EXPECT_OK(quire_model_check_session(model, &options, &err));
    EXPECT_OK(quire_session_create(model, &options, &session, &err));
    feed_some(session, model, 690);
    run_greedy(session, 10, &out);
    CHECK(out.failure == QUIRE_OK);
    stats = stats_of(session);
    const int64_t peak = tier_of(session, QUIRE_TIER_HOST).bytes_peak;
    CHECK(plan.kv_host_bytes >= peak * 9 / 10 && plan.kv_host_bytes <= peak * 11 / 10 + 20000);
    if (s == 0) { /* scratch memory stays with the model: the others find that of the one before */
      const int64_t sum = plan.weight_bytes + plan.kv_host_bytes + plan.scratch_bytes, counted = tracker_bytes(&counts);
      CHECK(sum >= counted * 9 / 10 && sum <= counted * 11 / 10);
      CHECK(plan.scratch_bytes >= stats.scratch_bytes * 9 / 10 && plan.scratch_bytes <= stats.scratch_bytes * 11 / 10);
    }
    quire_session_release(session);
  }
  quire_model_options mapping;
  quire_model_options_init(&mapping, sizeof mapping);
  mapping.load = QUIRE_LOAD_MMAP; /* the embedding is then no allocated memory */
  EXPECT_OK(quire_runtime_plan_memory(runtime, path, strlen(path), &mapping, &options, 700, &plan, &err));
  CHECK(plan.mapped_bytes > 0 && plan.weight_bytes + plan.mapped_bytes == loaded_bytes);
  options.kv_host_budget_bytes = plan.kv_host_bytes / 8;
  EXPECT(QUIRE_ERROR_BUDGET, quire_runtime_plan_memory(runtime, path, strlen(path), NULL, &options, 700, &plan, &err));
  options.kv_compressed_budget_bytes = 1;
  EXPECT(QUIRE_ERROR_BUDGET, quire_runtime_plan_memory(runtime, path, strlen(path), NULL, &options, 700, &plan, &err));
  CHECK_MESSAGE("of compressed memory at least");
  options.kv_host_budget_bytes = plan.kv_host_bytes * 2 / 3;
  options.kv_compressed_budget_bytes = 1 << 30;
  EXPECT_OK(quire_runtime_plan_memory(runtime, path, strlen(path), NULL, &options, 700, &plan, &err));
  CHECK(plan.kv_host_bytes == options.kv_host_budget_bytes && plan.kv_file_bytes == 0);
  CHECK(plan.kv_compressed_bytes > plan.kv_host_bytes);
  options.kv_compressed_budget_bytes = plan.kv_compressed_bytes - 1;
  EXPECT_OK(quire_runtime_plan_memory(runtime, path, strlen(path), NULL, &options, 700, &plan, &err));
  CHECK(plan.kv_compressed_bytes == options.kv_compressed_budget_bytes);
  options.kv_compressed_budget_bytes = 0;
  options.kv_host_budget_bytes = 0;
  EXPECT(QUIRE_ERROR_NOT_FOUND, quire_runtime_plan_memory(runtime, "/no", 3, NULL, &options, 700, &plan, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_runtime_plan_memory(NULL, path, strlen(path), NULL, &options, 700, &plan, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_runtime_plan_memory(runtime, path, strlen(path), NULL, &options, -1, &plan, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT,
         quire_runtime_plan_memory(runtime, path, strlen(path), NULL, &options, 7, NULL, &err));

  test_estimate(model);
  test_packed_weights(runtime, model, path);

  options.overflow = QUIRE_OVERFLOW_ERROR;
  options.strategy = "full";
  options.strategy_len = 4;
  options.expected_tokens = 257;
  EXPECT(QUIRE_ERROR_OVERFLOW, quire_model_check_session(model, &options, &err));
  options.strategy = "fool";
  EXPECT(QUIRE_ERROR_BAD_STRATEGY, quire_model_check_session(model, &options, &err));
  EXPECT(QUIRE_ERROR_BAD_STRATEGY,
         quire_runtime_plan_memory(runtime, path, strlen(path), NULL, &options, 7, &plan, &err));
  options.kv_type = 99;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_check_session(model, &options, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_model_check_session(NULL, &options, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_runtime_check_session(runtime, path, strlen(path), NULL, &options, &err));
  test_check_by_path(runtime, model, path);
  quire_model_release(model);
  EXPECT_OK(quire_runtime_close(runtime, &err));
  EXPECT(QUIRE_ERROR_CLOSED, quire_runtime_plan_memory(runtime, path, strlen(path), NULL, NULL, 7, &plan, &err));
  quire_runtime_release(runtime);
  CHECK(tracker_wait_destroyed(&counts, 2));
}

/* Pages of a text, and where the answer looked. */
void test_labels(void) {
  loaded l = open_model("text_256");
  quire_session* session = open_session(l.model, "longheads(chunk=16, chunks=4)", 0, 16);
  quire_session* plain = open_session(l.model, "dca", 0, 0);
  enum { kPages = 12 };
  const char* page = "the reader turns the page and reads on, leaf by leaf. ";
  const int64_t page_bytes = (int64_t)strlen(page);
  static char text[4096];
  static transcript out;
  quire_label labels[kPages], wrong = {0, 1, 1};
  quire_label_attention found[kPages + 1];
  size_t n = 0;
  double sum = 0;
  int64_t n_tokens = 0, n_pending = 0, labelled = 0;
  quire_error err;
  for (int64_t p = 0; p < kPages; ++p) {
    strcat(text, page);
    labels[p].begin = p * page_bytes;
    labels[p].end = (p + 1) * page_bytes;
    labels[p].id = 100 + p;
  }
  const size_t text_len = strlen(text);
  wrong.end = (int64_t)text_len + 1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_labelled(session, text, text_len, 0, &wrong, 1, &err));
  CHECK_MESSAGE("labels[0]");
  CHECK(err.offset == 0);
  wrong.begin = 5;
  wrong.end = 4;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_labelled(session, text, text_len, 0, &wrong, 1, &err));
  wrong.begin = -1;
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_labelled(session, text, text_len, 0, &wrong, 1, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_labelled(session, text, text_len, 0, NULL, 1, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_feed_labelled(NULL, text, text_len, 0, labels, kPages, &err));
  EXPECT_OK(quire_session_feed_labelled(session, text, text_len, 0, labels, kPages, &err));
  EXPECT_OK(quire_session_get_token_counts(session, &n_tokens, &n_pending, &err));
  CHECK(n_tokens == 0 && n_pending > 200);
  run_greedy(session, 8, &out);

  EXPECT_OK(quire_session_get_label_attention(session, NULL, 0, &n, &err));
  CHECK(n == kPages);
  CHECK_OUTPUT(quire_label_attention, kPages, quire_session_get_label_attention(session, buf, cap, needed, &err));
  EXPECT(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_get_label_attention(NULL, found, kPages, &n, &err));
  EXPECT_OK(quire_session_get_label_attention(session, found, kPages + 1, &n, &err));
  for (int64_t p = 0; p < kPages; ++p) {
    CHECK(found[p].id == 100 + p && found[p].n_tokens > 0);
    if (p > 0) CHECK(found[p].first_token == found[p - 1].first_token + found[p - 1].n_tokens);
    CHECK(found[p].share >= 0 && found[p].share <= 1);
    sum += found[p].share;
    labelled += found[p].n_tokens;
  }
  CHECK(found[0].first_token <= 1 && labelled >= n_pending - 1 && labelled <= n_pending);
  CHECK(sum > 0.9 && sum < 1.0001); /* every chosen chunk is of the text; its first token alone has no label */

  EXPECT_OK(quire_session_truncate(session, found[3].first_token + 1, &err));
  EXPECT_OK(quire_session_get_label_attention(session, found, kPages, &n, &err));
  CHECK(n == 4 && found[3].n_tokens == 1 && found[0].share == 0);
  EXPECT(QUIRE_ERROR_UNSUPPORTED, quire_session_get_label_attention(plain, found, kPages, &n, &err));
  quire_session_release(session);
  quire_session_release(plain);
  close_model(&l);
}
