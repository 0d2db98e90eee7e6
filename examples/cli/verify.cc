// quire verify: whether files of saved sessions are whole.
#include <memory>

#include "arguments.h"
#include "output.h"
#include "snapshot.h"

namespace cli {
namespace {

int verify(const std::vector<std::string>& paths) {
  int status = 0;
  for (const std::string& path : paths) {
    try {
      const std::string summary = snapshot_summary(describe_snapshot(path));
      verify_snapshot(path);
      print_text(path + ": whole, " + summary + "\n");
    } catch (const QuireFailure& failure) {
      print_text(std::string(failure.what()) + " [" + quire_get_status_name(failure.status()) + "]\n");
      status = 1;
    }
    flush_output();
  }
  return status;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* command =
      app.add_subcommand("verify", "Read files of `quire index` and compare their checksums; needs no model");
  command->add_option("files", *paths, "files to read; exit status 1 if one is damaged")->required()->type_name("FILE");
  add_quiet_option(*command);
  command->footer("\nExample:\n  quire verify *.quire");
  command->callback([paths, &action] { action = [paths] { return verify(*paths); }; });
}

}  // namespace cli
