"""A command that gets a signal after some seconds, the first time it is run: `signalled SECONDS SIGNAL MARK -- COMMAND`.

`heal drill -- COMMAND` puts this between `heal run` and the command, so that any script can be signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


def main() -> None:
    """Run the command, and end as it ends."""
    seconds, name, mark, _, *command = sys.argv[1:]
    process = subprocess.Popen(command)  # noqa: S603  # the user's own
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda came, _frame: process.send_signal(came))
    done = Path(mark)
    if not done.exists():

        def send() -> None:
            done.touch()
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.Signals[name])

        timer = threading.Timer(float(seconds), send)
        timer.daemon = True
        timer.start()
    code = process.wait()
    if code < 0:  # die of what it died of
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
