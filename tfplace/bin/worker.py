"""tfplace-worker: serves this machine's devices to other machines."""

import sys
from collections.abc import Sequence

from absl import flags

from tfplace.bin import cli
from tfplace.measure.local import host
from tfplace.measure.remote import serving, workers

_DESCRIPTION = (
  "Starts one TensorFlow worker, prints its address in one line, and serves"
  " until SIGTERM or SIGINT. Name the addresses of all workers in a"
  " tfplace.hosts.v1 file, and pass it to tfplace-place or tfplace-measure as"
  " --cluster. WARNING: TensorFlow's protocol has no authentication and no"
  " encryption. Anyone who reaches the port can run any TensorFlow op as this"
  " user, including ops that read and write files. Bind to loopback (and"
  " connect machines by SSH tunnels), or to a network in which every host is"
  " trusted, but never to an address that the Internet can reach."
)


def _define(values: flags.FlagValues) -> None:
  flags.DEFINE_string(
    "bind",
    "127.0.0.1:2222",
    "host:port to listen on; port 0 selects a free port.",
    flag_values=values,
  )
  flags.DEFINE_integer(
    "threads",
    0,
    "Number of threads that one op may use; 0 means one per core.",
    lower_bound=0,
    flag_values=values,
  )
  flags.DEFINE_bool(
    "gpus", False, "Also serve the GPUs of this machine.", flag_values=values
  )


def _main(values: flags.FlagValues) -> None:
  name, port = workers.split_address(values.bind, any_port=True)
  if not host.resolve(name).is_loopback:
    print(
      f"tfplace-worker: anyone who reaches {values.bind} can run TensorFlow"
      " ops as this user, without a password",
      file=sys.stderr,
      flush=True,
    )
  server = serving.Server(name, port, values.threads, values.gpus)
  serving.serve(server, _say_ready, _say_dead)


def _say_ready(address: str) -> None:
  print(f"tfplace-worker: serving on {address}", flush=True)


def _say_dead(how: str) -> None:
  print(
    f"tfplace-worker: the server {how}; starting it again",
    file=sys.stderr,
    flush=True,
  )


def run(argv: Sequence[str] | None = None) -> int:
  """Runs the console script and returns its exit code."""
  return cli.run_command("tfplace-worker", _DESCRIPTION, _define, _main, argv)


if __name__ == "__main__":
  sys.exit(run())
