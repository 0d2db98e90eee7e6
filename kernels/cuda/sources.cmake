# The kernels, for the plugin and for their emulation in the tests.
set(QUIRE_CUDA_SOURCES attend_in_chunks.cu attention.cu attention_by_keys.cu attention_by_warpgroups.cu
  attention_by_warps.cu attention_shares.cu choose_chunks.cu dequantize_rows.cu
  elementwise.cu gather.cu list_chosen.cu matmul_rows.cu matmul_rows_quantized.cu matmul_tiles.cu narrow_kv.cu rank_logits.cu
  representations.cu rms_norm.cu score_chunks.cu store_kv.cu)
