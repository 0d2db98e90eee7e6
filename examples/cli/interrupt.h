// Ctrl-C. The library installs no signal handlers; a program that wants to stop it cleanly installs its own.
#pragma once

namespace cli {

// From here on SIGINT and SIGTERM set a flag. A second SIGINT kills the process, in case the first is not heeded.
void install_interrupt_handler();
bool interrupted();

}  // namespace cli
