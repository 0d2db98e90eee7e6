"""A program at a terminal, for what depends on one, such as Ctrl-C."""

import os
import pty


def run(command, environment, sign, keys):
    """All that the program writes. Once `sign` came, `keys` are typed. Fails where the program does."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(command[0], command, environment)
    output, typed = b"", False
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # how Linux says that the other side is closed
            break
        output += part
        if not typed and sign.encode() in output:
            os.write(terminal, keys.encode())
            typed = True
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    text = output.decode()
    assert status == 0, f"status {status}: {text}"
    return text
