"""The commands: flags, a call into the library, printing."""

from tfplace.bin import signals

signals.install_in_command()  # before a command imports what takes seconds
