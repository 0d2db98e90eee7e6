// Version, status names, struct initialisers.
#include "lib/abi/boundary.h"

using quire::abi::init_struct;

extern "C" {

int32_t quire_get_version(void) { return QUIRE_VERSION; }
const char* quire_get_version_string(void) { return QUIRE_VERSION_TEXT; }

const char* quire_get_status_name(quire_status status) {
  switch (status) {
    case QUIRE_OK:
      return "OK";
    case QUIRE_END:
      return "END";
    case QUIRE_TIMEOUT:
      return "TIMEOUT";
    case QUIRE_ERROR_INTERNAL:
      return "INTERNAL";
    case QUIRE_ERROR_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case QUIRE_ERROR_OUT_OF_MEMORY:
      return "OUT_OF_MEMORY";
    case QUIRE_ERROR_IO:
      return "IO";
    case QUIRE_ERROR_NOT_FOUND:
      return "NOT_FOUND";
    case QUIRE_ERROR_BAD_FILE:
      return "BAD_FILE";
    case QUIRE_ERROR_UNSUPPORTED:
      return "UNSUPPORTED";
    case QUIRE_ERROR_BUSY:
      return "BUSY";
    case QUIRE_ERROR_CLOSED:
      return "CLOSED";
    case QUIRE_ERROR_CANCELLED:
      return "CANCELLED";
    case QUIRE_ERROR_OVERFLOW:
      return "OVERFLOW";
    case QUIRE_ERROR_BUDGET:
      return "BUDGET";
    case QUIRE_ERROR_BAD_STRATEGY:
      return "BAD_STRATEGY";
    case QUIRE_ERROR_INVALID_TEXT:
      return "INVALID_TEXT";
    case QUIRE_ERROR_INVALID_TOKEN:
      return "INVALID_TOKEN";
    case QUIRE_ERROR_NUMERIC:
      return "NUMERIC";
    case QUIRE_ERROR_EMPTY:
      return "EMPTY";
    case QUIRE_ERROR_BUFFER_TOO_SMALL:
      return "BUFFER_TOO_SMALL";
    case QUIRE_ERROR_DEVICE:
      return "DEVICE";
    default:
      return "UNKNOWN";
  }
}

void quire_runtime_options_init(quire_runtime_options* options, size_t size) { init_struct(options, size); }
void quire_model_options_init(quire_model_options* options, size_t size) { init_struct(options, size); }
void quire_adapter_options_init(quire_adapter_options* options, size_t size) { init_struct(options, size); }
void quire_strategy_options_init(quire_strategy_options* options, size_t size) { init_struct(options, size); }
void quire_position_view_init(quire_position_view* view, size_t size) { init_struct(view, size); }
void quire_session_options_init(quire_session_options* options, size_t size) { init_struct(options, size); }
void quire_chat_options_init(quire_chat_options* options, size_t size) { init_struct(options, size); }
void quire_stream_options_init(quire_stream_options* options, size_t size) { init_struct(options, size); }
void quire_event_init(quire_event* event, size_t size) { init_struct(event, size); }
}
