"""The commands: flags, a call into the library, printing."""
