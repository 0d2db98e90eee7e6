// Ctrl-C. The library installs no signal handlers; a program that wants to stop it cleanly installs its own.
#pragma once

namespace cli {

// From here on SIGINT and SIGTERM set a flag. A second one, two seconds later, kills the process, in case the first is
// not heeded.
void install_interrupt_handler();
bool interrupted();
// Goes on after a Ctrl-C that was heeded: the next one sets the flag again. False: there was none, or SIGTERM, which
// stays.
bool forget_interrupt();

}  // namespace cli
