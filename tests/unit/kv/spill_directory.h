// A directory for spill files, and what may go wrong there.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace quire::test {

class SpillDirectory {
 public:
  SpillDirectory() : path_(testing::TempDir() + "quire-test-XXXXXX") {
    if (!::mkdtemp(path_.data())) throw std::runtime_error("mkdtemp " + path_);
  }
  ~SpillDirectory() { ::rmdir(path_.c_str()); }
  SpillDirectory(const SpillDirectory&) = delete;
  SpillDirectory& operator=(const SpillDirectory&) = delete;

  const std::string& path() const { return path_; }
  int n_names() const {
    DIR* directory = ::opendir(path_.c_str());
    if (!directory) return -1;
    int n = -2;  // "." and ".."
    while (::readdir(directory)) ++n;
    ::closedir(directory);
    return n;
  }

 private:
  std::string path_;
};

// No file of this process can grow beyond `bytes`. The signal that the system sends then is the library's to deal with.
class FullDisk {
 public:
  explicit FullDisk(int64_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(bytes);
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

// Meanwhile this process may not write to the directory, root or not.
class WithoutRights {
 public:
  explicit WithoutRights(std::string path) : path_(std::move(path)), user_(::geteuid()) {
    constexpr uid_t kNobody = 65534;
    if (::chmod(path_.c_str(), 0500) != 0 || (user_ == 0 && ::seteuid(kNobody) != 0)) {
      throw std::runtime_error("cannot take the rights to " + path_);
    }
  }
  ~WithoutRights() {
    if (user_ == 0 && ::seteuid(user_) != 0) std::abort();
    ::chmod(path_.c_str(), 0700);
  }
  WithoutRights(const WithoutRights&) = delete;
  WithoutRights& operator=(const WithoutRights&) = delete;

 private:
  std::string path_;
  uid_t user_;
};

}  // namespace quire::test
