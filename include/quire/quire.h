/* SPDX-License-Identifier: MIT
 *
 * quire.h - the C interface of Quire, a runtime for language models that read long documents.
 *
 * The five nouns
 *   runtime    threads, memory and log sink; everything else hangs off one
 *   model      immutable weights, shared by any number of sessions
 *   tokenizer  text <-> token ids of one model
 *   session    a model plus a long-context strategy plus the text read so far (its KV cache)
 *   stream     one computation on a session: process what was fed, then generate
 *
 * The main job, without error handling (examples/c_minimal has it with):
 *
 *   quire_runtime_create(NULL, &rt, &err);
 *   quire_model_load(rt, dir, dir_len, NULL, &model, &err);
 *   quire_session_options so = {0};
 *   quire_session_options_init(&so, sizeof so);
 *   so.strategy = "dca"; so.strategy_len = 3;
 *   quire_session_create(model, &so, &session, &err);
 *   quire_session_feed_text(session, text, text_len, 0, &err);       // queues, computes nothing
 *   quire_stream_options go = {0};
 *   quire_stream_options_init(&go, sizeof go);
 *   go.max_tokens = 64;
 *   quire_stream_open(session, &go, &stream, &err);
 *   quire_event ev = {0};
 *   quire_event_init(&ev, sizeof ev);
 *   while (quire_stream_next(stream, -1, &ev, &err) == QUIRE_OK) write(1, ev.text, ev.text_len);
 *
 * Rules that hold for every declaration below (ABI.md says why)
 *   Threads     Each function carries one of three words. [any-thread]: call it whenever you like.
 *               [one-thread-at-a-time]: any thread, but never two at once on the same handle; there
 *               is no thread affinity. [callback-only]: a function that the library calls.
 *   Errors      Functions return an int32_t status: 0 is success, negative is failure, positive is
 *               success with news. `err` may be NULL. A failed call changes nothing unless its
 *               comment says so.
 *   Structs     Each begins with `uint32_t struct_size; uint32_t flags;`, save the small ones whose
 *               comment says that their size is final. Set struct_size to sizeof the struct, with
 *               its `_init` function (which also zeroes the rest) or by hand; more than 4096 is
 *               refused unread. Structs named _info, _stats, _plan, _estimate and _probes, which
 *               only report, have no `_init`: set struct_size by hand, the rest may be anything.
 *               Zero in any other field of an options struct means its default, and so does NULL
 *               for the struct. Unknown flag bits and a non-zero unknown tail are refused. Into
 *               output structs the library writes at most struct_size bytes, and sets struct_size
 *               to what it wrote.
 *   Pointers    to what a call gives back must not be NULL (INVALID_ARGUMENT), save `needed`, a
 *               `buf` with cap 0, and those whose comment says that they may be.
 *   Strings     UTF-8, pointer plus length in bytes, no terminating NUL needed. The library copies
 *               what it keeps, before the call returns. Paths go to the system byte for byte; a
 *               message that names one has U+FFFD for what is not UTF-8.
 *   Results     of any length, text and arrays alike, come back by `buf, cap, *needed`: how many
 *               elements there are (bytes of text, token ids, floats, structs) is stored in *needed
 *               (which may be NULL), and all of them are copied if cap, which counts elements too,
 *               has room for them; otherwise the call returns QUIRE_ERROR_BUFFER_TOO_SMALL and buf
 *               is untouched. cap = 0 with buf = NULL asks for the number alone and returns
 *               QUIRE_OK.
 *   Handles     Reference counted. A create or open function gives you one reference. Handles keep
 *               their parents alive (runtime <- tokenizer; runtime <- model <- adapter, session <-
 *               stream), so they may be released in any order from any thread. A call that has
 *               begun keeps the handles that it was given until it returns: they may be released
 *               inside its callbacks, and on another thread that knows it to have begun (one of
 *               its callbacks ran). Only where a release could come before a call that is about
 *               to begin does that call's thread need a reference of its own. Release never
 *               waits; close does.
 *   Process     No global state, no signal handlers, nothing is written to stdout or stderr, no
 *               exit or abort on bad input. A file size limit (RLIMIT_FSIZE) is an IO error,
 *               EFBIG, whose signal does not reach the host. After fork() only exec is supported.
 */
#ifndef QUIRE_QUIRE_H_
#define QUIRE_QUIRE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define QUIRE_API
#elif defined(__GNUC__)
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version --------------------------------------------------------------------------------- */

/* The interface this header describes: major * 10000 + minor * 100 + patch. Until 1.0 a new minor
 * may break the ABI, and the library's SONAME (libquire.so.0) says nothing; from 1.0 on only a new
 * major may. */
#define QUIRE_VERSION 100

/* The version of the loaded library, in the same form. [any-thread] since 0.1 */
QUIRE_API int32_t quire_get_version(void);

/* The same as text, "0.1.0": static, NUL-terminated, never freed. [any-thread] since 0.1 */
QUIRE_API const char* quire_get_version_string(void);

/* ---- Status and errors ----------------------------------------------------------------------- */

typedef int32_t quire_status;

#define QUIRE_OK 0
/* News (positive). */
#define QUIRE_END 1     /* the stream has delivered its end event; there is nothing more */
#define QUIRE_TIMEOUT 2 /* no event within the timeout; try again */
/* Failures (negative). Codes are only ever added. */
#define QUIRE_ERROR_INTERNAL (-1)         /* a bug in Quire; please report err->message */
#define QUIRE_ERROR_INVALID_ARGUMENT (-2) /* NULL, size, range, unknown flag, struct_size */
#define QUIRE_ERROR_OUT_OF_MEMORY (-3)    /* the allocator or the system gave no memory */
#define QUIRE_ERROR_IO (-4)               /* a file operation failed: err->os_error is errno */
#define QUIRE_ERROR_NOT_FOUND (-5)        /* no such file, metadata key, tensor */
/* damaged or contradictory files; offset is a byte of the file that the message names, or -1 */
#define QUIRE_ERROR_BAD_FILE (-6)
#define QUIRE_ERROR_UNSUPPORTED (-7) /* well-formed, but not done; the message names it */
#define QUIRE_ERROR_BUSY (-8)        /* a stream is open on this session */
#define QUIRE_ERROR_CLOSED (-9)      /* the handle or one of its parents was closed */
#define QUIRE_ERROR_CANCELLED (-10)  /* cancelled by the caller */
#define QUIRE_ERROR_OVERFLOW (-11)   /* prompt + max_tokens exceed the strategy's reach */
#define QUIRE_ERROR_BUDGET (-12)     /* the caller's byte budget is too small; message: needed */
/* wrong strategy expression; offset is a byte column */
#define QUIRE_ERROR_BAD_STRATEGY (-13)
#define QUIRE_ERROR_INVALID_TEXT (-14) /* text is not whole, valid UTF-8; offset is a byte */
/* an id outside the vocabulary; offset is its index */
#define QUIRE_ERROR_INVALID_TOKEN (-15)
#define QUIRE_ERROR_NUMERIC (-16)          /* the model produced NaN or infinite logits */
#define QUIRE_ERROR_EMPTY (-17)            /* generation asked of a session that has read nothing */
#define QUIRE_ERROR_BUFFER_TOO_SMALL (-18) /* *needed says how much to offer */
#define QUIRE_ERROR_DEVICE (-19)           /* a GPU or its driver failed; the message says how */

/* The constant's name without its prefix, such as "OK" or "OUT_OF_MEMORY"; "UNKNOWN" for a code
 * this version does not know. Static, NUL-terminated. [any-thread] since 0.1 */
QUIRE_API const char* quire_get_status_name(quire_status status);

#define QUIRE_ERROR_MESSAGE_BYTES 512

/* What a call that takes one says of its failure; a call that succeeds, with news or without (OK,
 * END, TIMEOUT), writes code = 0 and an empty message. It needs no initialising: whatever it holds
 * is written over. This struct has its final size. */
typedef struct quire_error {
  int32_t code;     /* the status returned */
  int32_t os_error; /* errno where the system was the cause, else 0 */
  int64_t offset;   /* byte, column or token index the message speaks of; -1 where none */
  int64_t reserved; /* 0 */
  /* UTF-8, NUL-terminated, cut at a code point if too long. Control bytes of what it quotes, but
   * for newlines and tabs, are escaped: a backslash, x and two digits. */
  char message[QUIRE_ERROR_MESSAGE_BYTES];
} quire_error;

/* ---- Runtime --------------------------------------------------------------------------------- */

typedef struct quire_runtime quire_runtime;
typedef struct quire_model quire_model;
typedef struct quire_tokenizer quire_tokenizer;
typedef struct quire_session quire_session;
typedef struct quire_stream quire_stream;
typedef struct quire_cancel quire_cancel;
typedef struct quire_adapter quire_adapter;

#define QUIRE_LOG_ERROR 1
#define QUIRE_LOG_WARNING 2
#define QUIRE_LOG_INFO 3
#define QUIRE_LOG_DEBUG 4

/* [callback-only] Runs on any thread of the runtime or inside a call of yours; must not call back
 * into Quire, but for the release functions and quire_cancel_trigger; must not throw or longjmp.
 * `message` lives only during the call. */
typedef void (*quire_log_callback)(void* user_data, int32_t level, const char* message,
                                   size_t message_len);

/* [callback-only] Runs once, when the library will never use the callbacks' user_data again; not
 * after the call that was given them (quire_runtime_create, quire_session_load_from) failed, which
 * leaves user_data to the caller. Any thread, the same rules as the log's. */
typedef void (*quire_destroy_callback)(void* user_data);

/* [callback-only] Memory for weights, KV cache and scratch (small objects use the system's
 * allocator). Any thread, the same rules as the log's; the library holds no lock meanwhile. Returns
 * memory aligned to `alignment` (a power of two), or NULL when there is none. */
typedef void* (*quire_alloc_callback)(void* user_data, size_t size, size_t alignment);
/* [callback-only] `memory`, `size` and `alignment` as they were allocated. Likewise. */
typedef void (*quire_free_callback)(void* user_data, void* memory, size_t size, size_t alignment);

/* [callback-only] How far a call is that was given it: loading a model or an adapter, quantising,
 * saving and putting, verifying. done and total in bytes. On the thread of that call; the same
 * rules as the log's. */
typedef void (*quire_progress_callback)(void* user_data, int64_t done, int64_t total);

typedef struct quire_runtime_options {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  /* compute threads, all created here; 0: one for each core that the process may use (its
     affinity; on Linux the processor time of its control groups, too); at most 1024 */
  int32_t n_threads;
  int32_t log_level; /* the most talkative level wanted; 0: QUIRE_LOG_WARNING */
  /* threads that move chunks between tiers (see "Tiers"), at most 64, created with the first
   * session that has more than one: each on a GPU, those with COMPRESSED or FILE on a CPU; 0: one;
   * -1: none, such sessions move chunks while they compute */
  int32_t n_io_threads;
  /* lines of the log that it keeps for quire_runtime_take_log_line, further ones are lost; 0: none;
   * at most 65536 */
  int32_t n_kept_log_lines;
  quire_log_callback log; /* NULL: no function is called */
  void* log_user_data;
  quire_destroy_callback log_destroy; /* may be NULL */
  quire_alloc_callback alloc;         /* NULL: the system's memory; alloc and free go together */
  quire_free_callback free;
  void* alloc_user_data;
  quire_destroy_callback alloc_destroy; /* may be NULL */
  /* What the KV caches of all its sessions may hold together, tier by tier (see "Tiers"); 0: no
   * limit. DEVICE's is of each device by itself. Where that of the tier that models compute on is
   * reached, chunks of sessions without a stream leave first, then those of the session that has
   * most: each that works keeps an equal share. */
  int64_t kv_device_budget_bytes;
  int64_t kv_host_budget_bytes;
  int64_t kv_compressed_budget_bytes;
  int64_t kv_file_budget_bytes;
  /* Most bytes of whole chunks that it keeps of released or closed sessions, for the next session
   * whose text begins as one of theirs (see "Prefix reuse"); 0: none. They count in the budgets
   * above, and make room for what a living session needs before any other chunk does. The text that
   * was used longest ago goes first, from its end on, and all of a model's with the model. */
  int64_t prefix_cache_bytes;
} quire_runtime_options;

/* What it keeps of released and closed sessions (prefix_cache_bytes). */
typedef struct quire_runtime_stats {
  uint32_t struct_size;
  uint32_t flags;              /* 0 */
  int64_t prefix_cache_bytes;  /* kept now, whatever tier it lies in */
  int64_t prefix_cache_texts;  /* of so many texts */
  int64_t prefix_cache_tokens; /* tokens of kept chunks that sessions took over since creation */
} quire_runtime_stats;

/* [any-thread] since 0.1 */
QUIRE_API void quire_runtime_options_init(quire_runtime_options* options, size_t size);

/* Starts the compute threads (named "quire-N"; those of n_io_threads are "quire-io"; all signals
 * blocked, parked when idle). Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. [any-thread] since 0.1 */
QUIRE_API quire_status quire_runtime_create(const quire_runtime_options* options,
                                            quire_runtime** out, quire_error* err);
/* Adds a reference. NULL does nothing. [any-thread] since 0.1 */
QUIRE_API void quire_runtime_retain(quire_runtime* runtime);
/* Drops a reference; the last one stops the threads once nothing uses them, without waiting. NULL
 * does nothing. Legal inside callbacks. [any-thread] since 0.1 */
QUIRE_API void quire_runtime_release(quire_runtime* runtime);
/* Cancels everything that runs, frees all sessions' memory and ends all threads: when it returns,
 * none is left. Calls that run meanwhile and may take long (loading, saving, putting into a store,
 * feeding, editing or encoding text, quire_session_fill_random) soon return CLOSED, and leave what
 * a call that fails leaves; for the callbacks of those on a session it waits. Calls without a
 * handle of this runtime (quire_model_quantize, quire_snapshot_verify, quire_store_verify) go on.
 * Afterwards every call on this runtime's surviving handles returns CLOSED, except release and
 * close, which are OK. Before unloading the library use it, and wait for all of your calls. Never
 * call it from a callback. [any-thread] since 0.1 */
QUIRE_API quire_status quire_runtime_close(quire_runtime* runtime, quire_error* err);
/* Fills *stats (struct_size set by the caller). Errors: INVALID_ARGUMENT, CLOSED.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_runtime_get_stats(const quire_runtime* runtime,
                                               quire_runtime_stats* stats, quire_error* err);

/* Takes the oldest line of the log that is kept (n_kept_log_lines): for hosts that no foreign
 * thread may call, such as most interpreters. *level: QUIRE_LOG_...; 0: there is none, and the text
 * is empty. Lines are never empty. *n_lost: lines that were lost, for want of room, between the one
 * before and this one. A line is taken when its text fits cap. Errors: INVALID_ARGUMENT,
 * BUFFER_TOO_SMALL (also where another thread took the line that was asked about), CLOSED.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_runtime_take_log_line(quire_runtime* runtime, int32_t* level,
                                                   int64_t* n_lost, char* buf, size_t cap,
                                                   size_t* needed, quire_error* err);

#define QUIRE_DEVICE_CPU 1
#define QUIRE_DEVICE_CUDA 2

#define QUIRE_DEVICE_USABLE 1u /* a model can run on it */

/* A device of this machine. Texts are UTF-8 and NUL-terminated.
 * GPUs are there where the plugin libquire-cuda.so is found, beside libquire.so or where the system
 * looks for libraries, and a driver with it. The environment variable QUIRE_CUDA_PLUGIN names
 * another file, or is "none"; it is read once a process, when a runtime first asks for devices. On
 * a GPU activations are bf16 and sums f32; the KV cache is F16 or BF16. Tokens there may differ
 * from the CPU's where two are nearly equally likely. */
typedef struct quire_device_info {
  uint32_t struct_size;
  uint32_t flags;        /* QUIRE_DEVICE_USABLE */
  int32_t kind;          /* QUIRE_DEVICE_CPU, QUIRE_DEVICE_CUDA */
  int32_t reserved;      /* 0 */
  int64_t memory_bytes;  /* of the device; 0: not known */
  int64_t free_bytes;    /* of that, now; 0: not known */
  char name[32];         /* for quire_model_options.device: "cpu", "cuda:0" */
  char description[128]; /* for a person */
  char obstacle[256];    /* why no model can run on it; empty where one can */
} quire_device_info;

/* How many devices there are, the unusable ones included. Errors: CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_runtime_get_device_count(const quire_runtime* runtime,
                                                      int32_t* n_devices, quire_error* err);
/* Fills *info (struct_size set by the caller) with device `index`, from 0 on, in the order in which
 * "auto" prefers them. Errors: INVALID_ARGUMENT, NOT_FOUND (index), CLOSED.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_runtime_get_device_info(const quire_runtime* runtime, int32_t index,
                                                     quire_device_info* info, quire_error* err);

/* ---- Cancel handle for long calls (loading) -------------------------------------------------- */

/* [any-thread] since 0.1. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
QUIRE_API quire_status quire_cancel_create(quire_cancel** out, quire_error* err);
/* Asks the calls that were given this handle to stop; sticky and idempotent.
 * [any-thread] since 0.1 */
QUIRE_API void quire_cancel_trigger(quire_cancel* cancel);
/* [any-thread] since 0.1 */
QUIRE_API void quire_cancel_retain(quire_cancel* cancel);
/* [any-thread] since 0.1 */
QUIRE_API void quire_cancel_release(quire_cancel* cancel);

/* ---- Model ----------------------------------------------------------------------------------- */

#define QUIRE_TYPE_DEFAULT 0
#define QUIRE_TYPE_F32 1
#define QUIRE_TYPE_F16 2
#define QUIRE_TYPE_BF16 3
/* Quantised: blocks of 32 or 256 elements that share scales, as GGUF files hold them. For weights
 * only. What they are multiplied with says quire_model_options.activation_type. */
#define QUIRE_TYPE_Q8_0 4
#define QUIRE_TYPE_Q4_0 5
#define QUIRE_TYPE_Q4_1 6
#define QUIRE_TYPE_Q5_0 7
#define QUIRE_TYPE_Q5_1 8
#define QUIRE_TYPE_Q4_K 9
#define QUIRE_TYPE_Q5_K 10
#define QUIRE_TYPE_Q6_K 11
#define QUIRE_TYPE_Q2_K 12
#define QUIRE_TYPE_Q3_K 13
#define QUIRE_TYPE_IQ4_NL 14
#define QUIRE_TYPE_IQ4_XS 15
/* Whole numbers that share scales. For keys and values of old text (kv_old_type): keys have a
 * scale for each channel of a chunk, values one for each token. And for activations: 32 of a row
 * share a scale. */
#define QUIRE_TYPE_INT8 16
/* Codes of 4 bits, for keys and values of old text only, too: 32 numbers share a scale and a
 * minimum in float16, of keys those of a channel in 32 tokens, of values 32 channels of a token. So
 * a number takes 5 bits; what is missing to 32 is padded. Where numbers are beyond float16, those
 * of their group may come out as NaN. */
#define QUIRE_TYPE_INT4 17

#define QUIRE_LOAD_DEFAULT 0 /* QUIRE_LOAD_READ */
/* Maps the weight files while loading, and the embedding as long as the model lives; processes
 * then share its memory. DANGER: if another program shortens a mapped file (an upgrade in place,
 * a copy that is cut short, a file server that loses it), the system kills this process with
 * SIGBUS at the next access. Only for files that nobody writes to; replace them by renaming. */
#define QUIRE_LOAD_MMAP 1
/* Reads the weight files, each byte once (tied embeddings twice, and once more where the files
 * repeat them as lm_head). A file that shrinks meanwhile is an IO error; afterwards the model does
 * not need its files any more. */
#define QUIRE_LOAD_READ 2

/* An adapter directory (see "Adapters") to be merged into the weights. This struct has its final
 * size. */
typedef struct quire_adapter_source {
  const char* path;
  size_t path_len;
  double scale; /* times the adapter's own; finite and not 0 */
} quire_adapter_source;

typedef struct quire_model_options {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  int32_t load;   /* QUIRE_LOAD_* */
  /* QUIRE_TYPE_*: what the projection matrices are kept as; default: each part as it is stored.
   * Rows that are not whole blocks of a quantised type are an error, UNSUPPORTED. */
  int32_t weight_type;
  quire_cancel* cancel;             /* may be NULL; kept during the call */
  quire_progress_callback progress; /* may be NULL */
  void* progress_user_data;
  /* W' = W + scale * B A in float32, then converted to the type W is kept in; an embedding that
   * is changed so is kept in float32 */
  const quire_adapter_source* merge;
  size_t n_merge; /* at most 64; at most one may replace a given tensor, but by equal base copies */
  /* directory of an Activation Beacon plug-in for this model (strategy beacon):
   * config.json with the beacon_* keys and model.safetensors with the beacon_* tensors of
   * version 1. NULL or empty: the checkpoint's own, if it has any */
  const char* beacon_path;
  size_t beacon_path_len;
  /* the name of the device that the model and its sessions run on (quire_device_info.name; "cuda"
   * is "cuda:0"); NULL, empty or "auto": the first usable one, or the CPU where the model does not
   * fit that one's memory ("device_reason" says it; progress then begins anew) */
  const char* device;
  size_t device_len;
  /* What rows may be rounded to on the CPU before they are multiplied with weights, as the weights
   * themselves are; sums are float32. QUIRE_TYPE_INT8 (default): to 8 bits for quantised weights,
   * as the formats' own tools do, which makes products sums of whole numbers and several times
   * faster; to bfloat16 for weights in bfloat16. QUIRE_TYPE_BF16: the latter alone.
   * QUIRE_TYPE_F32: rows stay as they are, and a product is that with the values the weights stand
   * for, in float32. Other devices round to their own type, or as finely with a scale for each
   * 16 neighbours */
  int32_t activation_type;
  int32_t reserved; /* 0 */
  /* A directory (made if its parent is there) that keeps weights as the CPU multiplies with them:
   * the first load writes a file of about weight_bytes for the model, later ones map it instead of
   * reading and packing the weights again, so that they are done at once, and processes share its
   * memory, which the system may take back without writing it anywhere. The file's checksums are
   * compared. It is written anew where the model's files have another size or time of change than
   * those that it was made from. Where it cannot be written (a full disk) the log says so, and
   * weights are in memory as without it; so too of a model with `merge`, and on other devices. Who
   * may write to the directory can change what models answer, and a file in it that is shortened
   * kills the process (QUIRE_LOAD_MMAP); deleting files is safe. NULL or empty: none is kept */
  const char* packed_directory;
  size_t packed_directory_len;
} quire_model_options;

/* [any-thread] since 0.1 */
QUIRE_API void quire_model_options_init(quire_model_options* options, size_t size);

/* Loads a model: a Hugging Face directory (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM,
 * Qwen3ForCausalLM, SmolLM3ForCausalLM, Phi3ForCausalLM, GraniteForCausalLM, Gemma3ForCausalLM,
 * Gemma3ForConditionalGeneration and Mistral3ForConditionalGeneration, of which the text model is
 * read) with config.json, *.safetensors (single or sharded), and tokenizer.model or tokenizer.json
 * (quire_tokenizer_load says which; an lm_head in the files that differs from the embedding is used
 * whatever tie_word_embeddings says); or a GGUF file of version 2 or 3 (of a model that is split
 * over several: the first, NAME-00001-of-0000N.gguf) of the architectures llama, mistral, mistral3,
 * qwen2, qwen3, smollm3, phi3, granite and gemma3 with weights of the types QUIRE_TYPE_*, in any
 * mixture.
 * Waits until loaded. The calling thread reads the files; the runtime's threads pack what was read,
 * at most 16 MB (or one row, or head, of a matrix) at a time, between the steps of sessions, which
 * go on meanwhile. A cancel is seen before each file and each such piece. Where a device's memory
 * does not suffice, chunks of the runtime's sessions on which no stream is open go to HOST (see
 * "Tiers") as far as the model needs theirs, here and in quire_adapter_load. Errors:
 * INVALID_ARGUMENT (also: a device of which nothing is known; the message lists those that there
 * are), NOT_FOUND, IO, BAD_FILE, UNSUPPORTED (also: a device that this build or machine cannot
 * use), OUT_OF_MEMORY, CANCELLED, CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_model_load(quire_runtime* runtime, const char* path, size_t path_len,
                                        const quire_model_options* options, quire_model** out,
                                        quire_error* err);
/* [any-thread] since 0.1 */
QUIRE_API void quire_model_retain(quire_model* model);
/* [any-thread] since 0.1 */
QUIRE_API void quire_model_release(quire_model* model);

typedef struct quire_model_info {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  int32_t n_layers;
  int32_t n_query_heads;
  int32_t n_kv_heads;
  int32_t head_dim;
  int32_t hidden_size;
  int32_t intermediate_size;
  int32_t vocab_size;
  int32_t weight_type; /* QUIRE_TYPE_* of most elements of the projection matrices in memory */
  /* Positions the weights were trained for: max_position_embeddings, or max_sequence_length where
   * they are interpolated (linear) and that is more, as in Vicuna 1.5 16k. */
  int64_t train_len;
  int64_t n_parameters; /* weights counted once (tied embeddings too) */
  int64_t weight_bytes; /* bytes of weights in memory and mapped */
  double rope_theta;    /* of layers with a window that others lack it may be another (Gemma 3) */
  /* a token sees only so many tokens back, itself included; 0: all, in some layers at least (see
   * the metadata "sliding_window_layers") */
  int64_t sliding_window;
} quire_model_info;

/* Fills *info (struct_size set by the caller). [any-thread] since 0.1 */
QUIRE_API quire_status quire_model_get_info(const quire_model* model, quire_model_info* info,
                                            quire_error* err);

/* Metadata by key, as text: "architecture", "rope_type", "rope_scaling" (as a term of a strategy
 * expression; empty: none), "tokenizer", "bos_token_id", "eos_token_ids", "sliding_window_layers"
 * (how many layers have a sliding window), "sliding_window_tokens" (how far these see back; "0":
 * there are none), "device" (its name), "device_reason" (why the model runs there, and what the
 * device lacks that would make it faster: that the log has as a warning too), "identity" (32 digits
 * that name configuration and weights, merged adapters included), and "config.json" (the file's
 * text; of a GGUF file what its metadata say of the model, as JSON). Errors: NOT_FOUND,
 * BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_model_get_metadata(const quire_model* model, const char* key,
                                                size_t key_len, char* buf, size_t cap,
                                                size_t* needed, quire_error* err);

/* What the files of a model hold, of either format, as a JSON object; weights are not read:
 *   {"format": "gguf" or "safetensors", "files": [path, ...],
 *    "metadata": {key: value, ...},   gguf only; of a long array the length: {"length": n}
 *    "tensors": [{"name", "type", "shape": [rows, columns], "bytes", "file"}, ...]}
 * "name" and "type" are as in the file (types that Quire cannot compute with are listed as well),
 * "file" is an index. What is not UTF-8 in a path or a text is U+FFFD, a number that is not finite
 * null. Errors: NOT_FOUND, IO, BAD_FILE, UNSUPPORTED, BUFFER_TOO_SMALL.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_model_describe_files(const char* path, size_t path_len, char* buf,
                                                  size_t cap, size_t* needed, quire_error* err);

typedef struct quire_quantize_options {
  uint32_t struct_size;
  uint32_t flags;     /* 0 */
  int32_t n_threads;  /* 0: as in quire_runtime_options; at most 1024 */
  int32_t reserved;   /* 0 */
  const char* recipe; /* a name of quire_get_quantizations; NULL: "q4_k_m" */
  size_t recipe_len;
  quire_cancel* cancel;             /* may be NULL; kept during the call */
  quire_progress_callback progress; /* may be NULL; bytes of tensors, on the calling thread */
  void* progress_user_data;
} quire_quantize_options;

/* [any-thread] since 0.1 */
QUIRE_API void quire_quantize_options_init(quire_quantize_options* options, size_t size);
/* The names of the recipes, separated by ", ": static, NUL-terminated. A recipe gives each weight
 * matrix a type: that of its name, one of more bits where less would cost much (the output matrix;
 * in *_k_m, iq4_* and q2_k half of the V and down projections), and another one where rows are not
 * whole blocks.
 * Vectors stay f32. [any-thread] since 0.1 */
QUIRE_API const char* quire_get_quantizations(void);
/* Writes a model (a path as that of quire_model_load) to the GGUF file `out_path`, which other
 * programs open, too. The file appears when it is complete; one that is there is replaced. Waits
 * until done. Errors: those of quire_model_load; BAD_FILE (also a weight that is not finite where
 * its tensor is rounded); INVALID_ARGUMENT (no such recipe); UNSUPPORTED (what GGUF has no place
 * for: named; a weight that is too large for its tensor's new type). [any-thread] since 0.1 */
QUIRE_API quire_status quire_model_quantize(const char* path, size_t path_len, const char* out_path,
                                            size_t out_path_len,
                                            const quire_quantize_options* options,
                                            quire_error* err);

/* ---- Adapters -------------------------------------------------------------------------------- */

/* LoRA adapters (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", eq. 3) in
 * PEFT's form: a directory with adapter_config.json and adapter_model.safetensors. Either merged
 * into a model when it is loaded (quire_model_options.merge), or loaded beside it and used by
 * sessions, each with its own list and scales:
 *
 *   y = x W^T + sum over adapters of scale * s * (x A^T) B^T
 *   s = alpha / r, or alpha / sqrt(r) with rsLoRA
 *
 * Done are q, k, v, o, gate, up and down projections, embedding and lm_head, rank_pattern and
 * alpha_pattern, and replaced embeddings, lm_heads and norms (modules_to_save), which are taken
 * whole whatever the scale. Everything else is refused by name (UNSUPPORTED): DoRA, biases, other
 * PEFT methods, tensors in .bin files. An adapter's files cannot say which RoPE base it was trained
 * with. If one that changes queries or keys is used and the strategy names neither a
 * base(theta=...) nor a scaling, the first stream of the session begins with a QUIRE_EVENT_WARNING,
 * and the log has it too. */

typedef struct quire_adapter_options {
  uint32_t struct_size;
  uint32_t flags;       /* 0 */
  quire_cancel* cancel; /* may be NULL; kept during the call */
  /* may be NULL; the tensors' file is read twice: to be hashed, and to be loaded */
  quire_progress_callback progress;
  void* progress_user_data;
} quire_adapter_options;

/* [any-thread] since 0.1 */
QUIRE_API void quire_adapter_options_init(quire_adapter_options* options, size_t size);

/* Loads an adapter for this model; its weights are kept in the types they are stored in.
 * Waits until loaded, as quire_model_load does. Errors: INVALID_ARGUMENT, NOT_FOUND, IO,
 * BAD_FILE (damaged, incomplete, or of other shapes than this model's: the tensor, found and
 * expected), UNSUPPORTED (another method or architecture), OUT_OF_MEMORY, CANCELLED, CLOSED.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_adapter_load(quire_model* model, const char* path, size_t path_len,
                                          const quire_adapter_options* options, quire_adapter** out,
                                          quire_error* err);
/* [any-thread] since 0.1 */
QUIRE_API void quire_adapter_retain(quire_adapter* adapter);
/* Sessions keep the adapters they use. [any-thread] since 0.1 */
QUIRE_API void quire_adapter_release(quire_adapter* adapter);

#define QUIRE_ADAPTER_REPLACES_EMBEDDING 1u
#define QUIRE_ADAPTER_REPLACES_LM_HEAD 2u
#define QUIRE_ADAPTER_REPLACES_NORMS 4u
#define QUIRE_ADAPTER_CHANGES_QUERIES_OR_KEYS 8u

typedef struct quire_adapter_info {
  uint32_t struct_size;
  uint32_t flags; /* QUIRE_ADAPTER_* */
  int32_t rank;   /* the largest of its ranks; 0: it only replaces */
  /* in memory: a copy of the model's own embedding or lm_head among its files is not kept */
  int32_t n_tensors;
  int64_t n_parameters;
  int64_t bytes; /* of memory, once for all sessions */
} quire_adapter_info;

/* Fills *info (struct_size set by the caller). [any-thread] since 0.1 */
QUIRE_API quire_status quire_adapter_get_info(const quire_adapter* adapter,
                                              quire_adapter_info* info, quire_error* err);
/* Metadata by key, as text: "identity" (128 bits of the content of its two files, as 32 hexadecimal
 * digits) and "base_model" (what the adapter says it was trained on; may be empty). Errors:
 * NOT_FOUND, BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_adapter_get_metadata(const quire_adapter* adapter, const char* key,
                                                  size_t key_len, char* buf, size_t cap,
                                                  size_t* needed, quire_error* err);

/* ---- Tokenizer ------------------------------------------------------------------------------- */

/* A new reference to the model's tokenizer. [any-thread] since 0.1 */
QUIRE_API quire_status quire_model_get_tokenizer(quire_model* model, quire_tokenizer** out,
                                                 quire_error* err);
/* [any-thread] since 0.1 */
QUIRE_API void quire_tokenizer_retain(quire_tokenizer* tokenizer);
/* [any-thread] since 0.1 */
QUIRE_API void quire_tokenizer_release(quire_tokenizer* tokenizer);

/* A tokenizer alone, without a model's weights: of a model directory, or of one file: a
 * tokenizer.model (SentencePiece), a tokenizer.json (its name ends with .json), a GGUF file. What a
 * directory's config.json or a GGUF file's model says of vocabulary and end-of-text ids holds as
 * with the model; for other files, and where Quire cannot run the model of a GGUF file, the
 * tokenizer's own do. Of a directory, tokenizer.model counts where
 * it is there, else tokenizer.json; both with tokenizer_config.json.
 * tokenizer.json: BPE, byte-level (GPT-2, Llama 3, SmolLM, Qwen, Mistral's Tekken and others) or
 * with byte fallback (Mistral 7B); ids are those of Hugging Face's `tokenizers`. GGUF: byte-level
 * BPE, whose pre-tokenizer is one of those that the library knows by name, and SentencePiece
 * vocabularies; texts are not normalized, for these files do not say how. What else a file asks for
 * is refused by name (UNSUPPORTED), as are regular expressions that take too much work. Errors:
 * INVALID_ARGUMENT, NOT_FOUND, IO, BAD_FILE (also: ids beyond the model's vocabulary, merges of
 * unknown tokens), UNSUPPORTED, OUT_OF_MEMORY, CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_tokenizer_load(quire_runtime* runtime, const char* path,
                                            size_t path_len, quire_tokenizer** out,
                                            quire_error* err);

/* Flags of tokenize and feed_text. Without PARSE_SPECIAL text never becomes a control token,
 * whatever it says: text from outside can be fed as it is. With it the longest control or added
 * token that begins at a place counts, from left to right; the work for a byte of text does not
 * depend on these tokens. One may have at most 4096 bytes, all together 8 MiB (else BAD_FILE when
 * the model is loaded). Added tokens that are no control tokens are found without it as well, but
 * for those of a directory with tokenizer.model. */
/* "<s>", "<|im_end|>" and the like in the text are control tokens */
#define QUIRE_TEXT_PARSE_SPECIAL 1u
#define QUIRE_TEXT_NO_BOS 2u /* no beginning-of-sequence token, even at the start */
/* tokenize only: as a later segment (no BOS, no dummy prefix) */
#define QUIRE_TEXT_CONTINUE 4u

/* Text to ids. The first segment of a text gets the beginning-of-sequence token where the model's
 * tokenizer adds one, and SentencePiece's dummy prefix where its model has one; later segments
 * (QUIRE_TEXT_CONTINUE) get neither. Beside the ids this takes a
 * few MiB of the system's memory: a long text is encoded in parts, cut where no token can cross,
 * which changes no id. A unigram tokenizer, and a text without such places, takes about 200 bytes
 * for a byte. A byte-level tokenizer takes about 60 bytes for a byte of the longest word or run of
 * spaces. A tokenizer of tokenizer.json or a GGUF file takes time in proportion to n log n for any
 * text of n bytes.
 * Errors: INVALID_TEXT, INVALID_ARGUMENT, BUFFER_TOO_SMALL, UNSUPPORTED (a regular expression of
 * tokenizer.json takes too much work on this text), CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_tokenizer_encode(const quire_tokenizer* tokenizer, const char* text,
                                              size_t text_len, uint32_t flags, int32_t* ids,
                                              size_t cap, size_t* needed, quire_error* err);

#define QUIRE_DECODE_SPECIAL 1u /* print control tokens as their piece instead of nothing */

/* Ids to text, as one first segment (the dummy prefix's space is dropped). Bytes that are not UTF-8
 * become U+FFFD; an id that gives no bytes (a control id without SPECIAL) ends the character before
 * it. A stream's text is made in the same way. Errors: INVALID_TOKEN, BUFFER_TOO_SMALL.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_tokenizer_decode(const quire_tokenizer* tokenizer, const int32_t* ids,
                                              size_t n_ids, uint32_t flags, char* buf, size_t cap,
                                              size_t* needed, quire_error* err);

/* The bytes that one id stands for (a byte-fallback id gives its one byte, which need not be UTF-8;
 * a control id gives none). Errors: INVALID_TOKEN, BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_tokenizer_get_token_bytes(const quire_tokenizer* tokenizer, int32_t id,
                                                       char* buf, size_t cap, size_t* needed,
                                                       quire_error* err);

/* Number of ids, of the model (the tokenizer's own may be fewer). 0 for NULL.
 * [any-thread] since 0.1 */
QUIRE_API int32_t quire_tokenizer_get_vocab_size(const quire_tokenizer* tokenizer);
/* Beginning-of-sequence id; -1 where there is none. [any-thread] since 0.1 */
QUIRE_API int32_t quire_tokenizer_get_bos(const quire_tokenizer* tokenizer);
/* 1 if the id ends a text (generation stops there by default), else 0. [any-thread] since 0.1 */
QUIRE_API int32_t quire_tokenizer_is_eos(const quire_tokenizer* tokenizer, int32_t id);

/* ---- Strategies: text in, positions out; no model needed ------------------------------------- */

/* A strategy expression is
 *
 *   visibility(arg=value, ...) [+ rope_scaling(arg=value, ...)] [+ base(theta=)]
 *
 * for example "dca(chunk=3072) + yarn(factor=2)". The last two come in either order; alone they
 * mean full attention: "pi(factor=4)" is "full + pi(factor=4)". At most 4096 bytes; blanks may
 * stand anywhere between names, numbers and signs; parentheses may be left out where no argument is
 * given. L stands for train_len.
 *
 *   full           every earlier key, true distances; reaches train_len
 *   dca            Dual Chunk Attention (An et al. 2024, "Training-Free Long-Context Scaling of
 *                  Large Language Models", eq. 2-9); no end. chunk= (s), cap= (C;
 *                  s <= C <= 2s - 1),
 *                  preset=paper|chunkllama|chunkllama_flashdec|chunkqwen|chunkllama_ppl|vllm. paper
 *                  has s = 3L/4 and C = min(L - 1, 2s - 1); the others are other programs' s and C,
 *                  where local= (their local window) may stand for s = C - local.
 *                  logit_scale=none|yarn_0.05|yarn_0.1: logits of query n times
 *                  max(1, 1 + c ln(n / L)) squared. parts=all|intra_inter|intra: the paper's
 *                  ablation. The released ChunkLlama program, unlike its paper, multiplies the
 *                  logits of all queries by m squared, with m = max(1, 1 + 0.1 ln(N / L)) for the
 *                  whole prompt of N tokens:
 *                  "dca(preset=chunkllama, train_len=L) + yarn(factor=1, attention_factor=m)"
 *   dca_topk       reads as dca does; each generated token then sees, in each layer and KV head,
 *                  the chunks of chunk= keys (32, or 16 where L is less than 512) in which its
 *                  query would find most attention: the first, the last two, and those whose mean
 *                  key fits best (the softmax over chunks of query . mean, summed over the query
 *                  heads of the KV head), at the distances of dca; no end. A combination that no
 *                  paper has: distances of An et al. 2024, chunks by mean keys as in MoBA (Lu et
 *                  al. 2025), choosing in generation as in Quest (Tang et al. 2024). It sees
 *                  chunks= (40) of them, in longer texts one in one_in= (12; 0: never more than
 *                  chunks). kv_chunk= is a multiple of chunk. represent=mean|minmax (minmax: not
 *                  the mean but the most that any key could score by the least and the greatest of
 *                  each channel, as in Quest), reading=dense|selected (selected: given tokens
 *                  choose too), sticky= (8, or half of those that are chosen if that is less; how
 *                  many of them are those that the last given token looked at most),
 *                  select=group|head|layer (who chooses together), begin=chunk * chunks (queries
 *                  before it see all), dca_chunk= (3L/4, a multiple of chunk), dca_cap= (L-1)
 *   beacon         Activation Beacon (Zhang et al. 2024, "Soaring from 4K to 400K", eq. 1-2), for
 *                  models with beacon weights: each complete window of window= tokens is condensed
 *                  into stride / ratio condensed entries, which stand for its first stride= tokens
 *                  from then on; attn=step_expansion|segmentation|full_coverage (these three as the
 *                  checkpoint was trained). ratio=: one for all windows (0: keep the tokens);
 *                  sequence=x2.x4: of windows in succession, the last for all further; else by the
 *                  session's expected_tokens + reserve= (as the checkpoint says), so that all stays
 *                  within L. growth=raise|stop where it does not: condense later windows more, or
 *                  end
 *   lm_infinite    the keys less than recent= (L - 1) back, and the first sinks= (10) at that
 *                  distance (Han et al. 2023); no end, but text between them is forgotten
 *   longheads      each head of each token sees `chunks` chunks of `chunk` keys, packed to
 *                  consecutive positions: the first, the last ones, and those whose representation
 *                  fits its query best (Lu et al. 2024, "LongHeads", eq. 1-3); no end. chunk=L/8 (a
 *                  multiple of 16 up to 256; also the stored chunk, so there is no kv_chunk=),
 *                  chunks=16 (at least 3; chunk * chunks <= L), begin=chunk * chunks (queries
 *                  before it see all), forced=code|paper (first, previous and own chunk; or first
 *                  and own), select=head|group (each query head for itself; or one choice for the
 *                  heads of a KV head, by the sum of their scores), init=none|full (full: given
 *                  tokens see all, generated ones select; reaches L), positions=packed|dca (dca:
 *                  the chosen keys stand where dca with chunk=dca_chunk and cap=dca_cap puts them;
 *                  a combination of two papers that neither has), vectors=f32|bf16 (the type of
 *                  the chunks' representations, which stay in memory; bf16 takes half). Ablations:
 *                  select=layer|first_layer (one choice for all heads of a layer; the first layer's
 *                  for all layers), pick=best|worst|random, first=forced|free|never (the first
 *                  chunk)
 *   rerope         distances clipped at window= (512, or L/2 if that is less; Su 2023); no end.
 *                  leaky=k: behind the window they grow a k-th as fast (0: not at all), as far as
 *                  they stay below L. log_n=1: logits of query i times max(1, ln(i + 1) / ln(L));
 *                  0: not
 *   self_extend    true distances less than window= (L/4) back, behind it between groups of group=
 *                  (8) positions (Jin et al. 2024); reaches group times what is left of L
 *   streaming_llm  sinks + recent keys (Xiao et al. 2023); no end, but text before the window is
 *                  forgotten. sinks=4, recent=512, less where train_len is short
 *                  (sinks + recent + 1 <= L)
 *   auto           one of these, by what is known: the checkpoint's trained length, rope_scaling,
 *                  dual_chunk_attention_config, beacon weights and sliding window, and the
 *                  session's expected_tokens and KV budgets. The first stream says in a
 *                  QUIRE_EVENT_NOTICE what was chosen and why. Takes no arguments
 *
 * Patterns that differ from head to head, made for fine-tuning; the models run with full attention
 * too (`full + pi(factor=)`), and better. full_below= shows queries with a lower index every key.
 *
 *   s2             LongLoRA (Chen et al. 2023): groups of group= (L/4) keys, in the second half of
 *                  the heads shifted by half a group
 *   scca_fixed     SCCA (Li et al. 2023): chunks of chunk= (L/4) keys, in the first half of the
 *                  heads keys rolled right by half of it; mask=absolute|slot
 *   scca_flow      SCCA: head h sees chunk c - h div (heads / chunks), chunks=4, roll=right|left,
 *                  wrap=self|local; mask=absolute|slot
 *   sda            head h sees positions of residue h mod dilation (2), reading=residue|kv (others:
 *                  nothing, or those keys and themselves); reaches L
 *   long_mixed     heads= is a table of sdaD, rolled, local, shiftE and full with xN for N heads,
 *                  as in sda2x8.sda4x16.rolledx4.localx4, in this order
 *
 * RoPE scalings:
 *
 *   none           nothing: overrides the checkpoint's own rope_scaling
 *   pi(factor=)    position interpolation
 *   ntk(factor=)   NTK-aware base
 *   yarn(factor=, original=, beta_fast=32, beta_slow=1, attention_factor=, variant=hf|pose,
 *        truncate=1)
 *   llama3(factor=, low=1, high=4, original=)
 *   dynamic_ntk(factor=, length=, original=)
 *                  NTK-aware base for a text of length= tokens: plain RoPE up to original=, from
 *                  there on the factor is factor * length / original - (factor - 1); reaches
 *                  length=
 *   longrope(length=, original=, attention_factor=)
 *                  LongRoPE (Ding et al. 2024) with the checkpoint's own two lists of factors: the
 *                  short ones, which reach original=, if length= is within it, else the long ones
 *   freq_factors   frequencies divided by the checkpoint's own list of factors: how GGUF files
 *                  carry the scaling of Llama 3.1
 *   base(theta=)   another RoPE base; may be combined with one scaling
 *
 * factor= is at least 1 and must be given; original= defaults to the checkpoint's
 * original_max_position_embeddings, else the model's trained length, attention_factor= to 0.1
 * ln(factor) + 1 (longrope: both to the checkpoint's). A scaling reaches factor times the original
 * length, and never less than the trained one. length= defaults to the session's expected_tokens;
 * without either the two scalings that need it are refused, because frequencies never depend on
 * what has been fed. A checkpoint's own scaling is used unless the expression names one; it reaches
 * max_position_embeddings, also where the expression names the same one, and YaRN its original
 * length times its factor where that is more, as Qwen's files mean it.
 *
 * A model with a sliding window W of its own (Mistral, some Qwen) sees, under any visibility, only
 * keys less than W tokens back; distances then stay below W, so with W <= L there is no end to what
 * full can serve, though a token knows of earlier ones only through the layers. Keys behind the
 * window are dropped, the sinks of streaming_llm among them. Methods that are for far keys (dca,
 * dca_topk, longheads, long_mixed, rerope, scca_flow, sda, self_extend) are refused there.
 * ignore_window=1, which any visibility takes, does without the window. Where only some layers have
 * it (Qwen with max_window_layers or layer_types), these show all keys inside it at their true
 * distances, under the same scaling, and the visibility is that of the others: of any method but
 * beacon. Keys inside the window are kept for them. "dca(ignore_window=1)": all layers have dca.
 *
 * In layers without RoPE (SmolLM3) nothing is rotated: a strategy says there too who sees whom, and
 * its scale of the logits of late tokens (log_n=, logit_scale=) counts, but distances, scalings and
 * their attention factors mean nothing.
 *
 * Any visibility takes train_len= (the length that weights and scaling are good for; default: the
 * model's, or as far as a scaling that the expression names reaches) and kv_chunk= (tokens per
 * stored chunk, a multiple of 16 up to 65536; default: L/4 rounded down to one, at least 16 and at
 * most 256; of self_extend one that group= divides too, where that is small enough: with another
 * kv_chunk= a token takes several times as long). */

/* What a strategy must know of a model that is not at hand. `beacon` takes the settings of the
 * published plug-ins: window= and stride= of 1024, or L if that is less; step_expansion; ratios of
 * 0 and 2 to 128, the one that fits expected_tokens + 1024. A checkpoint's own may differ:
 * quire_model_describe_strategy writes them out. */
typedef struct quire_strategy_options {
  uint32_t struct_size;
  uint32_t flags;       /* 0 */
  const char* strategy; /* a strategy expression; NULL: "full" */
  size_t strategy_len;
  int64_t train_len; /* L, 1 to 2^40; there is no default */
  /* length of the text, for auto, beacon, dynamic_ntk, longrope; 0: unknown */
  int64_t expected_tokens;
  /* query heads; they matter where heads differ: s2, scca_fixed, scca_flow, sda, long_mixed; 0:
   * 32; at most 65536 */
  int32_t n_heads;
  int32_t reserved; /* 0 */
} quire_strategy_options;

/* [any-thread] since 0.1 */
QUIRE_API void quire_strategy_options_init(quire_strategy_options* options, size_t size);

/* The expression in canonical form with every default written out. auto: what it chooses for a
 * Llama model. quire_model_describe_strategy asks for a model at hand. Errors: INVALID_ARGUMENT,
 * BAD_STRATEGY, UNSUPPORTED, BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_strategy_describe(const quire_strategy_options* options, char* buf,
                                               size_t cap, size_t* needed, quire_error* err);

/* What an expression may be made of, as JSON, for settings dialogs and completion. options:
 * train_len, n_heads and expected_tokens count, since ranges and defaults depend on them; strategy
 * must be NULL.
 *
 *   {"train_len": L, "terms": [term, ...]}
 *   term      {"name", "kind": "visibility" | "rope_scaling" | "base", "description",
 *             "arguments": [argument, ...]}, and "obstacle" (text) where the term cannot be used
 *             with such a train_len or n_heads; its arguments are then not listed
 *   argument  {"name", "type": "integer" | "number" | "choice" | "word", "required",
 *             "description"}, with "min" and "max" of numbers, "step" (of integers that must be a
 *             multiple of it), "choices" (of texts), "default" (absent where there is none, or
 *             where it follows from the session), and "with" (other arguments that it goes with,
 *             such as "preset=vllm")
 *
 * Ranges and defaults are those beside the defaults of the other arguments, and beside the least
 * value of required ones; quire_strategy_describe has the last word. Keys are only ever added.
 * Errors: INVALID_ARGUMENT, BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_strategy_get_list(const quire_strategy_options* options, char* buf,
                                               size_t cap, size_t* needed, quire_error* err);

/* ---- Session --------------------------------------------------------------------------------- */

/* What happens when prompt + max_tokens exceed the strategy's reach. No policy drops text. */
#define QUIRE_OVERFLOW_DEFAULT 0 /* error */
/* opening the stream fails with OVERFLOW; nothing is computed */
#define QUIRE_OVERFLOW_ERROR 1
/* compute up to the reach, then an end event (QUIRE_FINISH_REACH) */
#define QUIRE_OVERFLOW_STOP 2
#define QUIRE_OVERFLOW_EXTRAPOLATE 3 /* go on with positions the model has never seen */

/* Tiers: the kinds of memory that chunks of keys and values lie in, from the fastest to the
 * slowest. Where a tier's budget is reached, the chunks used least recently go to the next one
 * there is, and come back when they are needed; no token changes. A model on a CPU computes on
 * chunks in HOST; one on a device of its own on chunks in DEVICE, and has HOST without being asked:
 * pinned memory, which is taken when chunks leave the device. Where HOST's budget is reached and
 * there is no tier below, what is on the device stays there, and BUDGET is returned where that is
 * full. A tier that comes later has a higher number, and a budget at the end of the options
 * structs. */
#define QUIRE_TIER_DEVICE 1 /* a device's own memory */
#define QUIRE_TIER_HOST 2   /* the machine's memory */
/* The machine's memory, compressed, without loss: chunks take about 0.65 of their bytes in BF16,
 * 0.8 in F16 and F32. Before a file, chunks that hardly compress go to the file at once. It is
 * worth having where memory is short and the file's disk is slow: see tests/bench/README.md. */
#define QUIRE_TIER_COMPRESSED 3
#define QUIRE_TIER_FILE 4     /* a temporary file of the session's */
#define QUIRE_TIER_SNAPSHOT 5 /* the file that the session was loaded from; never written to */

/* An adapter of a session. This struct has its final size. */
typedef struct quire_session_adapter {
  quire_adapter* adapter; /* of the session's model; the session keeps it */
  /* times the adapter's own, 1 as it was trained; finite and not 0 (leave it out instead) */
  double scale;
} quire_session_adapter;

/* Prefix reuse: where the text of a session begins as that of another one of the runtime with the
 * same fingerprint (quire_session_get_fingerprint), a stream does not compute again what that one
 * has computed. It takes over whole chunks (of kv_chunk tokens), as far as that one holds them
 * still, and shares them as forks do. Tokens and logits are the same, to the bit. At least the last
 * token is always computed. A session that was loaded from a snapshot shares its chunks too: others
 * then read that file (or reader) when they need them, keep it open, and have its errors. What no
 * session holds any more is kept as far as quire_runtime_options.prefix_cache_bytes says, but for
 * chunks that only a snapshot has.
 * No part take: beacon; streams with QUIRE_STREAM_SCORE, QUIRE_STREAM_KEEP_LOGITS or
 * QUIRE_STREAM_KEEP_HIDDEN, which need each token computed; tokens behind the first gap of
 * positions; sessions that quire_session_fill_random filled; with longheads and dca_topk, sessions
 * of another model handle. A session with a tier that chunks can move to (COMPRESSED, FILE) copies
 * there what it takes over from one without, whose chunks cannot leave memory. */

/* The session takes nothing over from others, and gives them nothing: for users who must not learn,
 * by quire_event.reused or by the time it takes, whether another one has read the same text, and
 * for snapshots whose makers are not trusted. */
#define QUIRE_SESSION_NO_PREFIX_REUSE 1u
/* Layers with a sliding window of their own drop nothing that the others keep; see "Dropped keys".
 */
#define QUIRE_SESSION_KEEP_BEHIND_WINDOWS 2u

/* Dropped keys: where tokens to come do not see the keys of a part of the text, keys and values of
 * that part are dropped, and the budgets hold a text many times longer: with methods that see the
 * last tokens, or these and few others (streaming_llm, lm_infinite, beacon, s2, scca_fixed,
 * scca_flow, dca(parts=intra)), with any method in a model whose layers all have a sliding window
 * (Mistral 7B v0.1, Phi-3 mini), and where some layers have one (Gemma 3, five of six; see the
 * property "sliding_window_layers"), in these. The text can then be cut (quire_session_truncate),
 * edited, and taken over by other sessions, up to four chunks (of kv_chunk tokens) before its end
 * (after a cut: before the end that it had), and at up to four places more: the last ones where
 * something was fed or generated, and up to a chunk before these. What is seen there is kept for
 * that, and given up where a budget has no room for what the session must hold (another session's
 * demand does not count). Elsewhere a cut goes back to the last such place and reads from there
 * again, at worst from the beginning; an edit with QUIRE_EDIT_APPROXIMATE moves no chunk whose keys
 * were dropped. Where some layers have a window, QUIRE_SESSION_KEEP_BEHIND_WINDOWS has them keep
 * what the others keep; tokens are the same with and without it, and kv_old_type changes nothing in
 * these layers. */

/* Old text in a narrower type: with kv_old_type a token reads keys and values of chunks (of
 * kv_chunk tokens) that end at least old_after tokens before its own chunk in that type, and nearer
 * ones in kv_type. The distance alone decides, within a block of fed text too: never a budget, or
 * where a chunk lies. So tokens are those of any other session with the same options. A chunk that
 * became old is kept in kv_type too, until four chunks more have become old after it: so far a
 * text can be cut (quire_session_truncate), and sessions can share its beginning, without reading
 * it again. Condensed entries (beacon) and what chunks are selected by (longheads,
 * dca_topk) do not change. */
#define QUIRE_OLD_AT_ONCE (-1) /* old_after: no distance: all chunks before the token's own */

typedef struct quire_session_options {
  uint32_t struct_size;
  uint32_t flags;       /* QUIRE_SESSION_* */
  const char* strategy; /* a strategy expression, which is not empty; NULL: "full" */
  size_t strategy_len;
  int32_t kv_type;  /* QUIRE_TYPE_*: keys and values are stored so; default: F16 */
  int32_t overflow; /* QUIRE_OVERFLOW_* */
  /* length the session will reach, for auto, beacon, dynamic_ntk, longrope; 0: unknown */
  int64_t expected_tokens;
  /* tokens per forward pass while processing fed text; 0: 256, or 1024 on a GPU; at most 65536 */
  int32_t prefill_block;
  int32_t reserved; /* 0 */
  /* Most bytes of the KV cache in each tier (see "Tiers"), never exceeded. */
  /* 0: what the device has, but for a 32nd, which is left for working memory. A model on a CPU
   * holds nothing there and keeps any budget, so both can be set where the device is "auto". */
  int64_t kv_device_budget_bytes;
  int64_t kv_host_budget_bytes; /* 0: no limit */
  /* 0: no such tier. Its working memory of some 100 KB to some MB, by the size of a chunk, is part
   * of it. Before a file every chunk has its place there too. Without a file the budget is a hard
   * end, in which a chunk counts in full until it was compressed. */
  int64_t kv_compressed_budget_bytes;
  int64_t kv_file_budget_bytes; /* 0: no limit but the disk's, or no kv_file_directory */
  /* where the file tier has its unnamed temporary file (mode 0600); NULL or empty: no file tier,
   * and the budgets of the others are a hard end */
  const char* kv_file_directory;
  size_t kv_file_directory_len;
  const quire_session_adapter* adapters;
  size_t n_adapters;   /* at most 64; at most one of them may replace a given tensor */
  int32_t kv_old_type; /* QUIRE_TYPE_INT8, _INT4; 0: old text is read in kv_type like all other */
  int32_t reserved_2;  /* 0 */
  /* tokens, at most 2^40; 0: 4096; QUIRE_OLD_AT_ONCE; without a kv_old_type: 0 */
  int64_t old_after;
} quire_session_options;

/* [any-thread] since 0.1 */
QUIRE_API void quire_session_options_init(quire_session_options* options, size_t size);

/* The canonical strategy that a session with these options would have, without creating it: what
 * `auto` would choose, and whether the strategy works with this model. Errors: those of
 * quire_session_create, and BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_model_describe_strategy(const quire_model* model,
                                                     const quire_session_options* options,
                                                     char* buf, size_t cap, size_t* needed,
                                                     quire_error* err);

/* An empty session. Errors: INVALID_ARGUMENT (also: the RoPE scaling of the checkpoint needs
 * expected_tokens; an adapter of another model, or two that replace the same tensor), BAD_STRATEGY,
 * UNSUPPORTED, BUDGET (`auto` finds nothing that fits the KV cache's budgets;
 * kv_compressed_budget_bytes is less than the tier takes for itself and one chunk), NOT_FOUND and
 * IO (kv_file_directory), OUT_OF_MEMORY, CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_create(quire_model* model,
                                            const quire_session_options* options,
                                            quire_session** out, quire_error* err);
/* Would such a session work? OK, or the error that says why not: what quire_session_create would
 * refuse (the strategy does not fit the model's architecture, the KV type or the device), and
 * OVERFLOW where expected_tokens exceed the strategy's reach and the policy is to fail. Makes
 * nothing. Errors: INVALID_ARGUMENT, BAD_STRATEGY, UNSUPPORTED, BUDGET, OVERFLOW, CLOSED.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_model_check_session(const quire_model* model,
                                                 const quire_session_options* options,
                                                 quire_error* err);
/* The same two for a model directory whose weights are not loaded: only its config.json is read,
 * and that of the plug-in if the options name one. Adapters cannot be given: they belong to a
 * loaded model. Errors: those, NOT_FOUND, IO and BAD_FILE. [any-thread] since 0.1 */
QUIRE_API quire_status quire_runtime_check_session(const quire_runtime* runtime, const char* path,
                                                   size_t path_len,
                                                   const quire_model_options* model,
                                                   const quire_session_options* session,
                                                   quire_error* err);
/* [any-thread] since 0.1 */
QUIRE_API quire_status quire_runtime_describe_strategy(const quire_runtime* runtime,
                                                       const char* path, size_t path_len,
                                                       const quire_model_options* model,
                                                       const quire_session_options* session,
                                                       char* buf, size_t cap, size_t* needed,
                                                       quire_error* err);
/* [any-thread] since 0.1 */
QUIRE_API void quire_session_retain(quire_session* session);
/* The last release frees the session on the runtime's threads; a stream on it keeps it alive.
 * [any-thread] since 0.1 */
QUIRE_API void quire_session_release(quire_session* session);
/* Cancels an open stream and calls that run (see quire_runtime_close), waits until no thread works
 * on the session, and frees its memory. Calls on it and on its stream return CLOSED as soon as a
 * close has begun. A second close waits for the first and is OK. Never from a callback.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_close(quire_session* session, quire_error* err);

/* Queues one segment of text and returns; nothing is computed until a stream is opened. Each call
 * is its own segment: tokens never span two calls, and a code point may not be split between two
 * calls (INVALID_TEXT). Only the session's first segment gets a beginning-of-sequence token and a
 * dummy prefix (see quire_tokenizer_encode). flags: QUIRE_TEXT_PARSE_SPECIAL, QUIRE_TEXT_NO_BOS.
 * Errors: INVALID_TEXT, INVALID_ARGUMENT, UNSUPPORTED (as of quire_tokenizer_encode), BUSY, CLOSED,
 * OUT_OF_MEMORY. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_feed_text(quire_session* session, const char* text,
                                               size_t text_len, uint32_t flags, quire_error* err);
/* A part of a fed text that the caller has a name for, such as a page: bytes [begin, end) of the
 * text of that call. This struct has its final size. */
typedef struct quire_label {
  int64_t begin;
  int64_t end;
  /* the caller's: any number, several labels may share one, and labels may overlap */
  int64_t id;
} quire_label;

/* The same with labels, which quire_session_get_label_attention, quire_session_get_passages and
 * quire_session_get_label_shares return. labels: at most 2^20 a
 * call.
 * Errors: those, and INVALID_ARGUMENT for a label outside the text (offset: its index).
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_feed_labelled(quire_session* session, const char* text,
                                                   size_t text_len, uint32_t flags,
                                                   const quire_label* labels, size_t n_labels,
                                                   quire_error* err);
/* Queues token ids as they are (no token is added). How ids are split into calls changes no result,
 * but for where passages (quire_passage) begin and end. Errors: INVALID_TOKEN (nothing is queued),
 * BUSY, CLOSED, OUT_OF_MEMORY.
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_feed_tokens(quire_session* session, const int32_t* ids,
                                                 size_t n_ids, quire_error* err);
/* The same at positions of their own, int64[n_ids], strictly increasing and less than 2^40
 * (position_ids; a PoSE model's training sequence, Zhu et al. 2023, section 3.2): keys and queries
 * are rotated to them, and indexes go on to say who sees whom. positions[0] must be greater than
 * the position of the token before; a text's positions are 0, 1, 2 ... where none are given. Tokens
 * fed or generated afterwards follow on by 1. A text has at most 1024 gaps. The strategy's reach is
 * a limit for positions; with a gap, it has one on a model with a sliding window too.
 * Errors: those of quire_session_feed_tokens; INVALID_ARGUMENT (offset: the index of a position
 * that does not increase, or comes after one gap too many); UNSUPPORTED for strategies other than
 * `full`, which set distances of their own. Nothing is queued on failure.
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_feed_positions(quire_session* session, const int32_t* ids,
                                                    const int64_t* positions, size_t n_ids,
                                                    quire_error* err);
/* Forgets what was fed and not yet processed. Errors: BUSY, CLOSED.
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_discard_pending(quire_session* session, quire_error* err);
/* Forgets everything; the session is as new. Errors: BUSY, CLOSED.
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_reset(quire_session* session, quire_error* err);
/* Forgets the tokens from the n_tokens-th of the text on, which counts read tokens and the pending
 * ones behind them (both counts of quire_session_get_token_counts together); what follows comes out
 * as if they had never been fed. Read tokens that are kept may have to be processed again by the
 * next stream, which reports them as prefill: the last one, with longheads up to one chunk, and
 * where keys were dropped that the kept text needs those behind the last place that was kept (see
 * "Dropped keys"), or, with a kv_old_type, after cutting more than four chunks, all of them (with
 * QUIRE_OLD_AT_ONCE then up to one chunk).
 * Errors:
 * INVALID_ARGUMENT (more tokens than there are), BUSY, CLOSED. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_truncate(quire_session* session, int64_t n_tokens,
                                              quire_error* err);
/* What an edit takes over of the text before it. */
#define QUIRE_EDIT_EXACT 0 /* what comes before the first token that differs */
#define QUIRE_EDIT_APPROXIMATE 1

/* Editing: the session's text becomes another one, of which much may be the same, such as a log
 * that grew at its front, or a book with a new chapter. What was computed of the tokens before the
 * first one that differs is kept, as by quire_session_truncate, and the others are queued. Tokens
 * and logits are then those of a session that was fed the new text at once, to the bit.
 *
 * With QUIRE_EDIT_APPROXIMATE later chunks (of kv_chunk tokens) are taken over as well where the
 * same tokens stand in both texts, at any distance, in any order, each old token once: runs of at
 * least a chunk of equal tokens are found in a time of n log n. Streams take them over instead of
 * computing them, save for the tokens of a run up to its first whole chunk, the rest behind its
 * last one, and the text's last token. Their keys are turned to their new places, but keys and
 * values keep what they saw of the text that stood before them then. So what they say of a changed
 * part is out of date: a question about the changed part itself is answered from its own tokens,
 * which are always computed; what refers to it from later on was read with the old text. README.md
 * says what this cost in quality, and how many tokens it saved, on two models; the tables are in
 * tests/quality/edit.md. With a kv_old_type, a chunk that is still kept in kv_type moves so, and
 * others move in the narrower type. Where a token at their new place reads those in kv_type, or
 * their keys are turned, numbers of the narrower type are taken for numbers of kv_type.
 *
 * From its first such chunk on a text is approximate, and so is all that is computed behind it:
 * other sessions never take it over (see "Prefix reuse"), a store of documents has only what comes
 * before, and a snapshot says it ("n_approximate"). Cutting the text before that chunk
 * (quire_session_truncate), or an edit with QUIRE_EDIT_EXACT, makes it exact again. What is still
 * to be taken over is kept by the session, in its budgets, and by its forks; where a budget has no
 * room for it, or a stream needs each token computed, it is computed (quire_event.reuse_miss says
 * why). A snapshot does not have it: after loading it is computed. Another edit with
 * QUIRE_EDIT_APPROXIMATE that leaves all computed tokens as they are keeps it as far as both texts
 * are the same; other edits forget it. */
typedef struct quire_edit_options {
  uint32_t struct_size;
  uint32_t flags;   /* of a text: QUIRE_TEXT_PARSE_SPECIAL, QUIRE_TEXT_NO_BOS; of tokens: 0 */
  int32_t reuse;    /* QUIRE_EDIT_* */
  int32_t reserved; /* 0 */
  /* APPROXIMATE: of each run that is taken over so many tokens are computed first, before its first
   * whole chunk; 0 to 2^31 - 1. 0 is as good as a chunk on what was measured */
  int64_t reread_tokens;
  const quire_label* labels; /* of a text: as of quire_session_feed_labelled; NULL: none */
  size_t n_labels;
} quire_edit_options;

typedef struct quire_edit_result {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  /* of the new text, pending ones included; those that are neither kept nor moved will be
   * computed */
  int64_t n_tokens;
  int64_t n_kept;  /* the first so many stay computed */
  int64_t n_moved; /* so many will be taken over from elsewhere in the text before */
} quire_edit_result;

/* [any-thread] since 0.1 */
QUIRE_API void quire_edit_options_init(quire_edit_options* options, size_t size);
/* [any-thread] since 0.1 */
QUIRE_API void quire_edit_result_init(quire_edit_result* result, size_t size);

/* The session's text becomes `text`, the whole of it, as if it had been fed at once to an empty
 * session: labels are those of the options, passages count the bytes of this text, and no token
 * counts as generated. Where the old text was fed in several calls, it can differ in the tokens at
 * their seams. Nothing is computed until a stream is opened. options: NULL for none; result: may be
 * NULL.
 * Errors: those of quire_session_feed_labelled, and UNSUPPORTED: the session holds a conversation
 * (quire_session_feed_messages), or, with APPROXIMATE, a strategy whose chunks mean nothing
 * elsewhere: beacon, and longheads, which represents chunks by their queries. The session is as it
 * was then. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_edit_text(quire_session* session, const char* text,
                                               size_t text_len, const quire_edit_options* options,
                                               quire_edit_result* result, quire_error* err);
/* The same with token ids as they are. Errors: those of quire_session_feed_tokens, and UNSUPPORTED
 * as above; INVALID_ARGUMENT (labels or flags). [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_edit_tokens(quire_session* session, const int32_t* ids,
                                                 size_t n_ids, const quire_edit_options* options,
                                                 quire_edit_result* result, quire_error* err);
/* Number of tokens the session has read (processed prompt and delivered tokens), and of fed tokens
 * that wait. Either pointer may be NULL. Errors: CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_get_token_counts(const quire_session* session,
                                                      int64_t* n_tokens, int64_t* n_pending,
                                                      quire_error* err);

/* The ids of all tokens of the text, pending ones last: as many as both counts say together.
 * Errors: BUFFER_TOO_SMALL, BUSY, CLOSED. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_get_tokens(const quire_session* session, int32_t* ids,
                                                size_t cap, size_t* needed, quire_error* err);

/* Raw logits (before sampling) that the last stream computed: after the last token it processed,
 * and after all of them if it was opened with QUIRE_STREAM_KEEP_LOGITS; a truncate that forgets
 * processed tokens drops them, and so does reset. They are n_rows rows of vocab_size floats, the
 * first one computed after token first_token (counted from the beginning of the text); -1: the
 * last processed token.
 * Errors: NOT_FOUND (not kept), BUFFER_TOO_SMALL, BUSY, CLOSED. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_get_logits(const quire_session* session, int64_t first_token,
                                                int64_t n_rows, float* logits, size_t cap,
                                                size_t* needed, quire_error* err);
/* log p(token | all before it), natural logarithm, for n tokens from first_token on (counted from
 * the beginning of the text), of those processed by the last stream if that was opened with
 * QUIRE_STREAM_SCORE. NaN where the logits before a token are not known: for the first one of the
 * session, and the first one read again after truncate.
 * Errors: NOT_FOUND (not scored), BUFFER_TOO_SMALL, BUSY, CLOSED.
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_get_scores(const quire_session* session, int64_t first_token,
                                                int64_t n, float* scores, size_t cap,
                                                size_t* needed, quire_error* err);

/* Embeddings: last hidden states of tokens that the last stream processed, if it was opened with
 * QUIRE_STREAM_KEEP_HIDDEN: the last layer's output after the final norm, of which lm_head makes
 * the logits; dropped as these are. They are n_rows rows of hidden_size floats, the first one of
 * token first_token.
 * Errors: NOT_FOUND (not kept), BUFFER_TOO_SMALL, BUSY, CLOSED. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_get_hidden_states(const quire_session* session,
                                                       int64_t first_token, int64_t n_rows,
                                                       float* states, size_t cap, size_t* needed,
                                                       quire_error* err);

/* Where the last stream's answer looked. This struct has its final size. */
typedef struct quire_label_attention {
  int64_t id; /* of the label */
  int64_t first_token;
  int64_t n_tokens; /* that begin in the labelled part */
  /* of all chunks that heads chose: how much of them lay in this part;
   * quire_session_get_label_shares: of the attention */
  double share;
} quire_label_attention;

/* For each label, in the order fed: how the choices of chunks that the prompt's last token and the
 * generated tokens made (over all layers and heads, beyond the chunks that a strategy makes them
 * see) fell on it. Errors: UNSUPPORTED (a strategy that chooses
 * no chunks: longheads and dca_topk do), BUFFER_TOO_SMALL, BUSY, CLOSED.
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_get_label_attention(const quire_session* session,
                                                         quire_label_attention* labels, size_t cap,
                                                         size_t* needed, quire_error* err);

/* Provenance: which passages of what was fed an answer looked at, of a stream that was opened with
 * QUIRE_STREAM_CITE. The rule: a token of the answer was chosen by what the token before it saw.
 * The text is divided into cells of 16 tokens (token / 16). The peak of a cell is the greatest
 * share of that token's attention that a query head of any layer gave it: of the softmax over all
 * keys that the head sees under the strategy (what was dropped or not chosen has none). The square
 * of the peak is the cell's weight. The weights in relation to their sum over all that may be cited
 * are the shares of that answer's token, between 0 and 1, and the mean over the tokens asked for is
 * what is returned. A part of a cell has the cell's share in proportion.
 * May be cited: the tokens that were fed, from the fifth on (the first four are attention sinks) up
 * to quire_stream_options.cite_end; not what the model generated. beacon: an entry's peak counts
 * for the tokens that it stands for, divided evenly. dca_topk with sticky chunks: at the answer's
 * first token a cell has no share if it has keys behind cite_end. Where only some layers have a
 * sliding window these do not count, for they cannot but look at what is near.
 * What is looked at is not always what the answer is made of: shares are a hint, no proof. */

/* Up to 64 consecutive tokens of one feed, from its beginning or from a multiple of 16 on. This
 * struct has its final size. */
typedef struct quire_passage {
  int64_t first_token; /* counted from the beginning of the session's text */
  int64_t n_tokens;
  /* which call fed it, from 0 on: calls that fed any tokens, as far as they were not truncated */
  int64_t feed;
  /* its bytes [begin, end), at code points, in the text of that call. Fed as ids or as messages: in
   * the text that their tokens stand for, control tokens left out */
  int64_t begin;
  int64_t end;
  /* the label that has most of its tokens (of equal ones the shortest): its index in the order fed,
   * -1: none; and its id, else 0 */
  int64_t label;
  int64_t label_id;
  double share;
} quire_passage;

/* The passages that tokens [first_token, first_token + n_tokens) of the last stream's answer looked
 * at most, the greatest share first, at most max_passages (1 to 1024), which do not overlap. They
 * are what a greedy choice among all possible ones finds; what has no share is none. first_token
 * counts from the beginning of the session's text; -1 with n_tokens = 0: all of the answer. A token
 * whose logits were there when the stream was opened (nothing was pending) is not known, and no
 * part of all of the answer. Lives as long as what the stream kept: truncate, reset, the next
 * stream and a fork do without it. Errors: NOT_FOUND (not known, or no token of the answer),
 * INVALID_ARGUMENT, BUFFER_TOO_SMALL, BUSY, CLOSED. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_get_passages(const quire_session* session, int64_t first_token,
                                                  int64_t n_tokens, int32_t max_passages,
                                                  quire_passage* passages, size_t cap,
                                                  size_t* needed, quire_error* err);
/* The same shares by label, for each label in the order fed. Their sum is 1 where labels cover all
 * that may be cited, once. Errors: those. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_get_label_shares(const quire_session* session,
                                                      int64_t first_token, int64_t n_tokens,
                                                      quire_label_attention* labels, size_t cap,
                                                      size_t* needed, quire_error* err);

typedef struct quire_session_stats {
  uint32_t struct_size;
  uint32_t flags;   /* 0 */
  int64_t n_tokens; /* as quire_session_get_token_counts: without pending ones */
  int64_t n_pending;
  int64_t n_prefilled; /* tokens computed as prompt since creation */
  int64_t n_generated; /* tokens delivered since creation */
  int64_t prefill_ns;  /* time inside prefill and decode steps */
  int64_t decode_ns;
  int64_t kv_chunks; /* chunk records now held, over all layers, whatever tier they lie in */
  /* records dropped since creation (see "Dropped keys"); of a fork those of its past, too */
  int64_t kv_chunks_dropped;
  /* activations, shared by the sessions of a model, and RoPE tables, shared by those of the same
   * frequencies and kv_chunk */
  int64_t scratch_bytes;
  int64_t reach; /* tokens the strategy can serve; INT64_MAX: no limit */
  /* tokens of prompts that were taken over from other sessions since creation (prefix reuse) */
  int64_t n_reused;
  /* and from elsewhere in a text before an edit (QUIRE_EDIT_APPROXIMATE) */
  int64_t n_moved;
  /* bytes of the kv_chunks: those in kv_type, and those in kv_old_type */
  int64_t kv_full_bytes;
  int64_t kv_old_bytes;
  /* tokens drafted by prompt lookup since creation, and those that the model generated as well */
  int64_t n_drafted;
  int64_t n_accepted;
} quire_session_stats;

/* Consistent at a token boundary. Errors: CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_get_stats(const quire_session* session,
                                               quire_session_stats* stats, quire_error* err);
/* What one tier of a session's KV cache holds, and what went through it since creation. */
typedef struct quire_tier_stats {
  uint32_t struct_size;
  uint32_t flags;       /* 0 */
  int32_t tier;         /* QUIRE_TIER_* */
  int32_t reserved;     /* 0 */
  int64_t budget_bytes; /* of the session; 0: no limit, or no such tier */
  /* held now; the first tier (DEVICE on a GPU, else HOST): what strategies keep for choosing chunks
   * included; HOST below it: in slabs, with what is unused of them; COMPRESSED without a file:
   * what is promised to chunks that were not compressed yet included */
  int64_t bytes;
  int64_t bytes_peak;
  /* chunk records in it; COMPRESSED, and FILE behind it: that were written to it, also those that
   * are in HOST again */
  int64_t n_chunks;
  /* The first tier, where there is another one: records that computing asked for and that were
   * there, or were not (new ones and those on their way included), and records that left it. Where
   * all are there and an eighth of the budgets is free, each step asks for all of them.
   * Others: n_hits are records read from it, ahead of need too. COMPRESSED: n_misses were read from
   * the file, n_evicted went on to it. HOST below DEVICE: the same of the tiers below it. What
   * these two, and FILE behind them, count is of all forks together. */
  int64_t n_hits;
  int64_t n_misses;
  int64_t n_evicted;
  /* not the first tier: from it, and to it; COMPRESSED: of the uncompressed chunks */
  int64_t bytes_read;
  int64_t bytes_written;
  /* the first tier: time in which computing waited for records to come or leave */
  int64_t stall_ns;
} quire_tier_stats;

/* Fills *stats (struct_size set by the caller) for one tier; zeros for a tier that the session does
 * not have. Consistent at a token boundary. Errors: INVALID_ARGUMENT (no QUIRE_TIER_*), CLOSED.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_get_tier_stats(const quire_session* session, int32_t tier,
                                                    quire_tier_stats* stats, quire_error* err);
/* The session's strategy in canonical form (quire_strategy_describe); for auto, the chosen one.
 * Errors: BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_get_strategy(const quire_session* session, char* buf,
                                                  size_t cap, size_t* needed, quire_error* err);

/* 128 bits, as 32 hexadecimal digits, that name all that keys and values depend on beside the
 * tokens: the model (its config.json, and names, types, shapes and whole content of its tensors,
 * hashed while they are loaded), the types its matrices are kept in and activations are rounded to,
 * the adapters merged into it and those of the session with their scales, in order, the canonical
 * strategy, the KV type, and, where there is one, that of old text with old_after.
 * Sessions with the same fingerprint that read the same tokens, at the same positions and with the
 * same of them generated, hold the same keys and values. No protection against forgery. Errors:
 * BUFFER_TOO_SMALL, CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_get_fingerprint(const quire_session* session, char* buf,
                                                     size_t cap, size_t* needed, quire_error* err);

/* ---- Forks and snapshots --------------------------------------------------------------------- */

/* Another session that stands where this one does, with the same options: the way to ask a document
 * several questions, one after the other or at once. Both go on by themselves, and their tokens
 * come out as those of one session would. Keys and values that both hold are shared, wherever they
 * are: a fork costs the list of chunks, each copies the chunk in progress when it goes on, and what
 * one brings into memory the other finds there. Shared chunks count once in the runtime's budgets.
 * In the sessions' own, chunks that can leave memory count for the session that brought them there,
 * and others for each session; COMPRESSED and FILE are shared, with their budgets. What the last
 * stream kept is not part of a fork, save the last logits. Errors: OUT_OF_MEMORY, BUSY, CLOSED.
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_fork(quire_session* session, quire_session** out,
                                          quire_error* err);

/* A session can be written to a file, and go on from there later, in another process or on another
 * machine: its tokens, which of them the model generated, pending ones, positions, labels, messages
 * and the keys and values of all that was processed. Sampling belongs to streams and has no state
 * to keep: the n-th token of the session draws from (seed, n), and penalties look at its tokens, so
 * that a stream with the same options goes on as it would have without the snapshot. The text of a
 * stream is its own, too: where it ends inside a character, that stream ends with U+FFFD and the
 * next one begins with U+FFFD, saved or not; all tokens decoded together have the character.
 * The layout is documented in lib/kv/FORMAT.md. The same bytes can be kept elsewhere, in a database
 * or an archive: quire_snapshot_writer and quire_snapshot_reader. */

/* Saving writes the whole session, wherever its past is. */
#define QUIRE_SNAPSHOT_WHOLE 1u

typedef struct quire_snapshot_options {
  uint32_t struct_size;
  uint32_t flags;                   /* QUIRE_SNAPSHOT_*, for saving alone */
  quire_cancel* cancel;             /* may be NULL; kept during the call */
  quire_progress_callback progress; /* may be NULL; bytes, on the calling thread */
  void* progress_user_data;
} quire_snapshot_options;

/* [any-thread] since 0.1 */
QUIRE_API void quire_snapshot_options_init(quire_snapshot_options* options, size_t size);

/* Writes the session to the file `path`: whoever opens it sees the snapshot that was there before
 * or the whole new one, after a crash too. The session is as it was. Waits until done, while other
 * sessions go on. options: NULL for none.
 *
 * Where the file holds the snapshot that the session, or the one that it was forked from, was
 * loaded from or last saved to, only what is new or changed since then is written behind it, with
 * the ids of all tokens and a list of all chunks: keys and values of the text before are neither
 * written nor read. A session that has the file open goes on reading from it what it read before.
 * What the new snapshot does not need of those before stays in the file as unused bytes
 * (quire_snapshot_describe counts them).
 *
 * Otherwise all of the session is written to a new file, which takes the place of the old one; a
 * session that has that open keeps it. So it is too if the unused bytes would be more than the
 * session's keys and values, if nothing of these is in the file, if the file has another name (a
 * hard link), cannot be locked (flock) or written, or was replaced meanwhile, and with
 * QUIRE_SNAPSHOT_WHOLE. Only then is the damage seen that chunks may have in the file of a session
 * that was loaded from there. Several may save to one file at once: the last snapshot remains.
 *
 * Errors: INVALID_ARGUMENT, NOT_FOUND (the directory), IO (a full disk), BAD_FILE (damage in the
 * snapshot that this session was loaded from), UNSUPPORTED (messages fed more than 200,000 times),
 * OUT_OF_MEMORY, CANCELLED, BUSY, CLOSED. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_save(quire_session* session, const char* path, size_t path_len,
                                          const quire_snapshot_options* options, quire_error* err);
/* A session that goes on where a saved one stood. Its tokens come out as they would have from that
 * one. Only the index is read now, and the chunks that are written next; others are read when they
 * are needed, checked against their checksums, and leave memory again without being written: the
 * file must stay as it is while the session lives (it may be saved to, renamed or removed). Chunks
 * that other sessions of the runtime hold of the same text are shared with them instead, unless
 * QUIRE_SESSION_NO_PREFIX_REUSE is set: sessions that are loaded from one document keep one copy of
 * it in memory. Where a crash cut a save short, the snapshot before it is loaded. truncate to a
 * place inside a chunk that only the file holds makes the next stream read that chunk's tokens.
 * options: as of quire_session_create, NULL for none; a strategy of NULL, and a kv_type,
 * kv_old_type (with old_after), overflow and expected_tokens of 0 are those of the saved session.
 * Strategy, kv_type, kv_old_type, old_after and adapters must be those of the saved session, and
 * the model the same; what differs is named by the error.
 * Errors: NOT_FOUND, IO, BAD_FILE (no snapshot, a damaged one, or one of a version that this
 * library does not know), INVALID_ARGUMENT (another model, strategy, kv_type, kv_old_type,
 * old_after or list of adapters),
 * UNSUPPORTED (messages of an unknown chat template), BUDGET, and those of quire_session_create.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_load(quire_model* model, const char* path, size_t path_len,
                                          const quire_session_options* options, quire_session** out,
                                          quire_error* err);

/* Callbacks that a snapshot goes to and comes from. They may take as long as a file may; other
 * sessions may have to wait meanwhile. They must not call back into Quire, but for the release
 * functions and quire_cancel_trigger, nor wait for a thread that does, and must not throw or
 * longjmp. One that fails may say why: os_error and message of *err, which is all zero before,
 * become part of the error IO that the call or the stream ends with (whatever err->code). Numbers
 * of bytes that make no sense are the same error. */

/* [callback-only] Appends the n > 0 bytes to what was written before. On the thread of the call
 * that was given it, before that returns. Returns how many of the bytes it took, from the first on,
 * 1 to n; it is called again for the others. A negative number: it failed. */
typedef int64_t (*quire_write_callback)(void* user_data, const void* bytes, size_t n,
                                        quire_error* err);
/* [callback-only] Once, behind the last byte; likewise. 0: the snapshot is kept. A negative number:
 * it failed. Others are reserved. */
typedef int32_t (*quire_commit_callback)(void* user_data, quire_error* err);
/* [callback-only] Writes bytes of the snapshot from `offset` on into `buffer`, which has room for
 * n > 0; offset + n is at most n_bytes. Returns how many, 1 to n; it is called again for the
 * others. 0 is an end before n_bytes, an error; a negative number: it failed. */
typedef int64_t (*quire_read_callback)(void* user_data, int64_t offset, void* buffer, size_t n,
                                       quire_error* err);

/* Where a snapshot goes to, from its first byte to its last. */
typedef struct quire_snapshot_writer {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  quire_write_callback write;
  quire_commit_callback commit; /* may be NULL */
  /* May be NULL. If the call fails after it called write or commit: once, as its last callback.
   * What was written is of no use. */
  quire_destroy_callback abort;
  void* user_data;  /* borrowed during the call, as the struct is */
  const char* name; /* UTF-8: what messages call it; NULL: "the snapshot" */
  size_t name_len;
} quire_snapshot_writer;

/* Where a snapshot comes from: n_bytes bytes that can be read in any order, and do not change. */
typedef struct quire_snapshot_reader {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  int64_t n_bytes;
  /* A session that was loaded reads its keys and values when they are needed, as long as it, a fork
   * of it, or a session that took over chunks of it lives: inside calls on it, and on the runtime's
   * threads (those of n_io_threads, or the one that computes) while it computes. Sessions and forks
   * read at once, and one session may: `read` must be prepared to run on several threads at the
   * same time. */
  quire_read_callback read;
  /* May be NULL. Of quire_session_load_from: when the last session that reads is gone (released or
   * closed, or the runtime closed), those that took over chunks (see "Prefix reuse") included; any
   * thread. Never called by the other functions, which use user_data during the call alone. */
  quire_destroy_callback destroy;
  void* user_data;
  const char* name; /* UTF-8, copied: what messages call it; NULL: "the snapshot" */
  size_t name_len;
} quire_snapshot_reader;

/* [any-thread] since 0.1 */
QUIRE_API void quire_snapshot_writer_init(quire_snapshot_writer* writer, size_t size);
/* [any-thread] since 0.1 */
QUIRE_API void quire_snapshot_reader_init(quire_snapshot_reader* reader, size_t size);

/* Writes the session where `writer` says: the bytes that quire_session_save would write to a new
 * file. The session is as it was. Errors: those of quire_session_save, but for NOT_FOUND; IO: a
 * callback failed. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_save_to(quire_session* session,
                                             const quire_snapshot_writer* writer,
                                             const quire_snapshot_options* options,
                                             quire_error* err);
/* quire_session_load from where `reader` says. A stream whose reading fails ends with IO or
 * BAD_FILE, at a token boundary; another stream goes on from there. Errors: those of
 * quire_session_load, but for NOT_FOUND; IO: a callback failed. [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_load_from(quire_model* model,
                                               const quire_snapshot_reader* reader,
                                               const quire_session_options* options,
                                               quire_session** out, quire_error* err);
/* quire_snapshot_describe for what `reader` reads. Errors: IO, BAD_FILE, BUFFER_TOO_SMALL.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_snapshot_describe_from(const quire_snapshot_reader* reader, char* buf,
                                                    size_t cap, size_t* needed, quire_error* err);
/* quire_snapshot_verify for what `reader` reads. Errors: IO, BAD_FILE (which says what is damaged),
 * OUT_OF_MEMORY, CANCELLED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_snapshot_verify_from(const quire_snapshot_reader* reader,
                                                  const quire_snapshot_options* options,
                                                  quire_error* err);

/* What a snapshot says of itself, without a model, as JSON:
 *   {"version": 1 or 2, "contents": "session", "title": of a store's entry, else empty,
 *    "bytes": of the file,
 *    "unused_bytes": of those, not of the last snapshot (see quire_session_save),
 *    "origin": {"model": 32 digits, "adapters": [{"identity", "scale"}], "strategy", "kv_type",
 *               and with a kv_old_type that and "old_after"},
 *    "n_tokens": processed and generated ones, "n_generated": of those, "n_pending",
 *    "n_gaps": of positions, "n_approximate": processed tokens from the first one on that an
 *    approximate edit took over or quire_session_fill_random drew, "kv_bytes": of keys and values}
 * "model" is the model's "identity" (quire_model_get_metadata). Keys are only ever added. Errors:
 * NOT_FOUND, IO, BAD_FILE, BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_snapshot_describe(const char* path, size_t path_len, char* buf,
                                               size_t cap, size_t* needed, quire_error* err);
/* Reads all of a snapshot's file and compares its checksums: no byte can be another one than was
 * written unseen, be it in the snapshot, in those before it in the file, or between them. Where a
 * crash cut a save short, or the end of the file was damaged or lost, so that the snapshot before
 * it is loaded, that is BAD_FILE too, until the file is saved to again; an end that is lost up to
 * that of a snapshot before cannot be seen. options: NULL for none. Errors: NOT_FOUND, IO, BAD_FILE
 * (which says what is damaged), OUT_OF_MEMORY, CANCELLED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_snapshot_verify(const char* path, size_t path_len,
                                             const quire_snapshot_options* options,
                                             quire_error* err);

/* ---- Stores of documents --------------------------------------------------------------------- */

/* A directory that keeps documents that were read, for every process that reads them again: each
 * entry is a snapshot, found by the tokens of its text, and the store stays within a budget of
 * bytes. Several processes, and several threads with one handle or with many, may use one directory
 * at once; it needs a file system with locks (fcntl). Files that are not the store's are left
 * alone, and symbolic links are not followed.
 *
 * An entry belongs to sessions of one fingerprint (quire_session_get_fingerprint: model, adapters,
 * strategy and KV type). Of another text it has as many of the first tokens as are the same, in
 * steps of 64 tokens, or all of its own. It has a session's text up to the first token that was
 * generated or fed with a position of its own. What is known of an entry beside its snapshot is
 * made again from that where it is missing or damaged, and its tokens are compared before it is
 * used: such damage costs time and never makes a wrong match.
 *
 * When an entry is put that has no room in the budget, those leave whose last use is longest ago
 * (put, found or loaded; in the order of the uses, whatever the clock says), but none that a
 * session has open in any process, or that is being written. A session that was loaded from an
 * entry has its file open, and reads on there when the entry was removed or replaced.
 *
 * The directory belongs to its owner (mode 0700, files 0600). It has the file store.lock, and for
 * each entry NAME.quire, which is a snapshot like others, and NAME.text. */
typedef struct quire_store quire_store;

/* The directory must be a store already: NOT_FOUND otherwise, and nothing is made. */
#define QUIRE_STORE_MUST_EXIST 1u

typedef struct quire_store_options {
  uint32_t struct_size;
  uint32_t flags;       /* QUIRE_STORE_* */
  int64_t budget_bytes; /* for what this handle puts: of all entries together; 0: no limit */
} quire_store_options;

/* What a store has of a text. */
typedef struct quire_store_match {
  uint32_t struct_size;
  uint32_t flags;     /* 0 */
  int64_t n_tokens;   /* so many of its first tokens are in the entry */
  int64_t n_computed; /* so many of these need not be read again */
  char name[40];    /* of the entry: 32 hexadecimal digits, NUL-terminated; empty: there is none */
  char reason[512]; /* why there is none: UTF-8, NUL-terminated, cut if too long; else empty */
} quire_store_match;

/* [any-thread] since 0.1 */
QUIRE_API void quire_store_options_init(quire_store_options* options, size_t size);
/* [any-thread] since 0.1 */
QUIRE_API void quire_store_match_init(quire_store_match* match, size_t size);

/* Opens the store in the directory `path`, which is made where it is missing, in one that is there.
 * A relative path counts from the directory that the process is in now. What killed processes left
 * behind is removed. The handle holds no file open and has no parent. options: NULL for none.
 * Errors: INVALID_ARGUMENT, NOT_FOUND, IO. [any-thread] since 0.1 */
QUIRE_API quire_status quire_store_open(const char* path, size_t path_len,
                                        const quire_store_options* options, quire_store** out,
                                        quire_error* err);
/* [any-thread] since 0.1 */
QUIRE_API void quire_store_retain(quire_store* store);
/* Sessions that were loaded from it stay as they are. [any-thread] since 0.1 */
QUIRE_API void quire_store_release(quire_store* store);

/* Puts what the session has read into the store, as far as an entry can have it; pending tokens are
 * no part of it. The session is as it was. If an entry has all of that already, it only counts as
 * used; a damaged one, unless the session was loaded from it, is written anew. If the text goes on
 * behind all of an entry's, it takes the place of that, under its name; where the session was
 * loaded from that entry or put there, only what is new is written (quire_session_save says when).
 * Otherwise it is a new entry. Of processes that put the same at once, one writes and the others
 * wait for it. Whoever lists, finds or loads sees an entry as it was or the whole new one, after a
 * crash too. A session that has an entry open keeps what it reads.
 * title: what people call the document, UTF-8, at most 1024 bytes, of an entry that is written;
 * title_len 0: it keeps the one that it has. options: as of quire_session_save, NULL for none;
 * cancelling also ends a wait for another process. match: NULL, or n_tokens and n_computed of what
 * was put, and the entry's name.
 * Errors: those of quire_session_save; INVALID_TEXT (the title; offset: its byte); BUDGET (the
 * entry alone would exceed the budget, or what is in use leaves no room; the message has the
 * numbers), EMPTY (nothing was read), UNSUPPORTED (tokens were generated, and of the text before
 * them less than half could be put: see "Dropped keys". Put such a session before it generates).
 * The store may serve other calls meanwhile. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_store_put(quire_store* store, quire_session* session,
                                       const char* title, size_t title_len,
                                       const quire_snapshot_options* options,
                                       quire_store_match* match, quire_error* err);
/* Looks for the entry that has most of the text `tokens`, int32[n_tokens], n_tokens > 0, for a
 * session of `model` with these options, as quire_session_create takes them (so strategy NULL is
 * full). The last token is never counted: it is left to be read. Nothing that fits is no error, but
 * a match without a name. Errors: those of quire_session_load, but for BAD_FILE: an entry that is
 * damaged is not found. [any-thread] since 0.1 */
QUIRE_API quire_status quire_store_find(quire_store* store, quire_model* model,
                                        const quire_session_options* options, const int32_t* tokens,
                                        size_t n_tokens, quire_store_match* match,
                                        quire_error* err);
/* A session that stands behind what the store has of the text: it holds the first match->n_tokens
 * of them. Feed the others. Where the text turns away from the entry's inside a chunk, the next
 * stream reads the tokens of that chunk again, which it reports as prefill. Until the session and
 * its forks are closed or released the entry is in use. match: may be NULL. Errors: NOT_FOUND
 * (nothing that fits: the message says why), those of quire_store_find. [any-thread] since 0.1 */
QUIRE_API quire_status quire_store_load(quire_store* store, quire_model* model,
                                        const quire_session_options* options, const int32_t* tokens,
                                        size_t n_tokens, quire_store_match* match,
                                        quire_session** out, quire_error* err);
/* Removes the entry of that name, in use or not. Errors: INVALID_ARGUMENT (no such names exist),
 * NOT_FOUND, BUSY (it is being written), IO. [any-thread] since 0.1 */
QUIRE_API quire_status quire_store_remove(quire_store* store, const char* name, size_t name_len,
                                          quire_error* err);
/* Reads all of an entry and compares its checksums, as quire_snapshot_verify does. Errors: those,
 * INVALID_ARGUMENT (no such names exist). [any-thread] since 0.1 */
QUIRE_API quire_status quire_store_verify(quire_store* store, const char* name, size_t name_len,
                                          const quire_snapshot_options* options, quire_error* err);
/* What is in the store, as JSON, the last used entry first:
 *   {"path": absolute, "budget_bytes", "bytes": of all entries and of what is being written,
 *    "entries": [{"name", "bytes", "last_use": seconds since 1970, "in_use": whether a session has
 *      it open or it is being written, "title": may be empty, "n_tokens", "origin": as of
 *      quire_snapshot_describe; of a damaged entry instead of these three "damage": why}],
 *    "unknown": names in the directory that are not the store's}
 * Keys are only ever added. Errors: NOT_FOUND, IO, BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_store_describe(quire_store* store, char* buf, size_t cap,
                                            size_t* needed, quire_error* err);

/* ---- Chat ------------------------------------------------------------------------------------ */

/* Messages to tokens, as a model's chat template writes them. A checkpoint has its template as a
 * program (Jinja: chat_template.jinja, or else chat_template of chat_template.json or of
 * tokenizer_config.json). Programs are not run: a known one is recognised by its text, letter by
 * letter, and what is written equals what it writes, for messages that have a role and a text. An
 * unknown one is refused; a caller who knows that it writes the same as a known template may name
 * that. quire_chat_get_list has the names.
 *
 * The ids are those of the written text, its control tokens parsed, save that nothing in a message
 * becomes a control token or one that the template needs (these may be added tokens, which other
 * calls find in any text). With SentencePiece, text behind <s> or </s> gets the dummy prefix, too.
 *
 * A conversation continues in its session without reading anything again: messages that are fed
 * behind an answer first end the answer's turn as the template does, whether the model ended it, or
 * a cancel or max_tokens. So what was read stays as it was, also where a template writes earlier
 * messages differently once later ones follow: answers keep the white space at their ends that
 * llama2, llama3 and mistral-v3 cut off, and the thinking that qwen3 leaves out before the user's
 * last message; mistral-v3 writes a system text into the last user message there is when it is fed,
 * and does not move it afterwards; llama3-answering begins an answer behind each call's messages,
 * whatever its flags. Save for that, feeding messages one by one makes the same tokens as feeding
 * all at once, but for a token that would reach over the end of a call, as "](" in "[/INST](" may
 * where [/INST] is ordinary text (llama2, mistral-v0.1, mistral-v0.2, mistral-v1).
 *
 * Answers end at the template's end-of-turn token: it is a stop id of each stream that is opened
 * while an answer is begun (not with QUIRE_STREAM_IGNORE_EOS). */

typedef struct quire_message {
  const char* role; /* "system", "user", "assistant" */
  size_t role_len;
  const char* text; /* UTF-8 */
  size_t text_len;
} quire_message; /* this struct has its final size */

#define QUIRE_CHAT_NO_ANSWER 1u   /* do not begin the assistant's answer behind the messages */
#define QUIRE_CHAT_NO_THINKING 2u /* tell models that can think first not to (qwen3, smollm3) */

typedef struct quire_chat_options {
  uint32_t struct_size;
  uint32_t flags; /* QUIRE_CHAT_* */
  /* a known template's name; NULL: the checkpoint's own, in a session that holds messages theirs */
  const char* template_name;
  size_t template_name_len;
  /* "2025-06-30", for templates that write a date; NULL: what the template does, which is a fixed
   * date (llama3.1) or the day it is (llama3.2, smollm3, mistral-small-3.2) */
  const char* date;
  size_t date_len;
} quire_chat_options;

/* [any-thread] since 0.1 */
QUIRE_API void quire_chat_options_init(quire_chat_options* options, size_t size);

/* The known templates, as JSON: {"templates": [{"name", "description"}, ...]}. Keys are only ever
 * added. Errors: INVALID_ARGUMENT, BUFFER_TOO_SMALL. [any-thread] since 0.1 */
QUIRE_API quire_status quire_chat_get_list(char* buf, size_t cap, size_t* needed, quire_error* err);

/* The name of the checkpoint's own template. Errors: NOT_FOUND (it has none), UNSUPPORTED (one that
 * is not known; the message says how it begins), BAD_FILE, BUFFER_TOO_SMALL, CLOSED.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_tokenizer_get_chat_template(const quire_tokenizer* tokenizer,
                                                         char* buf, size_t cap, size_t* needed,
                                                         quire_error* err);

/* A conversation from its beginning as one text: for looking at, not for feeding, since control
 * tokens and what only looks like them cannot be told apart in it. The vocabulary need not have the
 * template's tokens. Errors: those of quire_tokenizer_get_chat_template; INVALID_ARGUMENT (an
 * unknown name, role or date; a message that the template has no place for; offset: the message's
 * index), INVALID_TEXT (offset: a byte of the message that err->message names).
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_tokenizer_render_chat(const quire_tokenizer* tokenizer,
                                                   const quire_message* messages, size_t n_messages,
                                                   const quire_chat_options* options, char* buf,
                                                   size_t cap, size_t* needed, quire_error* err);
/* The ids of a conversation from its beginning. Errors: those, and UNSUPPORTED where the vocabulary
 * does not have control tokens that the template needs: the message lists them.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_tokenizer_encode_chat(const quire_tokenizer* tokenizer,
                                                   const quire_message* messages, size_t n_messages,
                                                   const quire_chat_options* options, int32_t* ids,
                                                   size_t cap, size_t* needed, quire_error* err);

/* Queues messages: the first ones of an empty session, or more behind messages or behind the
 * answer to them. What was fed as text or ids where an answer is begun (its first words, say, or
 * all of one that another program gave) is part of that answer, as what the model generates is.
 * n_messages may be 0 once there are some, to begin an answer. Errors: those; INVALID_ARGUMENT also
 * for a session whose text did not begin with messages, where text or ids follow messages that no
 * answer was begun behind (QUIRE_CHAT_NO_ANSWER), whose messages were cut in two by
 * quire_session_truncate or quire_session_discard_pending, or that has another template; BUSY,
 * OUT_OF_MEMORY. Nothing is queued on failure. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_feed_messages(quire_session* session,
                                                   const quire_message* messages, size_t n_messages,
                                                   const quire_chat_options* options,
                                                   quire_error* err);

/* ---- Memory planner -------------------------------------------------------------------------- */

typedef struct quire_memory_plan {
  uint32_t struct_size;
  uint32_t flags;       /* 0 */
  int64_t weight_bytes; /* allocated for the model */
  int64_t mapped_bytes; /* of files, mapped while it lives (QUIRE_LOAD_MMAP, packed_directory) */
  /* activations and working memory, once per model; RoPE tables, once for all sessions with the
   * same frequencies and kv_chunk */
  int64_t scratch_bytes;
  /* of a token that is held; where some layers drop what lies behind their window, in the others */
  int64_t kv_bytes_per_token;
  /* what longheads and dca_topk keep for choosing chunks; in the first tier */
  int64_t representation_bytes;
  int64_t reach; /* tokens the strategy can serve; INT64_MAX: no limit */
  /* Most bytes of the KV cache in each tier while so many tokens are read, within the budgets;
   * where keys are dropped, of tokens that are fed at once: where more is fed or generated, up to
   * four places are kept (see "Dropped keys"), each of which takes what is seen there. */
  int64_t kv_device_bytes;
  int64_t kv_host_bytes;
  int64_t kv_compressed_bytes;
  int64_t kv_file_bytes;
} quire_memory_plan;

/* What the model in `path` and a session of n_tokens would take, from the headers of its files
 * alone: nothing is loaded. The options are those of loading and of the session; callbacks are not
 * called. The sum of weights, KV cache and scratch is within a tenth of what the allocator
 * callbacks will count, unless logits of all positions are asked for. Adapters are not counted:
 * quire_adapter_info has the bytes of a session's; merged ones change nothing, unless they change
 * the embedding by a low rank, which is then allocated in float32. Errors: those of
 * quire_model_load and quire_session_create; BUDGET where a tier's budget is too small (message:
 * bytes needed). [any-thread] since 0.1 */
QUIRE_API quire_status quire_runtime_plan_memory(const quire_runtime* runtime, const char* path,
                                                 size_t path_len, const quire_model_options* model,
                                                 const quire_session_options* session,
                                                 int64_t n_tokens, quire_memory_plan* plan,
                                                 quire_error* err);

typedef struct quire_rate_estimate {
  uint32_t struct_size;
  uint32_t flags;          /* 0 */
  int64_t prefill_ns;      /* of reading all tokens, from an empty session */
  int64_t decode_token_ns; /* of a generated token behind them, if what it chooses is in memory */
  /* the same if none of what it chooses is; differs for strategies that choose chunks, where not
   * all of the KV cache fits in memory */
  int64_t decode_token_cold_ns;
  int64_t measured_tokens; /* up to this length costs were measured; beyond, extrapolated */
  /* of records in the last tier, from the disk and not from what the system keeps of the file in
   * memory; 0: no tier below memory */
  int64_t tier_read_bytes_per_second;
  int64_t calibration_ns; /* how long the call measured */
} quire_rate_estimate;

/* How long a session with these options would take to read n_tokens tokens and to answer, by a
 * short calibration on this machine as it is now: a few steps at up to three depths in a session of
 * its own, with up to 64 MiB of random keys and values (or two chunks, if these are larger), and a
 * file of some 16 MiB in kv_file_directory, both gone afterwards. Takes about a second with a small
 * model, a few times a block of eight tokens with a large one. Reading from lower tiers is taken to
 * overlap with computing, and a strategy that chooses while it reads to find what it chooses in
 * memory; chunks in compressed memory count in full. Blocks, and shares the machine with open
 * streams, which it slows down. Whether it fits is quire_runtime_plan_memory's to say. Errors:
 * those of quire_session_create; INVALID_ARGUMENT (n_tokens: 1 to 2^40), BUDGET (no memory left
 * for the session of its own), IO, CANCELLED, CLOSED (the runtime is being closed).
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_model_estimate_rates(quire_model* model,
                                                  const quire_session_options* options,
                                                  int64_t n_tokens, quire_rate_estimate* estimate,
                                                  quire_error* err);

/* ---- Stream ---------------------------------------------------------------------------------- */

/* keep log p of each token that is processed (quire_session_get_scores) */
#define QUIRE_STREAM_SCORE 1u
/* keep the logits of all positions: 4 * vocab_size bytes a token */
#define QUIRE_STREAM_KEEP_LOGITS 2u
#define QUIRE_STREAM_IGNORE_EOS 4u /* end-of-text tokens do not end the stream */
/* each token waits for its quire_stream_allow; max_undelivered is 1 (experimental) */
#define QUIRE_STREAM_CONSTRAIN 8u
/* keep the last hidden states of all positions: 4 * hidden_size bytes a token. For those of chosen
 * tokens alone, process the others with a stream without it. */
#define QUIRE_STREAM_KEEP_HIDDEN 16u
/* keep where the tokens of the answer looked (quire_session_get_passages): 4 bytes a token of the
 * answer for each 16 tokens that may be cited. Changes no token, and no bit of a logit. */
#define QUIRE_STREAM_CITE 32u

typedef struct quire_text {
  const char* data;
  size_t len;
} quire_text; /* this struct has its final size */

/* One link of a sampling chain: what it does to the candidates that the links before it left.
 * Filters keep at least one: the most probable, of TYPICAL the most typical. Of equal candidates
 * the lower id comes first. Fields that a kind does not name must be 0. This struct has its final
 * size; an array of it may have a stride all the same. */
typedef struct quire_sampler {
  int32_t kind; /* QUIRE_SAMPLER_* */
  int32_t n;
  int32_t m;
  float a;
  float b;
  float c;
} quire_sampler;

#define QUIRE_SAMPLER_TEMPERATURE 1 /* logits / a; a in (0, 1e6] */
#define QUIRE_SAMPLER_TOP_K 2       /* filter: the n most probable; n >= 1 */
/* filter: the smallest set of the most probable that has at least probability a in (0, 1] */
#define QUIRE_SAMPLER_TOP_P 3
/* filter: at least a in (0, 1] times as probable as the most probable */
#define QUIRE_SAMPLER_MIN_P 4
/* filter: the smallest set with at least probability a in (0, 1] of the tokens whose -log p is
 * nearest to the entropy (Meister et al. 2022, "Locally Typical Sampling") */
#define QUIRE_SAMPLER_TYPICAL 5
/* Of tokens among the last n of the session, its prompt included (n >= 0; 0: all): positive logits
 * are divided by a, negative ones multiplied (a in (0, 1e6]; 1: nothing; Keskar et al. 2019,
 * "CTRL"); then b is subtracted for each occurrence (frequency) and c once (presence), both in
 * [-1e6, 1e6]. */
#define QUIRE_SAMPLER_PENALTIES 6
/* DRY, "Don't Repeat Yourself" (p-e-w 2024): if the last L tokens stood before among the last n (n
 * >= 0; 0: all), and L >= m (m in [1, 1e6]; usual: 2), the token that followed there loses a * b ^
 * (L - m), where L is the longest such (a in (0, 1e6], usual: 0.8; b in [1, 1e6], usual: 1.75).
 * Tokens whose text contains one of dry_breakers, and control tokens, are breakers: repetitions do
 * not reach across them, and they are never penalised. */
#define QUIRE_SAMPLER_DRY 7

/* A number added to a token's logit before the chain, once for each entry of that token; -INFINITY:
 * not this token. This struct has its final size. */
typedef struct quire_logit_bias {
  int32_t token;
  float bias;
} quire_logit_bias;

typedef struct quire_stream_options {
  uint32_t struct_size;
  uint32_t flags; /* QUIRE_STREAM_* */
  /* generate at most so many; 0: process what was fed and generate nothing */
  int64_t max_tokens;
  float temperature; /* 0: greedy (the most probable token; ties: the lowest id) */
  int32_t top_k;     /* keep the k most probable; 0: all */
  /* keep the smallest set with at least this probability; 0 or 1: all */
  float top_p;
  /* drop tokens less probable than min_p times the most probable; 0: none */
  float min_p;
  uint64_t seed;           /* the n-th token of the session draws from (seed, n): restartable */
  const int32_t* stop_ids; /* generation ends after one of these; it is not delivered */
  size_t n_stop_ids;       /* at most 4096 */
  /* generation ends before one of these appears in the text */
  const quire_text* stop_strings;
  size_t n_stop_strings; /* at most 64, each 1 to 1024 bytes */
  /* A chain in any order instead of temperature, top_k, top_p and min_p, which must be 0 then.
   * What it leaves is drawn from; QUIRE_SAMPLER_TOP_K with n = 1 makes it greedy. NULL:
   * temperature, top_k, top_p, min_p in this order, as with none. If logit_bias and min_tokens
   * leave no token, the model's most probable one is taken; if the chain makes all tokens
   * impossible that these leave, the most probable of them. */
  const quire_sampler* samplers;
  size_t n_samplers; /* at most 64 */
  /* 0: sizeof(quire_sampler); more, a multiple of 4 up to 4096, if what lies behind each is 0 */
  size_t sampler_stride;
  const quire_logit_bias* logit_bias;
  size_t n_logit_bias; /* at most 4096 */
  /* NULL: newline, colon, double quote, asterisk; not NULL with none: no text */
  const quire_text* dry_breakers;
  size_t n_dry_breakers; /* at most 64, each 1 to 1024 bytes */
  /* before this stream generated so many, stop ids and (without IGNORE_EOS) end-of-text tokens
   * are not chosen */
  int64_t min_tokens;
  /* from opening, at most 2^40: then the stream ends at the next token boundary, while reading
   * too, however slowly it is read from; 0: none */
  int64_t deadline_ms;
  /* so many of the most probable tokens come with each token; at most 64 */
  int32_t n_top_logprobs;
  /* generate at most so many tokens ahead of their delivery; 0: 8, or 1 with
   * QUIRE_STREAM_CONSTRAIN; at most 4096. The tokens are the same for any bound; a greater one
   * keeps the engine at work while the reader is slow, and may compute what nobody takes. With
   * drafts it may be draft_tokens more. */
  int32_t max_undelivered;
  /* QUIRE_STREAM_CITE: tokens before this one may be cited, such as all before the question: at
   * most as many as there are before the answer; 0: all but the last 64 of those. Without the flag:
   * 0 */
  int64_t cite_end;
  /* Prompt lookup (Saxena 2023; Yang et al. 2023, "Inference with Reference"): where the last
   * tokens stood before in the session's text, what followed there is drafted, at most so many
   * tokens and as many as stood there, and processed together with the last token; what is
   * generated at each place says how many of them were right. Tokens and all that is kept are those
   * of a stream without drafts, as far as the device's numbers do not depend on how many tokens it
   * processes at once (the CPU's do not). It pays where an answer quotes its document: a step then
   * generates several tokens and takes little longer. A step that several streams share has no
   * drafts, and QUIRE_STREAM_CONSTRAIN excludes them. The logits of a draft take 4 * vocab_size
   * bytes a token. 0: no drafts; at most 31 (experimental) */
  int32_t draft_tokens;
  /* only where so many of the last tokens stood before; 0: 2; at most 64 */
  int32_t draft_match;
} quire_stream_options;

/* [any-thread] since 0.1 */
QUIRE_API void quire_stream_options_init(quire_stream_options* options, size_t size);

/* Starts to process the pending tokens and then to generate. Returns at once; the runtime's threads
 * compute. Until the end event is delivered or the stream closed or released, other calls on the
 * session return BUSY, save the any-thread ones. Errors: OVERFLOW (offset: the positions asked
 * for), EMPTY, INVALID_ARGUMENT (a sampler: the message names its index), INVALID_TEXT (a stop
 * string or breaker), INVALID_TOKEN (a bias; offset: its index), BUSY, CLOSED, OUT_OF_MEMORY.
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_stream_open(quire_session* session,
                                         const quire_stream_options* options, quire_stream** out,
                                         quire_error* err);
/* [any-thread] since 0.1 */
QUIRE_API void quire_stream_retain(quire_stream* stream);
/* The last release closes the stream without waiting. [any-thread] since 0.1 */
QUIRE_API void quire_stream_release(quire_stream* stream);
/* Stops the stream and waits until no thread works for it. The session stands at the last delivered
 * token, and goes on as if no later one had been generated: where some had been processed, the next
 * stream begins by processing the last token again, with the methods that quire_session_truncate
 * names perhaps some before it, and its logits are not kept. Unprocessed tokens stay pending. A
 * second close is OK. Never from a callback. [any-thread] since 0.1 */
QUIRE_API quire_status quire_stream_close(quire_stream* stream, quire_error* err);
/* Asks the stream to stop; sticky and idempotent. Each thread finishes at most the task it is in.
 * The next event is then the end event (QUIRE_FINISH_CANCELLED), and tokens that were not delivered
 * are forgotten. A stream that has come to its end already stays as it is: its events wait, and its
 * end event says how it ended. [any-thread] since 0.1 */
QUIRE_API quire_status quire_stream_cancel(quire_stream* stream, quire_error* err);

#define QUIRE_EVENT_PREFILL 1 /* progress: total, done, n_per_second */
#define QUIRE_EVENT_TOKEN 2   /* a token: token, logprob, text (possibly empty) */
#define QUIRE_EVENT_WARNING 3 /* message for a person, and its code, QUIRE_WARNING_* */
/* finish_reason; text is what was held back (the end of the answer's text) */
#define QUIRE_EVENT_END 4
#define QUIRE_EVENT_NOTICE 5 /* likewise, where nothing is wrong: QUIRE_NOTICE_* */

/* Codes are only ever added: a message of an unknown code is to be shown all the same. Messages
 * come before all else; but for UNTRAINED_POSITIONS once a session. */
/* an adapter may need another RoPE base than the strategy has */
#define QUIRE_WARNING_ADAPTER_BASE 1
/* prompt + max_tokens exceed the reach (QUIRE_OVERFLOW_EXTRAPOLATE) */
#define QUIRE_WARNING_UNTRAINED_POSITIONS 2
#define QUIRE_NOTICE_AUTO_CHOICE 101 /* what `auto` chose, and why */

#define QUIRE_FINISH_NONE 0
#define QUIRE_FINISH_MAX_TOKENS 1
#define QUIRE_FINISH_EOS 2         /* an end-of-text token, which is not delivered */
#define QUIRE_FINISH_STOP_ID 3     /* token says which */
#define QUIRE_FINISH_STOP_STRING 4 /* stop_index says which */
#define QUIRE_FINISH_REACH 5       /* the strategy's reach was used up (QUIRE_OVERFLOW_STOP) */
#define QUIRE_FINISH_CANCELLED 6
#define QUIRE_FINISH_DEADLINE 7 /* deadline_ms passed; unprocessed tokens stay pending */

/* Why a stream computed a whole chunk of its text that might have been reused. Codes are only ever
 * added. */
#define QUIRE_REUSE_COMPLETE 0  /* it computed none, but for the one with the last token */
#define QUIRE_REUSE_UNKNOWN 1   /* no session holds the same text up to there */
#define QUIRE_REUSE_OFF 2       /* QUIRE_SESSION_NO_PREFIX_REUSE */
#define QUIRE_REUSE_STRATEGY 3  /* the strategy takes no part */
#define QUIRE_REUSE_STREAM 4    /* the stream asks for what only computing gives */
#define QUIRE_REUSE_POSITIONS 5 /* positions of its own (quire_session_feed_positions) */
/* the session's budgets have no room for it */
#define QUIRE_REUSE_MEMORY 6
/* the text before it is approximate (QUIRE_EDIT_APPROXIMATE; quire_session_fill_random) */
#define QUIRE_REUSE_APPROXIMATE 7

/* A token and its log p under the model's unmodified distribution. This struct has its final
 * size. */
typedef struct quire_token_logprob {
  int32_t token;
  float logprob;
} quire_token_logprob;

typedef struct quire_event {
  uint32_t struct_size;
  uint32_t flags;   /* 0 */
  int32_t kind;     /* QUIRE_EVENT_* */
  int32_t token;    /* TOKEN: the id; END by STOP_ID or EOS: the id that ended it; else -1 */
  int64_t n_tokens; /* of the session after this event (quire_session_get_token_counts) */
  /* of the answer, and nothing else, whatever the kind: all texts one after the other are the
   * answer. Whole code points, not NUL-terminated; lives until the next `next` on this stream or
   * its release; NULL if empty */
  const char* text;
  size_t text_len;
  /* PREFILL: tokens to process; of them taken over from other sessions so far, and computed so far,
   * which together, and with those that were moved, are all in the end */
  int64_t total;
  int64_t reused;
  int64_t done;
  double n_per_second;   /* PREFILL: tokens a second so far in this stream */
  float logprob;         /* TOKEN: log p under the model's unmodified distribution */
  int32_t finish_reason; /* END: QUIRE_FINISH_* */
  int32_t stop_index;    /* END by STOP_STRING: its index; else -1 */
  int32_t code;          /* WARNING: QUIRE_WARNING_*; NOTICE: QUIRE_NOTICE_*; else 0 */
  /* TOKEN: the most probable first; lives as long as text; NULL if none */
  const quire_token_logprob* top_logprobs;
  size_t n_top_logprobs;
  /* WARNING, NOTICE: UTF-8 for a person, not NUL-terminated; lives as long as text; else NULL */
  const char* message;
  size_t message_len;
  int32_t reuse_miss; /* PREFILL: QUIRE_REUSE_*, the last reason so far */
  int32_t reserved;   /* 0 */
  /* PREFILL: of the total, taken over from elsewhere in the text before an edit so far */
  int64_t moved;
} quire_event;

/* Zeroes `size` bytes of *event and sets struct_size. [any-thread] since 0.1 */
QUIRE_API void quire_event_init(quire_event* event, size_t size);

/* Waits for the next event: timeout_ms < 0 forever, 0 not at all. OK: *event is filled. TIMEOUT:
 * nothing yet. END: the end event was delivered before. A failure while computing is returned here
 * once (NUMERIC, OUT_OF_MEMORY, BUDGET, IO, BAD_FILE, INTERNAL), then END: the session goes on from
 * the token boundary it reports. Undelivered tokens are no part of the session: a token is from the
 * moment it is delivered here. A slow reader holds generation up (max_undelivered). Where that
 * leaves room and a model makes more than 2,000 tokens a second, one that waits may get them up to
 * a millisecond later than they come, several in a row. Errors: INVALID_ARGUMENT, CLOSED, and
 * those. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_stream_next(quire_stream* stream, int32_t timeout_ms,
                                         quire_event* event, quire_error* err);

/* More stop ids, int32[n_stop_ids], for an open stream. They hold for all tokens that are not
 * delivered yet: those that were generated already are forgotten and generated anew, so that the
 * answer depends on the tokens delivered before this call alone. No effect on a stream whose end
 * event waits or was delivered. Errors: INVALID_ARGUMENT (more than 4096 in all), CLOSED,
 * OUT_OF_MEMORY. [any-thread] since 0.1 */
QUIRE_API quire_status quire_stream_add_stop_ids(quire_stream* stream, const int32_t* stop_ids,
                                                 size_t n_stop_ids, quire_error* err);
/* The same with stop strings, which are sought in text that was not delivered yet.
 * quire_event.stop_index counts them on behind those that the stream has. Errors: INVALID_ARGUMENT
 * (more than 64 in all, not 1 to 1024 bytes), INVALID_TEXT, CLOSED, OUT_OF_MEMORY.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_stream_add_stop_strings(quire_stream* stream,
                                                     const quire_text* stop_strings,
                                                     size_t n_stop_strings, quire_error* err);

#define QUIRE_WAIT_FD 1 /* a file descriptor to poll for reading */

/* A handle for poll loops: ready while an event (or a failure) waits. Where tokens come in less
 * than half a millisecond it becomes ready for several at once: they wait for at most a
 * millisecond, and sometimes there is none yet when it is ready, so take events with a timeout of
 * 0. Only poll it; it belongs to the stream.
 * Errors: UNSUPPORTED (no such thing on this system), IO (the system has no descriptor left:
 * EMFILE, ENFILE), CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_stream_get_wait_handle(quire_stream* stream, int64_t* handle,
                                                    int32_t* kind, quire_error* err);

/* ---- Experimental ---------------------------------------------------------------------------- */

/* For tools, benchmarks and tests. What follows may change or go in any version, from 1.0 on too:
 * the promise of ABI.md does not cover it. */

#define QUIRE_KV_TEXT 0      /* tokens */
#define QUIRE_KV_CONDENSED 1 /* condensed entries (beacon), counted from 0 as they are made */

/* A part of a strategy's relative-position matrix. */
typedef struct quire_position_view {
  uint32_t struct_size;
  uint32_t flags;      /* 0 */
  int32_t head;        /* less than n_heads */
  int32_t query_kind;  /* QUIRE_KV_*: what the rows are */
  int32_t key_kind;    /* QUIRE_KV_*: what the columns are */
  int32_t reserved;    /* 0 */
  int64_t first_query; /* 0 to 2^24 */
  int64_t n_queries;   /* 1 to 2^24 */
  int64_t n_keys;      /* 1 to 2^24 */
} quire_position_view;

/* [any-thread] since 0.1 */
QUIRE_API void quire_position_view_init(quire_position_view* view, size_t size);

/* matrix[r * n_keys + j] is the distance the model sees between query first_query + r and key j,
 * NaN where j is not visible (all of them where the keys are condensed entries that the strategy
 * does not make). A condensed row is an entry when it was made: it saw tokens, earlier entries, and
 * itself at distance 0. longheads, dca_topk: which chunks a head chooses depends on the text; shown
 * is the choice when all chunks fit equally well. The matrix has n_queries * n_keys doubles. A row
 * takes time and memory in proportion to n_keys and n_heads, however great first_query is.
 * Errors: INVALID_ARGUMENT (also for condensed rows of a strategy without them, and for entries
 * that no text of 2^24 tokens makes), BAD_STRATEGY, UNSUPPORTED, BUFFER_TOO_SMALL.
 * [any-thread] since 0.1 */
QUIRE_API quire_status quire_strategy_get_positions(const quire_strategy_options* options,
                                                    const quire_position_view* view, double* matrix,
                                                    size_t cap, size_t* needed, quire_error* err);

/* For benchmarks only: an empty session becomes one of n_tokens random tokens (0 to 2^31 - 1)
 * without computing them. The keys and values of all but the last are small random numbers in the
 * session's KV type, drawn from `seed` like the ids; what the strategy drops is dropped, and the
 * byte budget holds. The next stream begins by computing the last token, so that it can decode at
 * this depth; what it says means nothing. Waits until filled; on failure the session is empty.
 * Errors: INVALID_ARGUMENT (range; the session is not empty), BUDGET, OUT_OF_MEMORY, IO, BUSY,
 * CLOSED. [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_session_fill_random(quire_session* session, int64_t n_tokens,
                                                 uint64_t seed, quire_error* err);

/* What tests of cancelling look at. */
typedef struct quire_session_probes {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  /* tasks started after the last cancel was seen by the caller: at most n_threads */
  int64_t tasks_after_cancel;
  int64_t cancel_latency_ns; /* from the last cancel to the moment the session stood still */
} quire_session_probes;

/* Fills *probes (struct_size set by the caller). Errors: CLOSED. [any-thread] since 0.1 */
QUIRE_API quire_status quire_session_get_probes(const quire_session* session,
                                                quire_session_probes* probes, quire_error* err);

/* With QUIRE_STREAM_CONSTRAIN says which tokens may come next: once before the first token, and
 * once after each that was taken. Token t may if bit t % 32 of allowed[t / 32] is set; n_words is
 * ceil(vocab_size / 32), or 0: any may. The last token is processed meanwhile; only the choice
 * waits. Of the allowed tokens the sampling options choose; if they leave none, it is the most
 * probable allowed one. End-of-text tokens and stop ids must be allowed to end the answer. While
 * nothing else is to come, quire_stream_next fails with INVALID_ARGUMENT. Errors: INVALID_ARGUMENT
 * (no such flag, a wrong size, nothing allowed, not the time for it), CLOSED, OUT_OF_MEMORY.
 * [one-thread-at-a-time] since 0.1 */
QUIRE_API quire_status quire_stream_allow(quire_stream* stream, const uint32_t* allowed,
                                          size_t n_words, quire_error* err);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_QUIRE_H_ */
