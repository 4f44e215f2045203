"""Sessions on workers that others started, inside a measuring process.

The workers know nothing of each other: each session brings the cluster with
it, and the runtime tells them who is who (`ConfigProto.cluster_def`). The first
worker is the sessions' master.
"""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from tfplace.measure.session import messages

JOB = "worker"
_TIMEOUT_S = 10.0  # of anything but a step


def target(address: str) -> str:
  """The session target of a worker."""
  return f"grpc://{address}"


def add_cluster(proto: tf1.ConfigProto, addresses: Sequence[str]) -> None:
  """Makes the workers the tasks of the session's cluster, in order."""
  job = proto.cluster_def.job.add(name=JOB)
  for task, address in enumerate(addresses):
    job.tasks[task] = address


def answers(addresses: Sequence[str]) -> list[messages.Answer]:
  """What each worker's devices are, under the names that it gives them.

  A worker that answers is rid of sessions that an earlier harness left.
  """
  return [_answer(address) for address in addresses]


def _answer(address: str) -> messages.Answer:
  config = tf1.ConfigProto(operation_timeout_in_ms=_milliseconds())
  try:
    with tf1.Session(target(address), graph=tf.Graph(), config=config) as asked:
      found = asked.list_devices()
    tf1.Session.reset(target(address), config=config)
  except tf.errors.OpError as error:
    return messages.Answer({}, error.message)
  return messages.Answer(
    {d.name: float(d.memory_limit_bytes) for d in found},
    incarnation=min(d.incarnation for d in found),
  )


def unconnected(addresses: Sequence[str]) -> tuple[int, int] | None:
  """The first two workers of which one does not reach the other, or None."""
  everyone = range(len(addresses))
  for master in everyone:
    if not _reaches(addresses, master, everyone):
      for other in everyone:
        if other != master and not _reaches(addresses, master, (other,)):
          return master, other
  return None


def _reaches(
  addresses: Sequence[str], master: int, others: Sequence[int]
) -> bool:
  """Whether a session of `master` with the others sees their devices."""
  config = tf1.ConfigProto(
    operation_timeout_in_ms=_milliseconds(), isolate_session_state=True
  )
  tasks = dict.fromkeys((master, *others))
  add_cluster(config, [addresses[task] for task in tasks])
  try:
    where = target(addresses[master])
    with tf1.Session(where, graph=tf.Graph(), config=config):
      return True
  except tf.errors.OpError:
    return False


def _milliseconds() -> int:
  return int(_TIMEOUT_S * 1e3)
