"""End of child processes with their parent."""

import os
import select
import signal
import threading

_PARENT_CHECK_S = 1.0


def end_with_parent() -> None:
  """Ends this process when its parent ends, for any reason.

  The parent holds the pipe of this process's standard input. Linux sends its
  parent-death signal when the spawning thread ends, so the pipe is used
  instead. A fork of the parent may keep the pipe open, so the parent's id is
  watched, too. A stopped process cannot watch anything. But its own process
  group becomes orphaned, and the kernel then sends SIGHUP and SIGCONT to
  stopped members.
  """
  signal.signal(signal.SIGHUP, signal.SIG_DFL)
  os.setpgid(0, 0)
  parent = os.getppid()

  def watch() -> None:
    while os.getppid() == parent:
      readable, _, _ = select.select([0], [], [], _PARENT_CHECK_S)
      if readable and not os.read(0, 1):
        break
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()
