#include "lib/backend/cuda/cuda_device.h"

#include <algorithm>

#include "lib/support/host_call.h"

namespace quire::cuda {
namespace {

// What the calling thread had before the library used a device on it, and through which table.
struct Before {
  const DeviceApi* api;
  void* context;
};
thread_local Before before{};

void put_back() { (void)before.api->leave_devices(before.context); }

}  // namespace

Status CudaDevice::use() const {
  // Where the driver does not say, nothing can be put back.
  if (HostCall::is_untouched() && api_.get_context(&before.context) == 0) {
    before.api = &api_;
    HostCall::at_end(put_back);
  }
  return check(api_.use_device(index_), "choosing the device");
}

Status CudaDevice::check(int error, const char* what) const {
  if (error == 0) return {};
  const Code code = api_.is_out_of_memory(error) ? Code::kOutOfMemory : Code::kDevice;
  return Status(code, name() + ": " + what + ": " + api_.error_text(error));
}

Result<DeviceMemory> DeviceMemory::make(const CudaDevice& device, size_t bytes, MemoryKind kind) {
  QUIRE_TRY(device.use());
  DeviceMemory made;
  const size_t least = std::max<size_t>(bytes, 1);
  const bool staging = kind == MemoryKind::kStaging;
  const int error = (staging ? device.api().allocate_host : device.api().allocate)(least, &made.data_);
  if (error != 0 && staging && device.api().is_out_of_memory(error))
    made.plain_ = HostMemory(device.allocator(), least);
  if (made.is_plain()) {
    made.data_ = made.plain_.data();
  } else if (error != 0) {
    made.data_ = nullptr;
    const std::string what = "allocating " + std::to_string(bytes) + (staging ? " bytes of host memory" : " bytes");
    return device.check(error, what.c_str());
  }
  made.device_ = &device;
  made.size_ = bytes;
  made.kind_ = kind;
  return made;
}

DeviceMemory::~DeviceMemory() {
  if (!data_ || is_plain()) return;
  (void)device_->use();
  const DeviceApi& api = device_->api();
  (void)(kind_ == MemoryKind::kStaging ? api.release_host(data_) : api.release(data_, std::max<size_t>(size_, 1)));
}

}  // namespace quire::cuda
