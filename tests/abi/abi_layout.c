/* Every field of every public struct where it has been since it was added (64-bit pointers and longs). */
#include "abi_test.h"

#define SIZE(type, size) CHECK(sizeof(type) == (size))
#define AT(type, field, offset, size) CHECK(offsetof(type, field) == (offset) && sizeof(((type*)NULL)->field) == (size))

static void test_error_and_runtime(void) {
  SIZE(quire_error, 544);
  AT(quire_error, struct_size, 0, 4);
  AT(quire_error, flags, 4, 4);
  AT(quire_error, code, 8, 4);
  AT(quire_error, os_error, 12, 4);
  AT(quire_error, offset, 16, 8);
  AT(quire_error, reserved, 24, 8);
  AT(quire_error, message, 32, 512);

  SIZE(quire_runtime_options, 80);
  AT(quire_runtime_options, struct_size, 0, 4);
  AT(quire_runtime_options, flags, 4, 4);
  AT(quire_runtime_options, n_threads, 8, 4);
  AT(quire_runtime_options, backend, 12, 4);
  AT(quire_runtime_options, log_level, 16, 4);
  AT(quire_runtime_options, reserved, 20, 4);
  AT(quire_runtime_options, log, 24, 8);
  AT(quire_runtime_options, log_user_data, 32, 8);
  AT(quire_runtime_options, log_destroy, 40, 8);
  AT(quire_runtime_options, alloc, 48, 8);
  AT(quire_runtime_options, free, 56, 8);
  AT(quire_runtime_options, alloc_user_data, 64, 8);
  AT(quire_runtime_options, alloc_destroy, 72, 8);
}

static void test_model_structs(void) {
  SIZE(quire_model_options, 72);
  AT(quire_model_options, struct_size, 0, 4);
  AT(quire_model_options, flags, 4, 4);
  AT(quire_model_options, load, 8, 4);
  AT(quire_model_options, weight_type, 12, 4);
  AT(quire_model_options, cancel, 16, 8);
  AT(quire_model_options, progress, 24, 8);
  AT(quire_model_options, progress_user_data, 32, 8);
  AT(quire_model_options, merge, 40, 8);
  AT(quire_model_options, n_merge, 48, 8);
  AT(quire_model_options, beacon_path, 56, 8);
  AT(quire_model_options, beacon_path_len, 64, 8);

  SIZE(quire_adapter_source, 24);
  AT(quire_adapter_source, path, 0, 8);
  AT(quire_adapter_source, path_len, 8, 8);
  AT(quire_adapter_source, scale, 16, 8);

  SIZE(quire_adapter_options, 32);
  AT(quire_adapter_options, struct_size, 0, 4);
  AT(quire_adapter_options, flags, 4, 4);
  AT(quire_adapter_options, cancel, 8, 8);
  AT(quire_adapter_options, progress, 16, 8);
  AT(quire_adapter_options, progress_user_data, 24, 8);

  SIZE(quire_adapter_info, 32);
  AT(quire_adapter_info, struct_size, 0, 4);
  AT(quire_adapter_info, flags, 4, 4);
  AT(quire_adapter_info, rank, 8, 4);
  AT(quire_adapter_info, n_tensors, 12, 4);
  AT(quire_adapter_info, n_parameters, 16, 8);
  AT(quire_adapter_info, bytes, 24, 8);

  SIZE(quire_model_info, 80);
  AT(quire_model_info, struct_size, 0, 4);
  AT(quire_model_info, flags, 4, 4);
  AT(quire_model_info, n_layers, 8, 4);
  AT(quire_model_info, n_query_heads, 12, 4);
  AT(quire_model_info, n_kv_heads, 16, 4);
  AT(quire_model_info, head_dim, 20, 4);
  AT(quire_model_info, hidden_size, 24, 4);
  AT(quire_model_info, intermediate_size, 28, 4);
  AT(quire_model_info, vocab_size, 32, 4);
  AT(quire_model_info, weight_type, 36, 4);
  AT(quire_model_info, train_len, 40, 8);
  AT(quire_model_info, n_parameters, 48, 8);
  AT(quire_model_info, weight_bytes, 56, 8);
  AT(quire_model_info, rope_theta, 64, 8);
  AT(quire_model_info, sliding_window, 72, 8);
}

static void test_strategy_structs(void) {
  SIZE(quire_strategy_options, 48);
  AT(quire_strategy_options, struct_size, 0, 4);
  AT(quire_strategy_options, flags, 4, 4);
  AT(quire_strategy_options, strategy, 8, 8);
  AT(quire_strategy_options, strategy_len, 16, 8);
  AT(quire_strategy_options, train_len, 24, 8);
  AT(quire_strategy_options, expected_tokens, 32, 8);
  AT(quire_strategy_options, n_heads, 40, 4);
  AT(quire_strategy_options, reserved, 44, 4);

  SIZE(quire_position_view, 48);
  AT(quire_position_view, struct_size, 0, 4);
  AT(quire_position_view, flags, 4, 4);
  AT(quire_position_view, head, 8, 4);
  AT(quire_position_view, query_kind, 12, 4);
  AT(quire_position_view, key_kind, 16, 4);
  AT(quire_position_view, reserved, 20, 4);
  AT(quire_position_view, first_query, 24, 8);
  AT(quire_position_view, n_queries, 32, 8);
  AT(quire_position_view, n_keys, 40, 8);
}

static void test_session_structs(void) {
  SIZE(quire_session_adapter, 16);
  AT(quire_session_adapter, adapter, 0, 8);
  AT(quire_session_adapter, scale, 8, 8);

  SIZE(quire_session_options, 96);
  AT(quire_session_options, struct_size, 0, 4);
  AT(quire_session_options, flags, 4, 4);
  AT(quire_session_options, strategy, 8, 8);
  AT(quire_session_options, strategy_len, 16, 8);
  AT(quire_session_options, kv_type, 24, 4);
  AT(quire_session_options, overflow, 28, 4);
  AT(quire_session_options, expected_tokens, 32, 8);
  AT(quire_session_options, kv_budget_bytes, 40, 8);
  AT(quire_session_options, prefill_block, 48, 4);
  AT(quire_session_options, reserved, 52, 4);
  AT(quire_session_options, spill_directory, 56, 8);
  AT(quire_session_options, spill_directory_len, 64, 8);
  AT(quire_session_options, spill_budget_bytes, 72, 8);
  AT(quire_session_options, adapters, 80, 8);
  AT(quire_session_options, n_adapters, 88, 8);

  SIZE(quire_label, 24);
  AT(quire_label, begin, 0, 8);
  AT(quire_label, end, 8, 8);
  AT(quire_label, id, 16, 8);
  SIZE(quire_label_attention, 32);
  AT(quire_label_attention, id, 0, 8);
  AT(quire_label_attention, first_token, 8, 8);
  AT(quire_label_attention, n_tokens, 16, 8);
  AT(quire_label_attention, share, 24, 8);

  SIZE(quire_session_stats, 152);
  AT(quire_session_stats, struct_size, 0, 4);
  AT(quire_session_stats, flags, 4, 4);
  AT(quire_session_stats, n_tokens, 8, 8);
  AT(quire_session_stats, n_pending, 16, 8);
  AT(quire_session_stats, n_prefilled, 24, 8);
  AT(quire_session_stats, n_generated, 32, 8);
  AT(quire_session_stats, prefill_ns, 40, 8);
  AT(quire_session_stats, decode_ns, 48, 8);
  AT(quire_session_stats, kv_bytes, 56, 8);
  AT(quire_session_stats, kv_bytes_peak, 64, 8);
  AT(quire_session_stats, kv_chunks, 72, 8);
  AT(quire_session_stats, kv_chunks_resident, 80, 8);
  AT(quire_session_stats, kv_chunks_evicted, 88, 8);
  AT(quire_session_stats, kv_chunks_written, 96, 8);
  AT(quire_session_stats, kv_chunks_read, 104, 8);
  AT(quire_session_stats, kv_file_bytes, 112, 8);
  AT(quire_session_stats, scratch_bytes, 120, 8);
  AT(quire_session_stats, reach, 128, 8);
  AT(quire_session_stats, tasks_after_cancel, 136, 8);
  AT(quire_session_stats, cancel_latency_ns, 144, 8);
}

static void test_memory_plan_struct(void) {
  SIZE(quire_memory_plan, 72);
  AT(quire_memory_plan, struct_size, 0, 4);
  AT(quire_memory_plan, flags, 4, 4);
  AT(quire_memory_plan, weight_bytes, 8, 8);
  AT(quire_memory_plan, mapped_bytes, 16, 8);
  AT(quire_memory_plan, kv_bytes, 24, 8);
  AT(quire_memory_plan, representation_bytes, 32, 8);
  AT(quire_memory_plan, spill_bytes, 40, 8);
  AT(quire_memory_plan, scratch_bytes, 48, 8);
  AT(quire_memory_plan, kv_bytes_per_token, 56, 8);
  AT(quire_memory_plan, reach, 64, 8);
}

static void test_stream_structs(void) {
  SIZE(quire_text, 16);
  AT(quire_text, data, 0, 8);
  AT(quire_text, len, 8, 8);

  SIZE(quire_sampler, 24);
  AT(quire_sampler, kind, 0, 4);
  AT(quire_sampler, n, 4, 4);
  AT(quire_sampler, m, 8, 4);
  AT(quire_sampler, a, 12, 4);
  AT(quire_sampler, b, 16, 4);
  AT(quire_sampler, c, 20, 4);
  SIZE(quire_logit_bias, 8);
  AT(quire_logit_bias, token, 0, 4);
  AT(quire_logit_bias, bias, 4, 4);
  SIZE(quire_token_logprob, 8);
  AT(quire_token_logprob, token, 0, 4);
  AT(quire_token_logprob, logprob, 4, 4);

  SIZE(quire_stream_options, 152);
  AT(quire_stream_options, struct_size, 0, 4);
  AT(quire_stream_options, flags, 4, 4);
  AT(quire_stream_options, max_tokens, 8, 8);
  AT(quire_stream_options, temperature, 16, 4);
  AT(quire_stream_options, top_k, 20, 4);
  AT(quire_stream_options, top_p, 24, 4);
  AT(quire_stream_options, min_p, 28, 4);
  AT(quire_stream_options, seed, 32, 8);
  AT(quire_stream_options, stop_ids, 40, 8);
  AT(quire_stream_options, n_stop_ids, 48, 8);
  AT(quire_stream_options, stop_strings, 56, 8);
  AT(quire_stream_options, n_stop_strings, 64, 8);
  AT(quire_stream_options, samplers, 72, 8);
  AT(quire_stream_options, n_samplers, 80, 8);
  AT(quire_stream_options, sampler_stride, 88, 8);
  AT(quire_stream_options, logit_bias, 96, 8);
  AT(quire_stream_options, n_logit_bias, 104, 8);
  AT(quire_stream_options, dry_breakers, 112, 8);
  AT(quire_stream_options, n_dry_breakers, 120, 8);
  AT(quire_stream_options, min_tokens, 128, 8);
  AT(quire_stream_options, deadline_ms, 136, 8);
  AT(quire_stream_options, n_top_logprobs, 144, 4);
  AT(quire_stream_options, max_undelivered, 148, 4);

  SIZE(quire_event, 120);
  AT(quire_event, struct_size, 0, 4);
  AT(quire_event, flags, 4, 4);
  AT(quire_event, type, 8, 4);
  AT(quire_event, token, 12, 4);
  AT(quire_event, n_tokens, 16, 8);
  AT(quire_event, text, 24, 8);
  AT(quire_event, text_len, 32, 8);
  AT(quire_event, total, 40, 8);
  AT(quire_event, reused, 48, 8);
  AT(quire_event, done, 56, 8);
  AT(quire_event, n_per_second, 64, 8);
  AT(quire_event, logprob, 72, 4);
  AT(quire_event, finish_reason, 76, 4);
  AT(quire_event, stop_index, 80, 4);
  AT(quire_event, code, 84, 4);
  AT(quire_event, top_logprobs, 88, 8);
  AT(quire_event, n_top_logprobs, 96, 8);
  AT(quire_event, message, 104, 8);
  AT(quire_event, message_len, 112, 8);
}

void test_layout(void) {
  if (sizeof(void*) != 8 || sizeof(long) != 8) return;
  test_error_and_runtime();
  test_model_structs();
  test_strategy_structs();
  test_session_structs();
  test_memory_plan_struct();
  test_stream_structs();
}
