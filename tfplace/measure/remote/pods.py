"""Addresses of the pods of a Kubernetes job.

`KubernetesClusterResolver` lists pods in all namespaces and takes the addresses
of their nodes. The client here lists this pod's namespace, which needs fewer
rights, and gives the pods' own addresses, so that pods may share a node.
"""

import os
import pathlib
import socket
import time
import types
from typing import Any

from tfplace.errors import MeasurementError, shown
from tfplace.measure.local import host

PORT = 8470  # the default of KubernetesClusterResolver
START_S = 300.0  # for all pods to run
_LABEL = "job-name=tensorflow"  # the default of KubernetesClusterResolver
_NAMESPACE = pathlib.Path(
  "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)
_ENDED = ("Succeeded", "Failed")
_RETRY_S = 1.0


def addresses(label: str = "") -> tuple[list[str], int]:
  """Returns host:port of all pods with a label, and the index of this pod.

  Waits until all of these pods run.

  Args:
    label: label selector, or "" for `job-name=tensorflow`.

  Raises:
    MeasurementError: the package kubernetes is missing, the API refuses, a pod
      does not run in time, or this pod is not among them.
  """
  label = label or _LABEL
  own = _own_ip()
  deadline = time.monotonic() + START_S
  while True:
    try:
      found = _resolve(label)
      break
    except RuntimeError as error:  # Raised by the resolver for pending pods.
      if time.monotonic() > deadline:
        raise MeasurementError(
          f"after {START_S:g} s, {str(error)[:1].lower()}{str(error)[1:]};"
          f" `kubectl describe pods --selector={label}` has the reason"
        ) from error
    time.sleep(_RETRY_S)
  ips = [address.rpartition(":")[0] for address in found]
  if own not in ips:
    raise MeasurementError(
      f"no running pod with label {shown(label)} has this pod's address"
      f" {own}, but {', '.join(ips) or 'there is none'}; name the pods' label"
      " as --cluster=kubernetes:LABEL=VALUE, and set POD_IP from"
      " status.podIP if the host's name has another address"
    )
  return found, ips.index(own)


def _own_ip() -> str:
  ip = host.resolve(os.environ.get("POD_IP") or socket.gethostname())
  return _bracketed(str(ip))


def _bracketed(ip: str) -> str:
  return f"[{ip}]" if ":" in ip else ip


def _resolve(label: str) -> list[str]:
  import tensorflow as tf

  resolver = tf.distribute.cluster_resolver.KubernetesClusterResolver(
    {"worker": [label]}, tf_server_port=PORT, override_client=_Client()
  )
  return list(resolver.cluster_spec().as_dict().get("worker", ()))


class _Client:
  """Client that lists this namespace's pods by their own addresses."""

  def __init__(self) -> None:
    try:
      from kubernetes import client, config
    except ImportError as error:
      raise MeasurementError(
        "--cluster=kubernetes needs the package kubernetes, which is not"
        " installed: pip install 'tfplace[kubernetes]'"
      ) from error
    try:
      config.load_incluster_config()
    except config.ConfigException as error:
      raise MeasurementError(
        f"--cluster=kubernetes is for pods, and this is none: {error}"
      ) from error
    self._api = client.CoreV1Api()

  def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
    """Lists the pods that have not ended, as the resolver reads them."""
    space = "default"
    if _NAMESPACE.exists():
      space = _NAMESPACE.read_text(encoding="utf-8").strip()
    try:
      listed = self._api.list_namespaced_pod(
        space, label_selector=label_selector
      )
    except Exception as error:  # The package's and those of its transport.
      raise MeasurementError(
        f"the Kubernetes API lists no pods of namespace {space!r}:"
        f" {getattr(error, 'reason', None) or error}; the pod's service account"
        " needs the right to list pods"
      ) from error
    pods = [pod for pod in listed.items if pod.status.phase not in _ENDED]
    return types.SimpleNamespace(items=[_as_resolved(pod) for pod in pods])


def _as_resolved(pod: Any) -> types.SimpleNamespace:
  ip = _bracketed(pod.status.pod_ip or "")
  status = types.SimpleNamespace(phase=pod.status.phase, host_ip=ip)
  return types.SimpleNamespace(metadata=pod.metadata, status=status)
