// A host's callbacks of one call, each of which does once what a test told it to.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "quire/quire.h"

namespace quire::test {

struct HostCallbacks {
  using Action = std::function<void()>;

  Action in_progress, in_write, in_commit, in_abort, in_read;  // empty: nothing
  bool write_fails = false;
  std::string bytes;  // of the snapshot that was written, or is read
  bool committed = false, aborted = false, reader_destroyed = false;

  // `init` is that of the options.
  template <typename Options>
  Options options(void (*init)(Options*, size_t)) {
    Options options;
    init(&options, sizeof options);
    options.progress = [](void* self, int64_t, int64_t) { once(of(self).in_progress); };
    options.progress_user_data = this;
    return options;
  }

  quire_snapshot_writer writer() {
    quire_snapshot_writer writer;
    quire_snapshot_writer_init(&writer, sizeof writer);
    writer.write = [](void* self, const void* data, size_t n, quire_error*) -> int64_t {
      once(of(self).in_write);
      if (of(self).write_fails) return -1;
      of(self).bytes.append(static_cast<const char*>(data), n);
      return static_cast<int64_t>(n);
    };
    writer.commit = [](void* self, quire_error*) -> int32_t {
      once(of(self).in_commit);
      of(self).committed = true;
      return 0;
    };
    writer.abort = [](void* self) {
      once(of(self).in_abort);
      of(self).aborted = true;
    };
    writer.user_data = this;
    return writer;
  }

  quire_snapshot_reader reader() {
    quire_snapshot_reader reader;
    quire_snapshot_reader_init(&reader, sizeof reader);
    reader.n_bytes = static_cast<int64_t>(bytes.size());
    reader.read = [](void* self, int64_t offset, void* buffer, size_t n, quire_error*) -> int64_t {
      once(of(self).in_read);
      std::memcpy(buffer, of(self).bytes.data() + offset, n);
      return static_cast<int64_t>(n);
    };
    reader.destroy = [](void* self) { of(self).reader_destroyed = true; };
    reader.user_data = this;
    return reader;
  }

 private:
  static HostCallbacks& of(void* self) { return *static_cast<HostCallbacks*>(self); }
  static void once(Action& action) {
    if (action) std::exchange(action, nullptr)();
  }
};

}  // namespace quire::test
